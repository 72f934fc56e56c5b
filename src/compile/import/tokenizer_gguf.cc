#include "compile/import/tokenizer_gguf.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "base/error.h"
#include "compile/import/tokenizer_ends.h"
#include "compile/import/tokenizer_gguf_pre.h"

namespace tokamak {
namespace {

constexpr std::string_view kMetaspace = "\xE2\x96\x81";
enum TokenType : int64_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6
};

Value sequence(const char* list, Value::Array parts) {
  Value v = Value::object();
  v.set("type", "Sequence");
  v.set(list, std::move(parts));
  return v;
}
Value replace(std::string_view from, std::string_view to) {
  Value v = Value::object();
  v.set("type", "Replace");
  v.set("pattern", Value::Object{{"String", from}});
  v.set("content", to);
  return v;
}
Value replace_regex(std::string_view from, std::string_view to) {
  Value v = replace("", to);
  v.set("pattern", Value::Object{{"Regex", from}});
  return v;
}
Value prepend(std::string_view text) {
  return Value::Object{{"type", "Prepend"}, {"prepend", text}};
}
Value of_type(const char* type) { return Value::Object{{"type", type}}; }

class GgufTokenizerImporter {
 public:
  explicit GgufTokenizerImporter(const GgufFile& file) : file_(file) {}

  TokenizerSpec run() {
    const std::string model = file_.get_string("tokenizer.ggml.model", "");
    if (model.empty() || model == "none" || model == "no_vocab")
      fail(ErrorCode::kNotFound, "{}: no vocabulary (tokenizer.ggml.model)", file_.name());
    pre_name_ = file_.get_string("tokenizer.ggml.pre", "");
    read_tokens();
    read_ids(model);
    if (model == "gpt2" && (pre_name_ == "gemma4" || pre_name_ == "granite-embed-multi-311m" ||
                            pre_name_ == "sarvam-moe")) {
      add_bos_ = pre_name_ != "sarvam-moe";
      character_bpe();
    } else if (model == "gemma4") {
      add_bos_ = true;
      character_bpe();
    } else if (model == "gpt2" && pre_name_ == "whitespace") {
      whitespace_bpe(true);
    } else if (model == "gpt2") {
      byte_level_bpe();
    } else if (model == "whitespace") {
      whitespace_bpe(false);
    } else if (model == "llama") {
      sentencepiece_bpe();
    } else if (model == "t5") {
      unigram();
    } else if (model == "bert") {
      word_piece();
    } else if (model == "rwkv") {
      longest_match();
    } else {
      fail(
          ErrorCode::kUnsupported,
          "{}: tokenizer model \"{}\" is not supported; use the model's folder with tokenizer.json",
          file_.name(), model);
    }
    added_tokens();
    frame();
    end_of_generation();
    templates();
    return std::move(spec_);
  }

 private:
  void read_tokens() {
    const std::vector<std::string_view> tokens = file_.strings("tokenizer.ggml.tokens");
    if (tokens.empty())
      fail(ErrorCode::kNotFound, "{}: tokenizer.ggml.tokens is empty", file_.name());
    spec_.pieces.assign(tokens.begin(), tokens.end());
    types_ = file_.ints("tokenizer.ggml.token_type");
    if (types_.empty()) types_.assign(tokens.size(), kNormal);
    if (types_.size() < tokens.size())
      fail(ErrorCode::kCorrupt, "{}: tokenizer.ggml.token_type has {} entries for {} tokens",
           file_.name(), types_.size(), tokens.size());
    // Some converters write these as normal tokens; their text shows that they are control tokens.
    for (size_t i = 0; i < tokens.size(); ++i)
      if (types_[i] != kControl && (ends_generation(tokens[i]) || fills_in_the_middle(tokens[i])))
        types_[i] = kControl;
  }

  std::vector<double> scores() const {
    const std::vector<float> read = file_.floats("tokenizer.ggml.scores");
    if (read.size() < spec_.pieces.size())
      fail(ErrorCode::kCorrupt, "{}: tokenizer.ggml.scores has {} entries for {} tokens",
           file_.name(), read.size(), spec_.pieces.size());
    std::vector<double> out(read.begin(),
                            read.begin() + static_cast<ptrdiff_t>(spec_.pieces.size()));
    for (double& s : out)
      if (!std::isfinite(s)) s = -1e10;
    return out;
  }

  int32_t id_of(const char* name, int32_t fallback) const {
    const int64_t id = file_.get_int(std::string("tokenizer.ggml.") + name + "_token_id", fallback);
    return id >= 0 && id < static_cast<int64_t>(spec_.pieces.size()) ? static_cast<int32_t>(id)
                                                                     : -1;
  }

  void read_ids(const std::string& model) {
    const bool spm = model == "llama", bert = model == "bert", t5 = model == "t5";
    spec_.bos_id = id_of("bos", spm ? 1 : bert ? 101 : -1);
    spec_.eos_id = id_of("eos", spm ? 2 : t5 ? 1 : -1);
    spec_.unk_id = id_of("unknown", spm ? 0 : bert ? 100 : t5 ? 2 : -1);
    spec_.pad_id = id_of("padding", bert || t5 ? 0 : -1);
    spec_.sep_id = id_of("separator", id_of("seperator", bert ? 102 : -1));
    spec_.cls_id = id_of("cls", bert ? spec_.bos_id : -1);
    spec_.mask_id = id_of("mask", bert ? 103 : -1);
    spec_.eot_id = id_of("eot", -1);
    if (spm || bert) add_bos_ = true;
    if (t5) add_eos_ = true;
    add_sep_ = bert;
  }

  std::vector<BpeMerge> read_merges() const {
    std::unordered_map<std::string_view, int32_t> ids;
    ids.reserve(spec_.pieces.size());
    for (size_t i = 0; i < spec_.pieces.size(); ++i) ids[spec_.pieces[i]] = static_cast<int32_t>(i);
    std::vector<BpeMerge> merges;
    std::string whole;
    std::unordered_map<uint64_t, bool> seen;
    const std::vector<std::string_view> lines = file_.strings("tokenizer.ggml.merges");
    merges.reserve(lines.size());
    for (std::string_view line : lines) {
      const size_t space = line.find(' ', 1);
      if (space == std::string_view::npos) continue;
      whole.assign(line.substr(0, space)).append(line.substr(space + 1));
      const auto left = ids.find(line.substr(0, space)), right = ids.find(line.substr(space + 1));
      const auto result = ids.find(whole);
      // A merge whose parts are not tokens can never apply.
      if (left == ids.end() || right == ids.end() || result == ids.end()) continue;
      const uint64_t pair =
          static_cast<uint64_t>(left->second) << 32 | static_cast<uint32_t>(right->second);
      if (!seen.emplace(pair, true).second) continue;  // the first rank wins
      merges.push_back({left->second, right->second, result->second});
    }
    if (merges.empty() && lines.empty())
      fail(ErrorCode::kCorrupt, "{}: tokenizer.ggml.merges is missing", file_.name());
    return merges;
  }

  void byte_level_bpe() {
    const std::string name = pre_name_.empty() ? "default" : pre_name_;
    const std::optional<GgufPre> pre = find_gguf_pre(name);
    if (!pre)
      fail(ErrorCode::kUnsupported,
           "{}: pre-tokenizer \"{}\" (tokenizer.ggml.pre) is not supported; use the model's folder "
           "with tokenizer.json",
           file_.name(), name);
    spec_.model = TokenizerModel::kBpe;
    spec_.merges = read_merges();
    spec_.ignore_merges = pre->ignore_merges;
    Value::Array steps;
    for (const std::string& regex : pre->regexes) steps.push_back(isolate(regex));
    steps.push_back(
        Value::Object{{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}});
    spec_.pre_tokenizer = sequence("pretokenizers", std::move(steps));
    if (!pre->normalizer.empty()) spec_.normalizer = of_type(pre->normalizer.c_str());
    spec_.decoder = of_type("ByteLevel");
    add_bos_ = pre->add_bos;
  }

  // BPE with merges over characters; spaces are U+2581 and unknown characters are byte pieces.
  void character_bpe() {
    spec_.model = TokenizerModel::kBpe;
    spec_.merges = read_merges();
    spec_.byte_fallback = true;
    spec_.normalizer = replace(" ", kMetaspace);
    spec_.pre_tokenizer = isolate(R"([^\n]+|[\n]+)");
    spec_.decoder = metaspace_decoder(false);
  }

  // BPE with merges over the characters of words. White space is dropped, or forms separate words.
  void whitespace_bpe(bool keep_spaces) {
    spec_.model = TokenizerModel::kBpe;
    spec_.merges = read_merges();
    if (file_.get_bool("tokenizer.ggml.normalizer.lowercase", false))
      spec_.normalizer = of_type("Lowercase");
    spec_.pre_tokenizer = keep_spaces ? isolate(R"(\S+)") : of_type("WhitespaceSplit");
    spec_.decoder = of_type("Fuse");
  }

  static Value isolate(std::string_view regex) {
    Value split = of_type("Split");
    split.set("pattern", Value::Object{{"Regex", regex}});
    split.set("behavior", "Isolated");
    split.set("invert", false);
    return split;
  }

  static Value metaspace_decoder(bool strip_first) {
    Value::Array steps = {replace(kMetaspace, " "), of_type("ByteFallback"), of_type("Fuse")};
    if (strip_first)
      steps.push_back(
          Value::Object{{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
    return sequence("decoders", std::move(steps));
  }

  // SentencePiece's normalisation before it looks for pieces.
  Value::Array sentencepiece_normalizers() const {
    Value::Array steps;
    const std::vector<int64_t> charsmap = file_.ints("tokenizer.ggml.precompiled_charsmap");
    if (!charsmap.empty()) {
      Value map = of_type("Precompiled");
      map.set("precompiled_charsmap", base64(charsmap));
      map.set("longest_match", true);
      steps.push_back(std::move(map));
    }
    if (file_.get_bool("tokenizer.ggml.remove_extra_whitespaces", false)) {
      steps.push_back(
          Value::Object{{"type", "Strip"}, {"strip_left", true}, {"strip_right", true}});
      steps.push_back(replace_regex(" {2,}", " "));
    }
    return steps;
  }

  void sentencepiece_bpe() {
    const bool prefix = file_.get_bool("tokenizer.ggml.add_space_prefix", true);
    spec_.model = TokenizerModel::kBpe;
    spec_.merge_by_score = true;
    spec_.byte_fallback = true;
    spec_.scores = scores();
    Value::Array steps = sentencepiece_normalizers();
    if (prefix) steps.push_back(prepend(kMetaspace));
    steps.push_back(replace(" ", kMetaspace));
    spec_.normalizer = sequence("normalizers", std::move(steps));
    spec_.decoder = metaspace_decoder(prefix);
    mark_unmergeable();
  }

  void mark_unmergeable() {
    for (size_t i = 0; i < spec_.pieces.size(); ++i)
      if (types_[i] == kControl || types_[i] == kUnknown || types_[i] == kByte)
        spec_.unmergeable.push_back(static_cast<int32_t>(i));
  }

  void unigram() {
    spec_.model = TokenizerModel::kUnigram;
    spec_.scores = scores();
    spec_.fuse_unk = true;
    for (size_t i = 0; i < spec_.pieces.size(); ++i) {
      if (types_[i] == kByte) spec_.byte_fallback = true;
      if (types_[i] == kUserDefined) spec_.scores[i] = 0;
    }
    mark_unmergeable();
    Value::Array steps = sentencepiece_normalizers();
    const bool prefix = file_.get_bool("tokenizer.ggml.add_space_prefix", true);
    spec_.normalizer = sequence("normalizers", std::move(steps));
    // Splitting before each U+2581 is exact if no piece has one after its first character.
    bool split = true;
    for (const std::string& p : spec_.pieces)
      split = split && p.find(kMetaspace, 1) == std::string::npos;
    spec_.pre_tokenizer = Value::Object{{"type", "Metaspace"},
                                        {"replacement", kMetaspace},
                                        {"prepend_scheme", prefix ? "always" : "never"},
                                        {"split", split}};
    spec_.decoder = metaspace_decoder(prefix);
  }

  static std::string base64(const std::vector<int64_t>& bytes) {
    static constexpr char kDigits[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    std::string out;
    for (size_t i = 0; i < bytes.size(); i += 3) {
      uint32_t bits = 0;
      for (size_t k = 0; k < 3; ++k)
        bits = bits << 8 | (i + k < bytes.size() ? bytes[i + k] & 0xFF : 0);
      for (size_t k = 0; k < 4; ++k)
        out += i + k <= bytes.size() ? kDigits[bits >> (18 - 6 * k) & 63] : '=';
    }
    return out;
  }

  // Words begin with U+2581 in the file, continuations are bare.
  void word_piece() {
    spec_.model = TokenizerModel::kWordPiece;
    spec_.continuing_prefix = "##";
    bool cased = false;
    for (size_t i = 0; i < spec_.pieces.size(); ++i) {
      std::string& piece = spec_.pieces[i];
      if (types_[i] != kNormal && types_[i] != kUnused) continue;
      if (piece.starts_with(kMetaspace)) {
        piece.erase(0, kMetaspace.size());
        cased = cased || (piece.size() > 1 &&
                          piece.find_first_of("ABCDEFGHIJKLMNOPQRSTUVWXYZ") != std::string::npos &&
                          piece.find_first_of("[<") == std::string::npos);
      } else if (!(piece.starts_with('[') && piece.ends_with(']'))) {
        piece.insert(0, "##");
      }
    }
    const bool lower = file_.get_bool("tokenizer.ggml.normalizer.lowercase", !cased);
    Value normalizer = of_type("BertNormalizer");
    normalizer.set("lowercase", lower);
    normalizer.set("strip_accents",
                   file_.get_bool("tokenizer.ggml.normalizer.strip_accents", lower));
    spec_.normalizer = std::move(normalizer);
    spec_.pre_tokenizer = of_type("BertPreTokenizer");
    spec_.decoder = Value::Object{{"type", "WordPiece"}, {"prefix", "##"}, {"cleanup", true}};
  }

  // RWKV's "world" vocabulary: longest match over arbitrary bytes, over the whole text. Pieces use
  // Python's
  // escapes.
  void longest_match() {
    spec_.model = TokenizerModel::kWordPiece;
    spec_.max_word_chars = INT64_MAX;
    for (size_t i = 0; i < spec_.pieces.size(); ++i)
      if (types_[i] == kNormal) spec_.pieces[i] = unescape(spec_.pieces[i]);
    mark_unmergeable();
    spec_.decoder = of_type("Fuse");
  }

  static std::string unescape(std::string_view text) {
    std::string out;
    const auto digit = [&](size_t i) {
      const char c = i < text.size() ? text[i] : 0;
      return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
    };
    for (size_t i = 0; i < text.size(); ++i) {
      if (text[i] != '\\' || i + 1 == text.size()) {
        out += text[i];
        continue;
      }
      const char c = text[++i];
      if (c == 'x' && digit(i + 1) >= 0 && digit(i + 2) >= 0) {
        out += static_cast<char>(digit(i + 1) << 4 | digit(i + 2));
        i += 2;
      } else {
        out += c == 't' ? '\t' : c == 'n' ? '\n' : c == 'r' ? '\r' : c;
      }
    }
    return out;
  }

  void added_tokens() {
    // Phi-3's vocabulary: its control tokens strip the white space after them, which GGUF cannot
    // express. The
    // vocabulary is recognised by its placeholders.
    const bool phi3 = spec_.merge_by_score && std::find(spec_.pieces.begin(), spec_.pieces.end(),
                                                        "<|placeholder1|>") != spec_.pieces.end();
    for (size_t i = 0; i < spec_.pieces.size(); ++i) {
      const int64_t type = types_[i];
      if (type != kControl && type != kUserDefined && type != kUnknown) continue;
      if (spec_.pieces[i].empty()) continue;
      AddedToken token{static_cast<int32_t>(i), spec_.pieces[i]};
      token.special = type != kUserDefined;
      const bool plain =
          token.content == "<s>" || token.content == "<unk>" || token.content == "<|endoftext|>";
      token.rstrip = phi3 && !plain;
      spec_.added_tokens.push_back(std::move(token));
    }
  }

  void frame() {
    spec_.add_bos = file_.get_bool("tokenizer.ggml.add_bos_token", add_bos_) && spec_.bos_id >= 0;
    spec_.add_eos = file_.get_bool("tokenizer.ggml.add_eos_token", add_eos_) && spec_.eos_id >= 0;
    const bool sep = file_.get_bool("tokenizer.ggml.add_sep_token", add_sep_) && spec_.sep_id >= 0;
    Value::Array single;
    Value specials = Value::object();
    const auto special = [&](const char* name, int32_t id) {
      single.push_back(
          Value::Object{{"SpecialToken", Value::Object{{"id", name}, {"type_id", 0}}}});
      specials.set(name, Value::Object{{"id", name}, {"ids", Value::Array{id}}});
    };
    if (spec_.add_bos) special("bos", spec_.bos_id);
    single.push_back(Value::Object{{"Sequence", Value::Object{{"id", "A"}, {"type_id", 0}}}});
    if (sep) {
      special("sep", spec_.sep_id);
    } else if (spec_.add_eos) {
      special("eos", spec_.eos_id);
    }
    if (single.size() == 1) return;
    Value processor = of_type("TemplateProcessing");
    processor.set("single", std::move(single));
    processor.set("special_tokens", std::move(specials));
    spec_.post_processor = std::move(processor);
  }

  // The tokens from the file's keys, and control tokens whose text ends a turn.
  void end_of_generation() {
    std::vector<int32_t>& eog = spec_.eog_ids;
    for (int32_t id : {spec_.eos_id, spec_.eot_id, id_of("eom", -1)})
      if (id >= 0) eog.push_back(id);
    for (const int64_t id : file_.ints("tokenizer.ggml.eog_token_ids"))
      if (id >= 0 && id < static_cast<int64_t>(spec_.pieces.size()))
        eog.push_back(static_cast<int32_t>(id));
    for (const AddedToken& t : spec_.added_tokens) {
      if (!ends_generation(t.content)) continue;
      eog.push_back(t.id);
      if (spec_.eot_id < 0 && t.id != spec_.eos_id) spec_.eot_id = t.id;
    }
    finish_eog_ids(spec_);
  }

  void templates() {
    constexpr std::string_view kKey = "tokenizer.chat_template";
    spec_.chat_template = file_.get_string(kKey, "");
    // tokenizer.chat_templates lists the names; files without the list are read as well.
    for (const auto& [key, text] : file_.scalars_from(std::string(kKey) + "."))
      if (text->is_string() && !text->as_string().empty())
        spec_.named_templates.emplace_back(key.substr(kKey.size() + 1), text->as_string());
  }

  const GgufFile& file_;
  std::string pre_name_;
  std::vector<int64_t> types_;
  TokenizerSpec spec_;
  bool add_bos_ = false, add_eos_ = false, add_sep_ = false;
};

}  // namespace

TokenizerSpec tokenizer_from_gguf(const GgufFile& file) {
  return GgufTokenizerImporter(file).run();
}

}  // namespace tokamak
