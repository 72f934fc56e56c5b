// tokamak template: renders a chat template, to see what it produces.
#include <cstdio>
#include <filesystem>

#include "apps/verbs.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "compile/open_model.h"
#include "text/chat_template.h"

namespace tokamak {
namespace {

struct TemplateFlags {
  std::string model, context, now, name;
};

std::string template_text(const TemplateFlags& f, Value& context) {
  std::filesystem::path path = f.model;
  if (path.extension() == ".jinja" || path.extension() == ".j2" || path.extension() == ".txt")
    return read_text_file(path, size_t{16} << 20);
  TokenizerSpec spec = open_tokenizer(path);
  auto token = [&](const char* key, int32_t id) {
    if (!context.has(key) && id >= 0) context.set(key, spec.piece(id));
  };
  token("bos_token", spec.bos_id);
  token("eos_token", spec.eos_id);
  const Value* tools = context.find("tools");
  std::string text = pick_chat_template(spec, f.name, tools && !tools->is_null());
  if (text.empty() && spec.named_templates.empty())
    fail(ErrorCode::kNotFound, "{} has no chat template", f.model);
  if (text.empty())
    fail(ErrorCode::kNotFound, "{} has several chat templates and no default; use --template-name",
         f.model);
  return text;
}

void render(const TemplateFlags& f) {
  Value context =
      f.context.empty() ? Value::object() : parse_json(read_text_file(f.context), f.context);
  if (!context.is_object()) fail(ErrorCode::kInvalidArgument, "{} is not a JSON object", f.context);
  RenderLimits limits;
  if (!f.now.empty()) limits.now = TemplateTime::parse(f.now);
  std::string source = template_text(f, context);
  std::string text;
  try {
    text = ChatTemplate::parse(std::move(source)).render(context, limits);
  } catch (const Error& e) {
    throw Error(ErrorCode::kUnsupported,
                e.what());  // exit code 1: the template, not the command line
  }
  std::fwrite(text.data(), 1, text.size(), stdout);
}

}  // namespace

void add_template_verb(CLI::App& app) {
  auto flags = std::make_shared<TemplateFlags>();
  CLI::App* verb = app.add_subcommand("template", "render a chat template");
  verb->add_option("MODEL", flags->model, "a model, or a .jinja file")->required();
  verb->add_option("--context", flags->context,
                   "JSON file: messages, tools, add_generation_prompt, bos_token, ...");
  verb->add_option("--now", flags->now, "time for strftime_now, e.g. 2026-11-15T12:30:45");
  verb->add_option("--template-name,--name", flags->name,
                   "which of the model's templates, e.g. tool_use (default: tool_use if there are "
                   "tools and such a template)");
  verb->footer(
      "Example:\n  tokamak template model.gguf --context chat.json\n"
      "  with chat.json "
      "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}],\"add_generation_prompt\":true}");
  verb->callback([flags] { render(*flags); });
}

}  // namespace tokamak
