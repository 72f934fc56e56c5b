#include "text/post_processor.h"

#include "base/error.h"

namespace tokamak {
namespace {

int32_t id_of(const Value& pair) {
  const Value::Array& both = pair.as_array();
  if (both.size() != 2)
    fail(ErrorCode::kInvalidArgument, "tokenizer: post-processor needs [token, id]");
  return static_cast<int32_t>(both[1].as_int());
}

using Frame = std::vector<int32_t>;

// The parts of a template, one per item. A second template in a sequence treats them as a pair.
std::vector<Frame> from_template(const Value& config, const std::vector<Frame>& parts) {
  if (parts.size() > 2)
    fail(ErrorCode::kUnsupported, "tokenizer: post-processor: a template after {} parts",
         parts.size());
  std::vector<Frame> out;
  const Value* specials = config.find("special_tokens");
  for (const Value& item : config.at(parts.size() == 2 ? "pair" : "single").as_array()) {
    if (const Value* place = item.find("Sequence")) {
      const bool second = place->get_string("id", "A") == "B";
      if (second && parts.size() < 2)
        fail(ErrorCode::kInvalidArgument, "tokenizer: a template for one text names $B");
      out.push_back(parts[second ? 1 : 0]);
      continue;
    }
    const std::string& name = item.at("SpecialToken").at("id").as_string();
    const Value* special = specials ? specials->find(name) : nullptr;
    if (!special)
      fail(ErrorCode::kInvalidArgument, "tokenizer: template names the unknown token \"{}\"", name);
    Frame ids;
    for (const Value& id : special->at("ids").as_array())
      ids.push_back(static_cast<int32_t>(id.as_int()));
    out.push_back(std::move(ids));
  }
  return out;
}

// [CLS] A [SEP] B [SEP]; RoBERTa also adds a [SEP] before B.
std::vector<Frame> from_pair(const Value& config, std::vector<Frame> parts, bool roberta) {
  const int32_t cls = id_of(config.at("cls")), sep = id_of(config.at("sep"));
  for (size_t i = 0; i < parts.size(); ++i) {
    if (i == 0 || roberta) parts[i].insert(parts[i].begin(), i == 0 ? cls : sep);
    parts[i].push_back(sep);
  }
  return parts;
}

std::vector<Frame> process(const Value& config, std::vector<Frame> parts) {
  if (config.is_null()) return parts;
  const std::string type = config.get_string("type", "");
  if (type == "ByteLevel") return parts;  // it moves offsets only
  if (type == "TemplateProcessing") return from_template(config, parts);
  if (type == "BertProcessing" || type == "RobertaProcessing")
    return from_pair(config, std::move(parts), type == "RobertaProcessing");
  if (type != "Sequence")
    fail(ErrorCode::kUnsupported, "tokenizer: unknown post-processor \"{}\"", type);
  for (const Value& part : config.at("processors").as_array()) {
    parts = process(part, std::move(parts));
    size_t total = 0;
    for (const Frame& p : parts) total += p.size();
    if (total > 4096)
      fail(ErrorCode::kInvalidArgument, "tokenizer: post-processor adds {} tokens", total);
  }
  return parts;
}

}  // namespace

std::vector<int32_t> make_frame(const Value& config) {
  Frame frame;
  for (const Frame& part : process(config, {{kTextPlace}}))
    frame.insert(frame.end(), part.begin(), part.end());
  return frame;
}

}  // namespace tokamak
