#include "plan/embedding_spec.h"

#include "base/error.h"

namespace tokamak {

const char* pooling_name(Pooling pooling) {
  switch (pooling) {
    case Pooling::kNone:
      return "none";
    case Pooling::kMean:
      return "mean";
    case Pooling::kFirst:
      return "cls";
    case Pooling::kTokens:
      return "tokens";
    case Pooling::kLast:
      return "last";
  }
  return "none";
}

Pooling parse_pooling(std::string_view name) {
  for (Pooling p :
       {Pooling::kNone, Pooling::kMean, Pooling::kFirst, Pooling::kLast, Pooling::kTokens})
    if (name == pooling_name(p)) return p;
  fail(ErrorCode::kInvalidArgument, "pooling \"{}\" is not known: use mean, cls or last", name);
}

const std::string* EmbeddingSpec::prompt(std::string_view name) const {
  for (const auto& [key, text] : prompts)
    if (key == name) return &text;
  return nullptr;
}

const std::string& EmbeddingSpec::prompt_for(std::string_view kind) const {
  static const std::string kNone;
  bool found = kind == "document" || kind == "passage";
  for (std::string_view name :
       {kind, std::string_view(found ? "document" : kind),
        std::string_view(found ? "passage" : kind), std::string_view(default_prompt)})
    if (const std::string* text = prompt(name)) return *text;
  return kNone;
}

Value embedding_value(const EmbeddingSpec& spec) {
  Value prompts = Value::object(), labels = Value::array();
  for (const auto& [name, text] : spec.prompts) prompts.set(name, text);
  for (const std::string& label : spec.labels) labels.push(label);
  return Value::Object{{"pooling", pooling_name(spec.pooling)},
                       {"encoder", spec.encoder},
                       {"normalize", spec.normalize},
                       {"max_tokens", spec.max_tokens},
                       {"prompts", std::move(prompts)},
                       {"default_prompt", spec.default_prompt},
                       {"labels", std::move(labels)}};
}

EmbeddingSpec parse_embedding(const Value& value) {
  EmbeddingSpec spec;
  try {
    spec.pooling = parse_pooling(value.at("pooling").as_string());
    spec.encoder = value.at("encoder").as_bool();
    spec.normalize = value.at("normalize").as_bool();
    spec.max_tokens = value.at("max_tokens").as_int();
    for (const auto& [name, text] : value.at("prompts").as_object())
      spec.prompts.emplace_back(name, text.as_string());
    spec.default_prompt = value.at("default_prompt").as_string();
    for (const Value& label : value.at("labels").as_array())
      spec.labels.push_back(label.as_string());
  } catch (const Error& e) {
    fail(ErrorCode::kCorrupt, "the description of embeddings is damaged: {}", e.what());
  }
  return spec;
}

}  // namespace tokamak
