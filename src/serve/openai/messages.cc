// Validates chat messages and converts them to the form that templates expect.
#include <algorithm>
#include <array>
#include <optional>

#include "base/json.h"
#include "serve/openai/api_error.h"
#include "serve/openai/prepare.h"
#include "text/output/mark.h"

namespace tokamak::openai {
namespace {

constexpr std::array<std::string_view, 6> kRoles = {"system",    "developer", "user",
                                                    "assistant", "tool",      "function"};
constexpr size_t kMaxMessages = 16384, kMaxTemplate = 1 << 18;

std::string read_part(const Value& part, const std::string& param) {
  if (part.is_string()) return part.as_string();
  Fields fields(part, param);
  const std::string& kind = fields.require_string("type");
  if (kind == "text" || kind == "input_text") return fields.require_string("text");
  if (kind == "refusal") return fields.string("refusal").value_or("");
  bad_request(param + ".type", "unsupported_content_type",
              "Invalid '{}.type': content of type '{}' is not available; only 'text' is.", param,
              kind);
}

}  // namespace

std::string read_content(const Value& content, const std::string& param) {
  if (content.is_string()) return content.as_string();
  if (!content.is_array()) wrong_type(param, "a string or an array of content parts", content);
  std::string text;
  const Value::Array& parts = content.as_array();
  for (size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) text += '\n';
    text += read_part(parts[i], fmt::format("{}[{}]", param, i));
  }
  return text;
}

namespace {

// Templates expect arguments as an object; clients send them as JSON text.
Value read_tool_calls(const Value& calls, const std::string& param) {
  if (!calls.is_array()) wrong_type(param, "an array", calls);
  Value out = Value::array();
  for (size_t i = 0; i < calls.as_array().size(); ++i) {
    Value call = calls.as_array()[i];
    std::string name = fmt::format("{}[{}]", param, i);
    if (!call.is_object()) wrong_type(name, "an object", call);
    Value* function = call.find("function");
    if (function == nullptr || !function->is_object())
      bad_request(name + ".function", "missing_required_parameter",
                  "Missing required parameter: '{}.function'.", name);
    if (Value* arguments = function->find("arguments");
        arguments != nullptr && arguments->is_string()) {
      try {
        Value parsed = parse_json(arguments->as_string(), "arguments", {.max_depth = 64});
        if (parsed.is_object()) *arguments = std::move(parsed);
      } catch (const Error&) {
        // Not JSON, but a model's own output; the template prints the text.
      }
    }
    out.push(std::move(call));
  }
  return out;
}

Value read_message(const Value& value, const std::string& param) {
  Fields fields(value, param);
  const std::string& role = fields.require_string("role");
  if (std::find(kRoles.begin(), kRoles.end(), role) == kRoles.end())
    bad_request(param + ".role", "invalid_value",
                "Invalid value: '{}'. Supported values are: 'system', 'developer', 'user', "
                "'assistant', 'tool' and 'function'.",
                role);
  Value message = Value::object();
  // Templates know "system"; "developer" is the same thing under a newer name.
  message.set("role", Value(role == "developer" ? "system" : role));
  const Value* calls = fields.find("tool_calls");
  const Value* content = fields.find("content");
  if (content != nullptr)
    message.set("content", read_content(*content, param + ".content"));
  else if (role == "assistant" && (calls != nullptr || value.size() > 1))
    message.set("content", "");  // an answer that had none, sent back as it was
  else
    fields.require("content");
  if (calls != nullptr) message.set("tool_calls", read_tool_calls(*calls, param + ".tool_calls"));
  for (const char* field : {"name", "tool_call_id", "reasoning_content", "reasoning"})
    if (auto text = fields.string(field)) message.set(field, std::move(*text));
  fields.refuse("audio", "Audio is not available.");
  fields.refuse("function_call", "Use 'tool_calls'.");
  return message;
}

void check_tool_choice(const Value& choice, const Value& tools) {
  if (choice.is_string()) {
    if (choice.as_string() != "auto" && choice.as_string() != "required")
      unsupported("tool_choice",
                  "'none', 'auto', 'required' and the name of a function are available.");
    return;
  }
  Fields inner(choice, "tool_choice");
  if (inner.string("type").value_or("function") != "function")
    unsupported("tool_choice", "Only functions are available.");
  Fields function(inner.require("function"), "tool_choice.function");
  const Value& name = function.require("name");
  for (const Value& tool : tools.as_array())
    if (tool.at("function").at("name") == name) return;
  bad_request("tool_choice", "invalid_value",
              "Invalid 'tool_choice': no function of 'tools' has this name.");
}

// nullptr: none are passed to the template.
const Value* read_tools(Fields& fields) {
  const Value* tools = fields.find("tools");
  const Value* choice = fields.find("tool_choice");
  if (tools != nullptr) {
    if (!tools->is_array()) wrong_type("tools", "an array", *tools);
    for (size_t i = 0; i < tools->as_array().size(); ++i) {
      const Value& tool = tools->as_array()[i];
      std::string param = fmt::format("tools[{}]", i);
      Fields inner(tool, param);
      std::string type = inner.string("type").value_or("function");
      if (type != "function")
        bad_request(param + ".type", "invalid_value",
                    "Invalid '{}.type': only 'function' is supported.", param);
      Fields function(inner.require("function"), param + ".function");
      function.require_string("name");
    }
  }
  if (choice == nullptr) return tools;
  if (!choice->is_string() && !choice->is_object())
    wrong_type("tool_choice", "a string or an object", *choice);
  if (choice->is_string() && choice->as_string() == "none") return nullptr;
  const bool any = tools != nullptr && tools->size() > 0;
  if (!any && *choice == Value("auto")) return nullptr;  // what it is without one
  if (!any)
    bad_request("tool_choice", "invalid_value",
                "'tool_choice' is only allowed when 'tools' are given.");
  check_tool_choice(*choice, *tools);
  return tools;
}

std::string render_template(const ChatTemplate& chat, const Value& context) {
  try {
    return chat.render(context);
  } catch (const Error& e) {
    if (e.code() != ErrorCode::kInvalidArgument) throw;
    bad_request("messages", "chat_template_error",
                "The model's chat template rejected the messages: {}", e.what());
  }
}

std::optional<ChatTemplate> read_template(Fields& fields, std::string& source) {
  auto text = fields.string("chat_template");
  if (!text || text->empty()) return std::nullopt;
  if (text->size() > kMaxTemplate)
    bad_request("chat_template", "string_above_max_length",
                "Invalid 'chat_template': longer than {} bytes.", kMaxTemplate);
  source = *text;
  try {
    return ChatTemplate::parse(std::move(*text));
  } catch (const Error& e) {
    bad_request("chat_template", "invalid_value", "Invalid 'chat_template': {}", e.what());
  }
}

// Tools that the template does not print would be ignored silently.
void check_tools_shown(const ChatTemplate& chat, const Value& context, const ServedModel& model) {
  Value without = context;
  without.set("tools", Value());
  if (render_template(chat, context) == render_template(chat, without))
    unsupported("tools", fmt::format("The chat template of the model '{}' does not show tools to "
                                     "the model. Describe them in a message instead, or set "
                                     "'tool_choice' to 'none'.",
                                     model.name));
}

// The text up to the end of the last message's content, which the answer continues. A marker
// appended to the content shows where that is, whatever the template writes after it.
std::string render_up_to_last(const ChatTemplate& chat, Value context) {
  constexpr std::string_view kMark = "\x02the message goes on here\x03", kSpace = " \t\n\r\f\v";
  std::string plain = render_template(chat, context);
  Value::Array messages = context.find("messages")->as_array();
  std::string content = messages.back().get_string("content", "");
  messages.back().set("content", content + std::string(kMark));
  context.set("messages", Value(std::move(messages)));
  std::string text = render_template(chat, context);
  size_t at = text.rfind(kMark);
  if (at == std::string::npos || content.find_first_not_of(kSpace) == std::string::npos)
    bad_request("continue_final_message", "invalid_value",
                "The last message is empty, or the model's chat template does not print it "
                "verbatim: it cannot be continued.");
  text.resize(at);
  // Templates that trim content would have trimmed this one.
  if (!plain.starts_with(text)) text.resize(text.find_last_not_of(kSpace) + 1);
  return text;
}

}  // namespace

Value read_messages(Fields& fields) {
  const Value& value = fields.require("messages");
  if (!value.is_array()) wrong_type("messages", "an array", value);
  const Value::Array& list = value.as_array();
  if (list.empty())
    bad_request(
        "messages", "empty_array",
        "Invalid 'messages': empty array. Expected an array with minimum length 1, but got an "
        "empty array instead.");
  if (list.size() > kMaxMessages)
    bad_request("messages", "array_above_max_length", "Invalid 'messages': more than {} messages.",
                kMaxMessages);
  Value messages = Value::array();
  for (size_t i = 0; i < list.size(); ++i)
    messages.push(read_message(list[i], fmt::format("messages[{}]", i)));
  return messages;
}

int32_t read_thought_budget(Fields& fields, const ServedModel& model) {
  const char* given = nullptr;
  int32_t budget = model.thought_budget;
  for (const char* name : {"reasoning_budget", "thinking_budget", "thinking_token_budget",
                           "reasoning_budget_tokens", "thinking_budget_tokens"}) {
    auto value = fields.integer(name, -1, INT32_MAX);
    if (!value) continue;
    if (given != nullptr)
      bad_request(name, "invalid_value", "'{}' and '{}' are the same field.", given, name);
    given = name;
    budget = static_cast<int32_t>(*value);
  }
  return budget;
}

RenderedChat render_chat(Fields& fields, const ServedModel& model) {
  const Tokenizer& tokenizer = *model.tokenizer;
  Value context = Value::object();
  context.set("messages", read_messages(fields));
  const bool goes_on = fields.boolean("continue_final_message").value_or(false);
  const bool prompts = fields.boolean("add_generation_prompt").value_or(!goes_on);
  if (goes_on && prompts)
    bad_request("continue_final_message", "invalid_value",
                "'continue_final_message' and 'add_generation_prompt' are mutually exclusive.");
  const Value* tools = read_tools(fields);
  if (tools != nullptr) context.set("tools", *tools);
  const bool for_tools = tools != nullptr && tools->size() > 0 && model.tool_template != nullptr;
  context.set("add_generation_prompt", prompts);
  auto piece = [&](int32_t id) { return id < 0 ? Value("") : Value(tokenizer.piece(id)); };
  context.set("bos_token", piece(tokenizer.bos_id()));
  context.set("eos_token", piece(tokenizer.eos_id()));
  // Templates that know the effort print it; "none" switches thoughts off in those that can.
  if (model.thinks) context.set("enable_thinking", *model.thinks);
  if (auto effort = fields.string("reasoning_effort")) {
    context.set("reasoning_effort", *effort);
    if (*effort == "none") context.set("enable_thinking", false);
  }
  if (read_thought_budget(fields, model) == 0) context.set("enable_thinking", false);
  if (const Value* extra = fields.find("chat_template_kwargs")) {
    if (!extra->is_object()) wrong_type("chat_template_kwargs", "an object", *extra);
    if (extra->size() > 64)
      bad_request("chat_template_kwargs", "object_above_max_properties",
                  "Invalid 'chat_template_kwargs': at most 64 members are allowed.");
    for (const auto& [key, value] : extra->as_object())
      if (key != "messages" && key != "tools") context.set(key, value);
  }
  RenderedChat out;
  out.continues = goes_on;
  out.guard = guard_chat(context, tokenizer);
  const auto own = read_template(fields, out.own_template);
  const ChatTemplate& chat = own ? *own : *(for_tools ? model.tool_template : model.chat_template);
  if (tools != nullptr && tools->size() > 0) check_tools_shown(chat, context, model);
  const Value* thinks = context.find("enable_thinking");
  const bool silent = thinks != nullptr && thinks->is_bool() && !thinks->as_bool();
  out.text = goes_on ? render_up_to_last(chat, std::move(context)) : render_template(chat, context);
  if (!silent || goes_on) return out;
  // A template that cannot switch thoughts off has begun them: they end at once.
  const std::string& source = out.own_template.empty()
                                  ? pick_chat_template(tokenizer.spec(), "", for_tools)
                                  : out.own_template;
  if (const ThoughtMarks* marks = thought_marks_of(source))
    if (trimmed(out.text).ends_with(trimmed(marks->open))) out.text += marks->close;
  return out;
}

}  // namespace tokamak::openai
