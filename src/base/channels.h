#pragma once
// Log channels for people who look into the compiler: TOKAMAK_LOGS=rewrite,fusion,memory ... Lines
// go to stderr, whatever TOKAMAK_LOG says.
#include <string_view>

namespace tokamak::log {

bool channel_enabled(std::string_view name);                    // "all" switches every channel on
void channel(std::string_view name, std::string_view message);  // one line

}  // namespace tokamak::log
