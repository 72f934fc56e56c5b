#include "text/output/call.h"

#include <fmt/format.h>

#include "text/grammar/value_types.h"
#include "text/output/mark.h"

namespace tokamak {

void append_calls(std::vector<ToolCall>& calls, std::vector<ToolCall>&& more) {
  for (ToolCall& call : more) {
    if (!calls.empty() && calls.back().index == call.index)
      calls.back().arguments += call.arguments;
    else
      calls.push_back(std::move(call));
  }
}

ToolTypes::ToolTypes(const Value& tools) {
  if (!tools.is_array()) return;
  for (const Value& tool : tools.as_array()) {
    const Value* function = tool.find("function");
    if (function == nullptr || !function->is_object()) continue;
    const Value* name = function->find("name");
    if (name == nullptr || !name->is_string()) continue;
    Parameters& parameters = functions_[name->as_string()];
    const Value* schema = function->find("parameters");
    const Value* properties = schema == nullptr ? nullptr : schema->find("properties");
    if (properties == nullptr || !properties->is_object()) continue;
    for (const auto& [key, property] : properties->as_object())
      parameters[key] = grammar::parameter_types(*schema, key);
  }
}

uint32_t ToolTypes::types(std::string_view function, std::string_view parameter) const {
  auto found = functions_.find(function);
  if (found == functions_.end()) return grammar::kAllTypes;
  auto type = found->second.find(parameter);
  return type != found->second.end() ? type->second : uint32_t{grammar::kAllTypes};
}

void CallMachine::push(std::string_view text, CallSink& sink) {
  if (state_ != State::kReading) return;
  held_ += text;
  while (state_ == State::kReading && step(sink)) {
  }
}

bool CallMachine::skip_space() {
  held_.erase(0, first_solid(held_));
  return !held_.empty();
}

bool CallMachine::expect(std::string_view mark) {
  if (held_.starts_with(mark)) return true;
  return mark.starts_with(held_) ? false : bad();
}

std::string json_escaped(std::string_view text) {
  std::string out;
  for (char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += fmt::format("\\u{:04x}", static_cast<int>(c));
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace tokamak
