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

// The processor that places the texts; null: none does.
const Value* placing(const Value& config) {
  if (config.is_null()) return nullptr;
  const std::string type = config.get_string("type", "");
  if (type != "Sequence") return type == "ByteLevel" ? nullptr : &config;
  const Value* found = nullptr;
  for (const Value& part : config.at("processors").as_array())
    if (const Value* p = placing(part)) found = p;
  return found;
}

// Entries before the first one of the second segment; 0: there is none.
size_t second_segment(const Value& config) {
  const std::string type = config.get_string("type", "");
  if (type == "BertProcessing") return 3;  // [CLS] A [SEP]
  if (type != "TemplateProcessing") return 0;
  const Value* specials = config.find("special_tokens");
  size_t entries = 0;
  for (const Value& item : config.at("pair").as_array()) {
    const Value* special = item.find("SpecialToken");
    const Value& part = special ? *special : item.at("Sequence");
    if (part.get_int("type_id", 0) == 1) return entries;
    const Value* ids = special && specials ? specials->find(part.get_string("id", "")) : nullptr;
    entries += ids ? ids->at("ids").as_array().size() : 1;
  }
  return 0;
}

}  // namespace

PairFrame make_pair_frame(const Value& config, bool doubled) {
  PairFrame pair;
  const Value* places = placing(config);
  const bool knows = places && (places->get_string("type", "") != "TemplateProcessing" ||
                                places->find("pair") != nullptr);
  if (knows) {
    for (const Frame& part : process(config, {{kTextPlace}, {kSecondPlace}}))
      pair.ids.insert(pair.ids.end(), part.begin(), part.end());
    pair.second = second_segment(*places);
    return pair;
  }
  pair.ids = make_frame(config);
  const Frame single = pair.ids;
  size_t place = 0;
  while (place < single.size() && single[place] != kTextPlace) ++place;
  if (doubled && place + 1 < single.size()) pair.ids.push_back(single.back());
  if (!doubled) pair.second = pair.ids.size();
  pair.ids.push_back(kSecondPlace);
  for (size_t i = place + 1; i < single.size(); ++i) pair.ids.push_back(single[i]);
  return pair;
}

std::vector<int32_t> make_frame(const Value& config) {
  Frame frame;
  for (const Frame& part : process(config, {{kTextPlace}}))
    frame.insert(frame.end(), part.begin(), part.end());
  return frame;
}

}  // namespace tokamak
