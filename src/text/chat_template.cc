#include "text/chat_template.h"

#include <chrono>
#include <cstdio>
#include <ctime>

#include "base/error.h"
#include "plan/tokenizer_spec.h"
#include "text/jinja/interp.h"

namespace tokamak {

const std::string& pick_chat_template(const TokenizerSpec& spec, std::string_view name,
                                      bool tools) {
  const std::string_view wanted = name.empty() && tools ? "tool_use" : name;
  if (!wanted.empty())
    for (const auto& [known, text] : spec.named_templates)
      if (known == wanted) return text;
  if (name.empty() || (name == "default" && !spec.chat_template.empty())) return spec.chat_template;
  std::string names = spec.chat_template.empty() ? "" : "default ";
  for (const auto& [known, text] : spec.named_templates) names += known + " ";
  if (!names.empty()) names.pop_back();
  fail(ErrorCode::kNotFound, "no chat template is named \"{}\"; available: {}", name,
       names.empty() ? "none" : names);
}

TemplateTime TemplateTime::now() {
  const std::time_t t = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm tm{};
  localtime_r(&t, &tm);
  return {tm.tm_year + 1900, tm.tm_mon + 1, tm.tm_mday, tm.tm_hour, tm.tm_min, tm.tm_sec};
}

TemplateTime TemplateTime::parse(std::string_view iso) {
  TemplateTime t;
  const std::string text(iso);
  int used = 0;
  const int fields = std::sscanf(text.c_str(), "%4d-%2d-%2d%n%*1[T ]%2d:%2d:%2d%n", &t.year,
                                 &t.month, &t.day, &used, &t.hour, &t.minute, &t.second, &used);
  const bool in_range = t.year >= 1 && t.month >= 1 && t.month <= 12 && t.day >= 1 && t.day <= 31 &&
                        t.hour >= 0 && t.hour < 24 && t.minute >= 0 && t.minute < 60 &&
                        t.second >= 0 && t.second <= 60;
  if ((fields != 3 && fields != 6) || !in_range || static_cast<size_t>(used) > text.size())
    fail(ErrorCode::kInvalidArgument, "invalid time \"{}\"; use the form 2026-11-15T12:30:45",
         text);
  return t;
}

struct ChatTemplate::Impl {
  jinja::Program program;
};

ChatTemplate::ChatTemplate(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;
ChatTemplate::~ChatTemplate() = default;

ChatTemplate ChatTemplate::parse(std::string source) {
  int line = 1;
  try {
    auto impl = std::make_unique<Impl>();
    impl->program = jinja::parse_template(source, line);
    return ChatTemplate(std::move(impl));
  } catch (const jinja::TemplateError& e) {
    fail(ErrorCode::kInvalidArgument, "chat template line {}: {}", line, e.message);
  }
}

std::string ChatTemplate::render(const Value& context, const RenderLimits& limits) const {
  jinja::Interp interp(impl_->program, limits);
  try {
    return interp.run(context);
  } catch (const jinja::TemplateError& e) {
    fail(ErrorCode::kInvalidArgument, "chat template line {}: {}", interp.line(), e.message);
  }
}

}  // namespace tokamak
