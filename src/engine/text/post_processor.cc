#include "engine/text/post_processor.h"

#include "base/error.h"

namespace tokamak {
namespace {

int32_t id_of(const Value& pair) {
  const Value::Array& both = pair.as_array();
  if (both.size() != 2)
    fail(ErrorCode::kInvalidArgument, "tokenizer: post-processor needs [token, id]");
  return static_cast<int32_t>(both[1].as_int());
}

std::vector<int32_t> from_template(const Value& config) {
  std::vector<int32_t> frame;
  const Value* specials = config.find("special_tokens");
  for (const Value& item : config.at("single").as_array()) {
    if (item.has("Sequence")) {
      frame.push_back(kTextPlace);
      continue;
    }
    const std::string& name = item.at("SpecialToken").at("id").as_string();
    const Value* special = specials ? specials->find(name) : nullptr;
    if (!special)
      fail(ErrorCode::kInvalidArgument, "tokenizer: template names the unknown token \"{}\"", name);
    for (const Value& id : special->at("ids").as_array())
      frame.push_back(static_cast<int32_t>(id.as_int()));
  }
  return frame;
}

}  // namespace

std::vector<int32_t> make_frame(const Value& config) {
  if (config.is_null()) return {kTextPlace};
  const std::string type = config.get_string("type", "");
  if (type == "ByteLevel") return {kTextPlace};  // it moves offsets only
  if (type == "TemplateProcessing") return from_template(config);
  if (type == "BertProcessing" || type == "RobertaProcessing")
    return {id_of(config.at("cls")), kTextPlace, id_of(config.at("sep"))};
  if (type == "Sequence") {
    std::vector<int32_t> frame = {kTextPlace};
    for (const Value& part : config.at("processors").as_array()) {
      std::vector<int32_t> outer;
      for (int32_t id : make_frame(part)) {
        if (id == kTextPlace) {
          outer.insert(outer.end(), frame.begin(), frame.end());
        } else {
          outer.push_back(id);
        }
      }
      if (outer.size() > 4096)
        fail(ErrorCode::kInvalidArgument, "tokenizer: post-processor adds {} tokens", outer.size());
      frame = std::move(outer);
    }
    return frame;
  }
  fail(ErrorCode::kUnsupported, "tokenizer: unknown post-processor \"{}\"", type);
}

}  // namespace tokamak
