#pragma once
// Chat templates in the usual forms, by name, for models whose file has none.
#include <string>
#include <string_view>

namespace tokamak {

// Empty: there is none of this name. `begins`: the model's texts begin with BOS.
std::string usual_template(std::string_view name, bool begins);
std::string usual_template_names();  // "chatml command-r ..."

}  // namespace tokamak
