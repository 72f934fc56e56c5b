#include "text/usual_templates.h"

namespace tokamak {
namespace {

struct Usual {
  std::string_view name, text;
};

// None writes BOS. Where a form has no place for a system message, it precedes the first message
// of the user.
constexpr std::string_view kSystemFirst =
    "{%- set ns = namespace(system='') -%}"
    "{%- if messages and messages[0].role == 'system' -%}"
    "{%- set ns.system = messages[0].content | trim -%}"
    "{%- endif -%}";

constexpr Usual kTemplates[] = {
    {"chatml",
     "{%- for m in messages -%}"
     "{{- '<|im_start|>' ~ m.role ~ '\\n' ~ m.content ~ '<|im_end|>\\n' -}}"
     "{%- endfor -%}"
     "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"},
    {"command-r",
     "{%- for m in messages -%}"
     "{{- '<|START_OF_TURN_TOKEN|>' ~ ('<|CHATBOT_TOKEN|>' if m.role == 'assistant' else"
     " '<|SYSTEM_TOKEN|>' if m.role == 'system' else '<|USER_TOKEN|>') ~ m.content | trim ~"
     " '<|END_OF_TURN_TOKEN|>' -}}"
     "{%- endfor -%}"
     "{%- if add_generation_prompt -%}"
     "{{- '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>' -}}{%- endif -%}"},
    {"gemma",
     "{%- for m in messages if m.role != 'system' -%}"
     "{{- '<start_of_turn>' ~ ('model' if m.role == 'assistant' else 'user') ~ '\\n' -}}"
     "{%- if loop.first and ns.system -%}{{- ns.system ~ '\\n\\n' -}}{%- endif -%}"
     "{{- m.content | trim ~ '<end_of_turn>\\n' -}}"
     "{%- endfor -%}"
     "{%- if add_generation_prompt -%}{{- '<start_of_turn>model\\n' -}}{%- endif -%}"},
    {"llama2",
     "{%- for m in messages if m.role != 'system' -%}"
     "{%- if m.role == 'assistant' -%}{{- ' ' ~ m.content | trim ~ ' ' ~ eos_token -}}"
     "{%- else -%}"
     "{{- ('' if loop.first else bos_token) ~ '[INST] ' -}}"
     "{%- if loop.first and ns.system -%}"
     "{{- '<<SYS>>\\n' ~ ns.system ~ '\\n<</SYS>>\\n\\n' -}}{%- endif -%}"
     "{{- m.content | trim ~ ' [/INST]' -}}"
     "{%- endif -%}{%- endfor -%}"},
    {"llama3",
     "{%- for m in messages -%}"
     "{{- '<|start_header_id|>' ~ m.role ~ '<|end_header_id|>\\n\\n' ~ m.content | trim ~"
     " '<|eot_id|>' -}}"
     "{%- endfor -%}"
     "{%- if add_generation_prompt -%}"
     "{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}{%- endif -%}"},
    {"mistral",
     "{%- for m in messages if m.role != 'system' -%}"
     "{%- if m.role == 'assistant' -%}{{- ' ' ~ m.content | trim ~ eos_token -}}"
     "{%- else -%}"
     "{{- '[INST] ' ~ (ns.system ~ '\\n\\n' if loop.first and ns.system else '') ~"
     " m.content | trim ~ ' [/INST]' -}}"
     "{%- endif -%}{%- endfor -%}"},
    {"phi3",
     "{%- for m in messages -%}{{- '<|' ~ m.role ~ '|>\\n' ~ m.content ~ '<|end|>\\n' -}}"
     "{%- endfor -%}"
     "{%- if add_generation_prompt -%}{{- '<|assistant|>\\n' -}}{%- endif -%}"},
    {"vicuna",
     "{%- if ns.system -%}{{- ns.system ~ '\\n\\n' -}}{%- endif -%}"
     "{%- for m in messages if m.role != 'system' -%}"
     "{{- 'ASSISTANT: ' ~ m.content ~ eos_token ~ '\\n' if m.role == 'assistant' else"
     " 'USER: ' ~ m.content ~ '\\n' -}}"
     "{%- endfor -%}"
     "{%- if add_generation_prompt -%}{{- 'ASSISTANT:' -}}{%- endif -%}"},
    {"zephyr",
     "{%- for m in messages -%}{{- '<|' ~ m.role ~ '|>\\n' ~ m.content ~ eos_token ~ '\\n' -}}"
     "{%- endfor -%}"
     "{%- if add_generation_prompt -%}{{- '<|assistant|>\\n' -}}{%- endif -%}"},
};

}  // namespace

std::string usual_template(std::string_view name, bool begins) {
  for (const Usual& usual : kTemplates)
    if (usual.name == name)
      return (begins ? "{{- bos_token -}}" : "") + std::string(kSystemFirst) +
             std::string(usual.text);
  return {};
}

std::string usual_template_names() {
  std::string names;
  for (const Usual& usual : kTemplates)
    names += (names.empty() ? "" : " ") + std::string(usual.name);
  return names;
}

}  // namespace tokamak
