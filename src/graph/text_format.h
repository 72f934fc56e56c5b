#pragma once
// Inside the text form: how names, numbers and values are written. docs/graph_text.md is the
// grammar.
#include <string>
#include <string_view>
#include <vector>

#include "graph/graph.h"

namespace tokamak {

// Bare where the grammar allows it, quoted otherwise.
std::string name_text(std::string_view name);
std::string quote_text(std::string_view text);
// Shortest decimal that reads back to the same double; always told apart from an integer.
std::string double_text(double value);
std::string value_text(const Value& value);
std::string attrs_text(const Value& attrs);  // "{eps=1e-05}", "" when there are none
std::string types_text(const std::vector<Type>& types);
std::string type_text(const Type& type);
std::string constant_value_text(DType dtype, double value);
std::string recipe_text(const Recipe& recipe);

bool is_bare_start(char c);
bool is_bare_char(char c);

// "%12" as print_function numbers nodes, "@name" for weights and constants. O(id).
std::string node_label(const Function& function, NodeId id);

}  // namespace tokamak
