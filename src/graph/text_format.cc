#include "graph/text_format.h"

#include <fmt/format.h>

#include <cmath>

namespace tokamak {

bool is_bare_start(char c) { return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_'; }
bool is_bare_char(char c) {
  return is_bare_start(c) || (c >= '0' && c <= '9') || c == '.' || c == '-' || c == '/';
}

std::string quote_text(std::string_view text) {
  std::string out = "\"";
  for (char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (byte < 0x20 || byte == 0x7f) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  return out + '"';
}

std::string name_text(std::string_view name) {
  if (name.empty() || !is_bare_start(name[0])) return quote_text(name);
  for (char c : name)
    if (!is_bare_char(c)) return quote_text(name);
  return std::string(name);
}

std::string double_text(double value) {
  if (std::isnan(value)) return "nan";
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".en") == std::string::npos) text += ".0";
  return text;
}

std::string value_text(const Value& value) {
  if (value.is_null()) return "null";
  if (value.is_bool()) return value.as_bool() ? "true" : "false";
  if (value.is_int()) return std::to_string(value.as_int());
  if (value.is_double()) return double_text(value.as_double());
  if (value.is_string()) return quote_text(value.as_string());
  std::string out;
  if (value.is_array()) {
    for (const Value& v : value.as_array()) out += (out.empty() ? "[" : ", ") + value_text(v);
    return out.empty() ? "[]" : out + "]";
  }
  for (const auto& [key, v] : value.as_object()) {
    out += (out.empty() ? "{" : ", ") + name_text(key) + "=" + value_text(v);
  }
  return out.empty() ? "{}" : out + "}";
}

std::string attrs_text(const Value& attrs) {
  return attrs.is_object() && attrs.size() == 0 ? "" : value_text(attrs);
}

std::string type_text(const Type& type) {
  if (type.kind == Type::Kind::kTensor) return type.tensor.text();
  return fmt::format("{}<{}>", type.kind == Type::Kind::kState ? "state" : "view",
                     name_text(type.name));
}

std::string types_text(const std::vector<Type>& types) {
  std::string out;
  for (const Type& t : types) out += (out.empty() ? "" : ", ") + type_text(t);
  return out;
}

std::string constant_value_text(DType dtype, double value) {
  if (std::isnan(value)) return "nan";
  const auto narrow = static_cast<float>(value);
  if (dtype == DType::kF32 && static_cast<double>(narrow) == value)
    return fmt::format("{}", narrow);
  return fmt::format("{}", value);
}

std::string recipe_text(const Recipe& recipe) {
  using Kind = RecipeStep::Kind;
  std::string out;
  for (const std::string& s : recipe.sources) out += (out.empty() ? "" : " + ") + name_text(s);
  for (const RecipeStep& s : recipe.steps) {
    out += out.empty() ? "| " : " | ";
    out += recipe_step_name(s.kind);
    switch (s.kind) {
      case Kind::kSliceRows:
        out += s.dims.empty() ? fmt::format("({}, {})", s.a, s.b)
                              : fmt::format("({}, {}, {})", s.a, s.b, s.dims[0]);
        break;
      case Kind::kPermuteRows:
        out += s.b == 0 ? fmt::format("({})", s.a) : fmt::format("({}, {})", s.a, s.b);
        break;
      case Kind::kAddScalar:
      case Kind::kScale:
        out += fmt::format("({})", double_text(s.value));
        break;
      case Kind::kCast:
        out += fmt::format("({})", dtype_name(s.dtype));
        break;
      case Kind::kReshape: {
        std::string dims;
        for (int64_t d : s.dims) dims += (dims.empty() ? "" : ", ") + std::to_string(d);
        out += "(" + dims + ")";
        break;
      }
      case Kind::kScaleColumns:
        out += "(" + name_text(s.tensor);
        if (s.value != 0) out += ", " + double_text(s.value);
        out += ")";
        break;
      case Kind::kJoinMxfp4:
        out += "(" + name_text(s.tensor) + ")";
        break;
      case Kind::kJoinGroups: {
        out += fmt::format("({}, {}, {}, {}", dtype_name(s.dtype), s.a, s.b, double_text(s.value));
        for (int64_t d : s.dims) out += ", " + std::to_string(d);
        out += ")";
        break;
      }
      case Kind::kSortGroups:
        out += fmt::format("({})", s.a);
        break;
      case Kind::kTranspose:
      case Kind::kUnitRows:
      case Kind::kTernary:
      case Kind::kConcatRows:
        break;
    }
  }
  return out;
}

std::string node_label(const Function& function, NodeId id) {
  auto numbered = [](const Node& n) {
    return n.op && n.op->name != "weight" && n.op->name != "constant";
  };
  const Node& node = function.node(id);
  if (node.op && !numbered(node)) {
    const Value* name = node.attrs.find("name");
    const char* mark = node.op->name == "weight" ? "@" : "$";
    return mark + (name && name->is_string() ? name_text(name->as_string()) : "?");
  }
  size_t number = 0;
  for (NodeId i = 0; i < id; ++i) number += numbered(function.node(i));
  return fmt::format("%{}", number);
}

}  // namespace tokamak
