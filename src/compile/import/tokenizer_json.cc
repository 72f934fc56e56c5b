#include "compile/import/tokenizer_json.h"

#include <algorithm>
#include <unordered_map>

#include "base/error.h"
#include "base/json.h"
#include "compile/import/tokenizer_ends.h"

namespace tokamak {
namespace {

constexpr int64_t kMaxId = int64_t{1} << 24;
constexpr int32_t kMissingUnk = -2;  // an unk_id: the model names an unknown token that is missing

class JsonTokenizerImporter {
 public:
  explicit JsonTokenizerImporter(const TokenizerFiles& files) {
    root_ = parse_json(files.tokenizer_json, "tokenizer.json");
    if (!files.tokenizer_config_json.empty())
      config_ = parse_json(files.tokenizer_config_json, "tokenizer_config.json");
    if (!files.generation_config_json.empty())
      generation_ = parse_json(files.generation_config_json, "generation_config.json");
    if (!files.special_tokens_map_json.empty())
      specials_ = parse_json(files.special_tokens_map_json, "special_tokens_map.json");
    if (!files.chat_template_json.empty())
      legacy_ = parse_json(files.chat_template_json, "chat_template.json");
    template_ = files.chat_template_jinja;
    named_ = files.named_templates;
  }

  TokenizerSpec run() {
    if (!root_.is_object() || !root_.has("model"))
      fail(ErrorCode::kInvalidArgument, "tokenizer.json: no \"model\"");
    part("tokenizer.json: model", [&] { model(); });
    for (auto [name, field] : {std::pair{"normalizer", &spec_.normalizer},
                               {"pre_tokenizer", &spec_.pre_tokenizer},
                               {"post_processor", &spec_.post_processor},
                               {"decoder", &spec_.decoder}})
      if (const Value* v = root_.find(name)) *field = *v;
    part("tokenizer.json: added_tokens", [&] { added_tokens(); });
    part("the tokenizer's settings", [&] {
      special_ids();
      frame_flags();
      end_of_generation();
    });
    part("the chat templates", [&] { templates(); });
    return std::move(spec_);
  }

 private:
  // Errors name the file and what is wrong with which part of it.
  template <class F>
  static void part(std::string_view name, const F& read) {
    try {
      read();
    } catch (const Error& e) {
      if (std::string_view(e.what()).starts_with("tokenizer")) throw;
      fail(e.code(), "{}: {}", name, e.what());
    }
  }

  void put_piece(int64_t id, std::string_view piece) {
    if (id < 0 || id >= kMaxId)
      fail(ErrorCode::kInvalidArgument, "tokenizer.json: piece \"{}\" has id {}", piece, id);
    if (static_cast<size_t>(id) >= spec_.pieces.size()) {
      // Ids come in any order, but never far beyond the number of entries.
      if (static_cast<size_t>(id) >= piece_limit_)
        fail(ErrorCode::kInvalidArgument,
             "tokenizer.json: piece \"{}\" has id {}, the vocabulary has {} entries", piece, id,
             piece_count_);
      spec_.pieces.resize(static_cast<size_t>(id) + 1);
    }
    spec_.pieces[id] = piece;
  }

  void vocabulary(const Value& vocab) {
    piece_count_ = vocab.size();
    piece_limit_ = piece_count_ * 4 + (size_t{1} << 20);
    spec_.pieces.reserve(piece_count_);
    for (const auto& [piece, id] : vocab.as_object()) put_piece(id.as_int(), piece);
  }

  int32_t find_piece(std::string_view piece) {
    if (ids_.empty()) {
      ids_.reserve(spec_.pieces.size());
      for (size_t i = 0; i < spec_.pieces.size(); ++i)
        if (!spec_.pieces[i].empty()) ids_[spec_.pieces[i]] = static_cast<int32_t>(i);
    }
    const auto found = ids_.find(piece);
    return found == ids_.end() ? -1 : found->second;
  }

  void model() {
    const Value& m = root_.at("model");
    std::string type = m.get_string("type", "");
    if (type.empty())
      type = m.has("merges")                               ? "BPE"
             : m.find("vocab") && m.at("vocab").is_array() ? "Unigram"
                                                           : "WordPiece";
    if (type == "BPE") {
      bpe(m);
    } else if (type == "Unigram") {
      unigram(m);
    } else if (type == "WordPiece" || type == "WordLevel") {
      spec_.model = type == "WordPiece" ? TokenizerModel::kWordPiece : TokenizerModel::kWordLevel;
      vocabulary(m.at("vocab"));
      spec_.unk_id = find_piece(m.get_string("unk_token", type == "WordPiece" ? "[UNK]" : "<unk>"));
      spec_.continuing_prefix = m.get_string("continuing_subword_prefix", "##");
      spec_.max_word_chars = m.get_int("max_input_chars_per_word", 100);
    } else {
      fail(ErrorCode::kUnsupported, "tokenizer.json: model \"{}\" is not supported", type);
    }
  }

  void bpe(const Value& m) {
    spec_.model = TokenizerModel::kBpe;
    vocabulary(m.at("vocab"));
    spec_.continuing_prefix = m.get_string("continuing_subword_prefix", "");
    spec_.word_suffix = m.get_string("end_of_word_suffix", "");
    spec_.byte_fallback = m.get_bool("byte_fallback", false);
    spec_.ignore_merges = m.get_bool("ignore_merges", false);
    spec_.fuse_unk = m.get_bool("fuse_unk", false);
    if (const Value* unk = m.find("unk_token"); unk && unk->is_string()) {
      spec_.unk_id = find_piece(unk->as_string());
      if (spec_.unk_id < 0) unk_name_ = unk->as_string();
    }
    const Value::Array& merges = m.at("merges").as_array();
    spec_.merges.reserve(merges.size());
    std::string whole;
    for (const Value& entry : merges) {
      std::string_view left, right;
      if (entry.is_array()) {
        if (entry.size() != 2)
          fail(ErrorCode::kInvalidArgument, "tokenizer.json: a merge has {} parts", entry.size());
        left = entry.as_array()[0].as_string();
        right = entry.as_array()[1].as_string();
      } else {
        const std::string_view line = entry.as_string();
        const size_t space = line.find(' ');
        if (space == std::string_view::npos)
          fail(ErrorCode::kInvalidArgument, "tokenizer.json: the merge \"{}\" has no space", line);
        left = line.substr(0, space);
        right = line.substr(space + 1);
      }
      whole.assign(left).append(
          right.substr(std::min(right.size(), spec_.continuing_prefix.size())));
      const BpeMerge merge{find_piece(left), find_piece(right), find_piece(whole)};
      if (merge.left < 0 || merge.right < 0 || merge.result < 0)
        fail(ErrorCode::kInvalidArgument,
             "tokenizer.json: the merge \"{}\" + \"{}\" is not in the vocabulary", left, right);
      spec_.merges.push_back(merge);
    }
  }

  void unigram(const Value& m) {
    spec_.model = TokenizerModel::kUnigram;
    for (const Value& entry : m.at("vocab").as_array()) {
      if (entry.as_array().size() != 2)
        fail(ErrorCode::kInvalidArgument, "tokenizer.json: a unigram piece is not a pair");
      spec_.pieces.push_back(entry.as_array()[0].as_string());
      spec_.scores.push_back(entry.as_array()[1].as_double());
    }
    spec_.unk_id = static_cast<int32_t>(m.get_int("unk_id", -1));
    if (spec_.unk_id >= static_cast<int64_t>(spec_.pieces.size()))
      fail(ErrorCode::kInvalidArgument, "tokenizer.json: unk_id is {}, but there are {} pieces",
           spec_.unk_id, spec_.pieces.size());
    spec_.byte_fallback = m.get_bool("byte_fallback", false);
    spec_.fuse_unk = m.get_bool("fuse_unk", true);
  }

  // The id in the model's vocabulary wins over the one listed with the added token.
  void add(AddedToken token) {
    if (token.content.empty()) return;
    if (const int32_t id = find_piece(token.content); id >= 0) token.id = id;
    if (token.id < 0 || token.id >= kMaxId)
      fail(ErrorCode::kInvalidArgument, "tokenizer.json: added token \"{}\" has id {}",
           token.content, token.id);
    const auto [place, fresh] = added_.try_emplace(token.content, spec_.added_tokens.size());
    if (fresh) {
      spec_.added_tokens.push_back(std::move(token));
    } else {
      spec_.added_tokens[place->second] = std::move(token);
    }
  }

  static AddedToken read_added(const Value& v, int64_t id) {
    AddedToken t{static_cast<int32_t>(std::clamp<int64_t>(id, -1, kMaxId)),
                 v.at("content").as_string()};
    t.special = v.get_bool("special", false);
    t.lstrip = v.get_bool("lstrip", false);
    t.rstrip = v.get_bool("rstrip", false);
    t.single_word = v.get_bool("single_word", false);
    t.normalized = v.get_bool("normalized", !t.special);
    return t;
  }

  void added_tokens() {
    if (const Value* list = root_.find("added_tokens"); list && list->is_array())
      for (const Value& v : list->as_array()) add(read_added(v, v.at("id").as_int()));
    // It must be in the model's own vocabulary; otherwise encoding fails where it is needed.
    if (!unk_name_.empty() && spec_.unk_id < 0) spec_.unk_id = kMissingUnk;
  }

  int32_t find_token(std::string_view content) {
    const auto found = added_.find(std::string(content));
    return found != added_.end() ? spec_.added_tokens[found->second].id : find_piece(content);
  }

  // A token is written as a string or as an object with "content".
  int32_t named(const char* name) {
    for (const Value* source : {&config_, &specials_}) {
      const Value* v = source->find(name);
      if (!v) continue;
      if (v->is_string()) return find_token(v->as_string());
      if (const Value* content = v->find("content"); content && content->is_string())
        return find_token(content->as_string());
    }
    return -1;
  }

  void special_ids() {
    spec_.bos_id = named("bos_token");
    spec_.eos_id = named("eos_token");
    spec_.pad_id = named("pad_token");
    spec_.sep_id = named("sep_token");
    spec_.cls_id = named("cls_token");
    spec_.mask_id = named("mask_token");
    if (spec_.unk_id < 0 && spec_.model != TokenizerModel::kBpe) spec_.unk_id = named("unk_token");
    if (spec_.bos_id < 0 && generation_.find("bos_token_id") &&
        generation_.at("bos_token_id").is_int())
      spec_.bos_id = static_cast<int32_t>(generation_.at("bos_token_id").as_int());
  }

  void frame_flags() {
    const std::string text = spec_.post_processor.is_null() ? "" : dump_json(spec_.post_processor);
    const auto mentioned = [&](int32_t id) {
      if (id < 0) return false;
      const std::string piece(spec_.piece(id));
      return text.find(dump_json(Value(piece))) != std::string::npos;
    };
    spec_.add_bos = mentioned(spec_.bos_id);
    spec_.add_eos = mentioned(spec_.eos_id) && spec_.eos_id != spec_.bos_id;
  }

  void end_of_generation() {
    std::vector<int32_t>& eog = spec_.eog_ids;
    if (const Value* ids = generation_.find("eos_token_id")) {
      if (ids->is_int()) eog.push_back(static_cast<int32_t>(ids->as_int()));
      if (ids->is_array())
        for (const Value& id : ids->as_array())
          if (id.is_int()) eog.push_back(static_cast<int32_t>(id.as_int()));
    }
    if (spec_.eos_id >= 0) eog.push_back(spec_.eos_id);
    if (spec_.eos_id < 0 && !eog.empty()) spec_.eos_id = eog[0];
    for (const AddedToken& t : spec_.added_tokens) {
      if (!t.special || !ends_generation(t.content)) continue;
      eog.push_back(t.id);
      if (spec_.eot_id < 0 && t.id != spec_.eos_id) spec_.eot_id = t.id;
    }
    finish_eog_ids(spec_);
  }

  // A template or a list of named ones, as in tokenizer_config.json and chat_template.json.
  void take_templates(const Value& t) {
    if (t.is_string()) spec_.chat_template = t.as_string();
    if (t.is_object())  // {"default": "...", "tool_use": "..."}
      for (const auto& [name, text] : t.as_object())
        if (text.is_string()) take_template(name, text.as_string());
    if (t.is_array())
      for (const Value& entry : t.as_array())
        if (entry.is_object())
          take_template(entry.get_string("name", ""), entry.get_string("template", ""));
  }
  void take_template(const std::string& name, std::string text) {
    if (name == "default") {
      spec_.chat_template = std::move(text);
      return;
    }
    for (auto& [known, old] : spec_.named_templates)
      if (known == name) {
        old = std::move(text);
        return;
      }
    spec_.named_templates.emplace_back(name, std::move(text));
  }

  // Separate files override tokenizer_config.json; chat_template.json is the oldest location.
  void templates() {
    if (template_.empty() && named_.empty()) {
      if (const Value* t = legacy_.find("chat_template")) take_templates(*t);
      if (const Value* t = config_.find("chat_template")) take_templates(*t);
    }
    if (!template_.empty()) spec_.chat_template = std::string(template_);
    for (const auto& [name, text] : named_) take_template(name, text);
    if (spec_.chat_template.empty() && spec_.named_templates.size() == 1)
      spec_.chat_template = spec_.named_templates[0].second;
  }

  Value root_, config_, generation_, specials_, legacy_;
  std::vector<std::pair<std::string, std::string>> named_;
  std::string_view template_;
  TokenizerSpec spec_;
  std::unordered_map<std::string_view, int32_t> ids_;
  std::unordered_map<std::string, size_t> added_;  // content -> index in spec_.added_tokens
  size_t piece_count_ = 0, piece_limit_ = 0;
  std::string unk_name_;
};

}  // namespace

TokenizerSpec tokenizer_from_json(const TokenizerFiles& files) {
  return JsonTokenizerImporter(files).run();
}

}  // namespace tokamak
