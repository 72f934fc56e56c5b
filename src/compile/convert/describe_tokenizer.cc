// Vocabularies as GGUF metadata and as tokenizer.json. tokenizer_gguf.cc and tokenizer_json.cc read
// what this writes.
#include <algorithm>
#include <map>
#include <unordered_map>

#include "base/error.h"
#include "base/json.h"
#include "compile/convert/describe.h"
#include "compile/import/tokenizer_gguf_pre.h"

namespace tokamak {
namespace {

enum GgufTokenType : int32_t {
  kTokenNormal = 1,
  kTokenUnknown = 2,
  kTokenControl = 3,
  kTokenUser = 4,
  kTokenUnused = 5,
  kTokenByte = 6
};

bool is_type(const Value& v, std::string_view type) { return v.get_string("type", "") == type; }

// The parts of a pre-tokenizer, normalizer or decoder: those of a Sequence, or itself.
std::vector<const Value*> parts_of(const Value& v, std::string_view list) {
  std::vector<const Value*> out;
  if (!v.is_object()) return out;
  if (!is_type(v, "Sequence")) return {&v};
  if (const Value* parts = v.find(list); parts && parts->is_array())
    for (const Value& p : parts->as_array()) out.push_back(&p);
  return out;
}

// The word splitting of byte-level BPE as GGUF lists it; false: not byte-level BPE, or a step that
// GGUF has no name for.
bool byte_level_words(const TokenizerSpec& spec, GgufPre& pre) {
  bool bytes = false;
  for (const Value* p : parts_of(spec.pre_tokenizer, "pretokenizers")) {
    if (is_type(*p, "ByteLevel")) {
      bytes = true;
      if (p->get_bool("add_prefix_space", true)) return false;
      if (p->get_bool("use_regex", true)) pre.regexes.emplace_back(kGgufGpt2Words);
    } else if (is_type(*p, "Digits")) {
      pre.regexes.emplace_back(p->get_bool("individual_digits", false) ? R"(\p{N})" : R"(\p{N}+)");
    } else if (is_type(*p, "Split") && p->get_string("behavior", "") == "Isolated") {
      const Value* regex = p->at("pattern").find("Regex");
      if (!regex) return false;
      pre.regexes.push_back(regex->as_string());
    } else {
      return false;
    }
  }
  for (const Value* n : parts_of(spec.normalizer, "normalizers")) {
    if (!is_type(*n, "NFC")) return false;
    pre.normalizer = "NFC";
  }
  pre.ignore_merges = spec.ignore_merges;
  return bytes;
}

// SentencePiece text: does it begin with a space that the text does not have?
bool prepends_space(const TokenizerSpec& spec) {
  for (const Value* n : parts_of(spec.normalizer, "normalizers"))
    if (is_type(*n, "Prepend")) return true;
  for (const Value* p : parts_of(spec.pre_tokenizer, "pretokenizers"))
    if (is_type(*p, "Metaspace"))
      return p->get_string("prepend_scheme", "always") != "never" &&
             p->get_bool("add_prefix_space", true);
  return false;
}

// BERT's words: GGUF has no other way to normalise and split for WordPiece.
bool is_bert(const TokenizerSpec& spec) {
  return spec.model == TokenizerModel::kWordPiece && spec.continuing_prefix == "##" &&
         is_type(spec.normalizer, "BertNormalizer") &&
         is_type(spec.pre_tokenizer, "BertPreTokenizer");
}

// Words begin with U+2581, continuations lose their "##", names in brackets stay.
std::string bert_piece(const std::string& piece) {
  if (piece.starts_with('[') && piece.ends_with(']')) return piece;
  return piece.starts_with("##") ? piece.substr(2) : "\u2581" + piece;
}

void write_bert_normalizer(const TokenizerSpec& spec, GgufWriter& out) {
  bool lower = spec.normalizer.get_bool("lowercase", true);
  const Value* accents = spec.normalizer.find("strip_accents");
  out.set_bool("tokenizer.ggml.normalizer.lowercase", lower);
  out.set_bool("tokenizer.ggml.normalizer.strip_accents",
               accents && accents->is_bool() ? accents->as_bool() : lower);
}

bool is_byte_piece(std::string_view piece) {
  return piece.size() == 6 && piece.starts_with("<0x") && piece.ends_with('>');
}

// Merges in order become scores: the piece that is merged first has the best.
std::vector<float> scores_of(const TokenizerSpec& spec, size_t tokens) {
  std::vector<float> scores(tokens, 0.0f);
  if (!spec.scores.empty()) {
    std::copy_n(spec.scores.begin(), std::min(tokens, spec.scores.size()), scores.begin());
    return scores;
  }
  std::vector<bool> seen(tokens);
  float next = 0;
  for (const BpeMerge& m : spec.merges) {
    auto at = static_cast<size_t>(m.result);
    if (at >= tokens || seen[at]) continue;
    seen[at] = true;
    scores[at] = next--;
  }
  for (size_t i = 0; i < tokens; ++i)
    if (!seen[i] && i < spec.pieces.size() && !is_byte_piece(spec.pieces[i])) scores[i] = next--;
  return scores;
}

void write_ids(const TokenizerSpec& spec, GgufWriter& out) {
  const std::pair<const char*, int32_t> ids[] = {
      {"bos", spec.bos_id},     {"eos", spec.eos_id},     {"eot", spec.eot_id},
      {"unknown", spec.unk_id}, {"padding", spec.pad_id}, {"separator", spec.sep_id},
      {"cls", spec.cls_id},     {"mask", spec.mask_id}};
  for (const auto& [name, id] : ids)
    if (id >= 0)
      out.set_u32(fmt::format("tokenizer.ggml.{}_token_id", name), static_cast<uint32_t>(id));
  if (!spec.eog_ids.empty()) out.set_i32s("tokenizer.ggml.eog_token_ids", spec.eog_ids);
  out.set_bool("tokenizer.ggml.add_bos_token", spec.add_bos);
  out.set_bool("tokenizer.ggml.add_eos_token", spec.add_eos);
  if (!spec.chat_template.empty()) out.set_string("tokenizer.chat_template", spec.chat_template);
  std::vector<std::string> names;
  for (const auto& [name, text] : spec.named_templates) {
    out.set_string("tokenizer.chat_template." + name, text);
    names.push_back(name);
  }
  if (!names.empty()) out.set_strings("tokenizer.chat_templates", names);
}

}  // namespace

void describe_gguf_tokenizer(const TokenizerSpec& spec, int64_t count, GgufWriter& out) {
  GgufPre pre;
  bool byte_level = spec.model == TokenizerModel::kBpe && byte_level_words(spec, pre);
  bool sentencepiece = spec.model == TokenizerModel::kBpe && !byte_level && spec.byte_fallback;
  std::string name = byte_level ? gguf_pre_name(pre) : "";
  if (byte_level && name.empty())
    fail(ErrorCode::kUnsupported, "GGUF has no name for how tokenizer.json splits words ({})",
         dump_json(spec.pre_tokenizer));
  bool bert = is_bert(spec);
  if (!byte_level && !sentencepiece && !bert && spec.model != TokenizerModel::kUnigram)
    fail(ErrorCode::kUnsupported,
         "GGUF has no form for this tokenizer: only byte-level BPE, SentencePiece BPE, unigram and "
         "BERT's vocabularies can be converted");
  out.set_string("tokenizer.ggml.model", byte_level      ? "gpt2"
                                         : sentencepiece ? "llama"
                                         : bert          ? "bert"
                                                         : "t5");
  if (byte_level) out.set_string("tokenizer.ggml.pre", name);
  auto tokens = static_cast<size_t>(std::max(count, spec.vocab_size()));
  std::vector<std::string> pieces(tokens);
  std::vector<int32_t> types(tokens, kTokenNormal);
  for (size_t i = 0; i < tokens; ++i) {
    pieces[i] = spec.piece(static_cast<int32_t>(i));
    if (pieces[i].empty()) {
      pieces[i] = fmt::format("[PAD{}]", i);
      types[i] = kTokenUnused;
    } else if (!byte_level && is_byte_piece(pieces[i])) {
      types[i] = kTokenByte;
    }
  }
  for (const AddedToken& t : spec.added_tokens)
    types[static_cast<size_t>(t.id)] = t.special ? kTokenControl : kTokenUser;
  for (size_t i = 0; bert && i < tokens; ++i)
    if (types[i] == kTokenNormal) pieces[i] = bert_piece(pieces[i]);
  if (!byte_level && !bert && spec.unk_id >= 0)
    types[static_cast<size_t>(spec.unk_id)] = kTokenUnknown;
  out.set_strings("tokenizer.ggml.tokens", pieces);
  out.set_i32s("tokenizer.ggml.token_type", types);
  if (byte_level) {
    std::vector<std::string> lines;
    for (const BpeMerge& m : spec.merges)
      lines.push_back(fmt::format("{} {}", spec.piece(m.left), spec.piece(m.right)));
    out.set_strings("tokenizer.ggml.merges", lines);
  } else if (bert) {
    write_bert_normalizer(spec, out);
    TokenizerSpec framed = spec;  // GGUF's names for the tokens around a text
    if (framed.bos_id < 0) framed.bos_id = spec.cls_id;
    if (framed.eos_id < 0) framed.eos_id = spec.sep_id;
    framed.add_bos = true;
    return write_ids(framed, out);
  } else {
    out.set_floats("tokenizer.ggml.scores", scores_of(spec, tokens));
    out.set_bool("tokenizer.ggml.add_space_prefix", prepends_space(spec));
  }
  write_ids(spec, out);
}

namespace {

// SentencePiece scores become merges: every way to make a piece of two, the best-scored first.
Value::Array merges_of_scores(const TokenizerSpec& spec) {
  std::unordered_map<std::string_view, int32_t> ids;
  for (size_t i = 0; i < spec.pieces.size(); ++i)
    if (!spec.pieces[i].empty() &&
        !std::binary_search(spec.unmergeable.begin(), spec.unmergeable.end(),
                            static_cast<int32_t>(i)))
      ids[spec.pieces[i]] = static_cast<int32_t>(i);
  struct Merge {
    double score;
    int32_t left, right;
  };
  std::vector<Merge> merges;
  for (const auto& [piece, id] : ids)
    for (size_t at = 1; at < piece.size(); ++at) {
      auto left = ids.find(piece.substr(0, at)), right = ids.find(piece.substr(at));
      if (left != ids.end() && right != ids.end())
        merges.push_back({spec.scores[static_cast<size_t>(id)], left->second, right->second});
    }
  std::sort(merges.begin(), merges.end(), [](const Merge& a, const Merge& b) {
    if (a.score != b.score) return a.score > b.score;
    return std::pair(a.left, a.right) < std::pair(b.left, b.right);
  });
  Value::Array out;
  for (const Merge& m : merges)
    out.push_back(Value::Array{std::string(spec.piece(m.left)), std::string(spec.piece(m.right))});
  return out;
}

Value model_json(const TokenizerSpec& spec) {
  Value out = Value::object();
  Value unknown = spec.unk_id >= 0 ? Value(std::string(spec.piece(spec.unk_id))) : Value();
  if (spec.model == TokenizerModel::kUnigram) {
    Value::Array vocab;
    for (size_t i = 0; i < spec.pieces.size(); ++i)
      vocab.push_back(Value::Array{spec.pieces[i], spec.scores[i]});
    return Value::Object{{"type", "Unigram"},
                         {"unk_id", spec.unk_id >= 0 ? Value(int64_t{spec.unk_id}) : Value()},
                         {"vocab", std::move(vocab)},
                         {"byte_fallback", spec.byte_fallback}};
  }
  Value::Object vocab;
  for (size_t i = 0; i < spec.pieces.size(); ++i)
    if (!spec.pieces[i].empty()) vocab.emplace_back(spec.pieces[i], static_cast<int64_t>(i));
  if (spec.model != TokenizerModel::kBpe) {
    bool pieces = spec.model == TokenizerModel::kWordPiece;
    return Value::Object{{"type", pieces ? "WordPiece" : "WordLevel"},
                         {"unk_token", std::move(unknown)},
                         {"continuing_subword_prefix", spec.continuing_prefix},
                         {"max_input_chars_per_word", spec.max_word_chars},
                         {"vocab", std::move(vocab)}};
  }
  Value::Array merges;
  if (spec.merge_by_score) {
    merges = merges_of_scores(spec);
  } else {
    for (const BpeMerge& m : spec.merges)
      merges.push_back(
          Value::Array{std::string(spec.piece(m.left)), std::string(spec.piece(m.right))});
  }
  auto or_null = [](const std::string& s) { return s.empty() ? Value() : Value(s); };
  return Value::Object{{"type", "BPE"},
                       {"dropout", Value()},
                       {"unk_token", std::move(unknown)},
                       {"continuing_subword_prefix", or_null(spec.continuing_prefix)},
                       {"end_of_word_suffix", or_null(spec.word_suffix)},
                       {"fuse_unk", spec.fuse_unk || spec.merge_by_score},
                       {"byte_fallback", spec.byte_fallback},
                       {"ignore_merges", spec.ignore_merges},
                       {"vocab", std::move(vocab)},
                       {"merges", std::move(merges)}};
}

// The fields that other readers of tokenizer.json insist on.
Value completed(Value part) {
  if (!part.is_object()) return part;
  if (is_type(part, "ByteLevel"))
    for (const char* field : {"add_prefix_space", "trim_offsets", "use_regex"})
      if (!part.has(field)) part.set(field, true);
  for (const char* list : {"pretokenizers", "normalizers", "decoders", "processors"})
    if (Value* parts = part.find(list); parts && parts->is_array())
      for (Value& p : parts->as_array()) p = completed(std::move(p));
  return part;
}

// A frame read from GGUF names its tokens "bos" and "eos"; tokenizer.json names them by their text
// and has a form for pairs.
Value frame_json(const TokenizerSpec& spec) {
  if (!is_type(spec.post_processor, "TemplateProcessing") || spec.post_processor.has("pair"))
    return spec.post_processor;
  Value::Array single, second;
  Value::Object specials;
  auto special = [&](int32_t id, Value::Array& list, int64_t type) {
    std::string text(spec.piece(id));
    list.push_back(Value::Object{{"SpecialToken", Value::Object{{"id", text}, {"type_id", type}}}});
    for (const auto& known : specials)
      if (known.first == text) return;
    specials.emplace_back(text, Value::Object{{"id", text},
                                              {"ids", Value::Array{int64_t{id}}},
                                              {"tokens", Value::Array{text}}});
  };
  const Value& ids = spec.post_processor.at("special_tokens");
  for (const Value& part : spec.post_processor.at("single").as_array()) {
    const Value* token = part.find("SpecialToken");
    if (!token) {
      single.push_back(part);
      second.push_back(
          Value::Object{{"Sequence", Value::Object{{"id", "B"}, {"type_id", int64_t{1}}}}});
      continue;
    }
    auto id = static_cast<int32_t>(
        ids.at(token->at("id").as_string()).at("ids").as_array().at(0).as_int());
    special(id, single, 0);
    special(id, second, 1);
  }
  Value::Array pair = single;
  pair.insert(pair.end(), second.begin(), second.end());
  return Value::Object{{"type", "TemplateProcessing"},
                       {"single", std::move(single)},
                       {"pair", std::move(pair)},
                       {"special_tokens", std::move(specials)}};
}

}  // namespace

TokenizerJson tokenizer_json(const TokenizerSpec& spec) {
  Value::Array added;
  for (const AddedToken& t : spec.added_tokens)
    added.push_back(Value::Object{{"id", int64_t{t.id}},
                                  {"content", t.content},
                                  {"single_word", t.single_word},
                                  {"lstrip", t.lstrip},
                                  {"rstrip", t.rstrip},
                                  {"normalized", t.normalized},
                                  {"special", t.special}});
  TokenizerJson out;
  out.tokenizer = Value::Object{{"version", "1.0"},
                                {"truncation", Value()},
                                {"padding", Value()},
                                {"added_tokens", std::move(added)},
                                {"normalizer", completed(spec.normalizer)},
                                {"pre_tokenizer", completed(spec.pre_tokenizer)},
                                {"post_processor", completed(frame_json(spec))},
                                {"decoder", completed(spec.decoder)},
                                {"model", model_json(spec)}};
  out.config = Value::Object{{"tokenizer_class", "PreTrainedTokenizerFast"},
                             {"clean_up_tokenization_spaces", false},
                             {"add_bos_token", spec.add_bos},
                             {"add_eos_token", spec.add_eos}};
  const std::pair<const char*, int32_t> names[] = {
      {"bos_token", spec.bos_id},  {"eos_token", spec.eos_id}, {"unk_token", spec.unk_id},
      {"pad_token", spec.pad_id},  {"sep_token", spec.sep_id}, {"cls_token", spec.cls_id},
      {"mask_token", spec.mask_id}};
  for (const auto& [name, id] : names)
    if (id >= 0) out.config.set(name, std::string(spec.piece(id)));
  if (spec.named_templates.empty()) {
    if (!spec.chat_template.empty()) out.config.set("chat_template", spec.chat_template);
  } else {
    Value::Array list;
    if (!spec.chat_template.empty())
      list.push_back(Value::Object{{"name", "default"}, {"template", spec.chat_template}});
    for (const auto& [name, text] : spec.named_templates)
      list.push_back(Value::Object{{"name", name}, {"template", text}});
    out.config.set("chat_template", std::move(list));
  }
  out.generation = Value::object();
  if (spec.bos_id >= 0) out.generation.set("bos_token_id", int64_t{spec.bos_id});
  if (!spec.eog_ids.empty())
    out.generation.set("eos_token_id",
                       Value(Value::Array(spec.eog_ids.begin(), spec.eog_ids.end())));
  return out;
}

}  // namespace tokamak
