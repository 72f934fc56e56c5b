#include "text/pre_tokenizer.h"

#include <algorithm>
#include <functional>

#include "base/error.h"
#include "text/model.h"
#include "text/regex.h"
#include "text/scripts.h"
#include "text/unicode.h"

namespace tokamak {
namespace {

using Span = Words::Span;

constexpr std::string_view kGpt2 =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// \w+|[^\w\s]+ with the \w of Unicode's regular expressions: numbers other than digits are not
// words.
constexpr std::string_view kWhitespaceWords =
    R"([\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{200c}\x{200d}]+|[^\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{200c}\x{200d}\s]+)";

enum class Behavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

Behavior parse_behavior(std::string_view name) {
  if (name == "Removed") return Behavior::kRemoved;
  if (name == "Isolated") return Behavior::kIsolated;
  if (name == "MergedWithPrevious") return Behavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return Behavior::kMergedWithNext;
  if (name == "Contiguous") return Behavior::kContiguous;
  fail(ErrorCode::kUnsupported, "tokenizer: unknown split behavior \"{}\"", name);
}

struct Part {
  Span span;
  bool match;
};

// Converts a splitter's matches in one word to the resulting words.
void arrange(std::vector<Part>& parts, Behavior behavior, std::vector<Span>& out) {
  const auto add = [&](Span s) {
    if (s.end > s.begin) out.push_back(s);
  };
  switch (behavior) {
    case Behavior::kRemoved:
      for (const Part& p : parts)
        if (!p.match) add(p.span);
      break;
    case Behavior::kIsolated:
      for (const Part& p : parts) add(p.span);
      break;
    case Behavior::kContiguous: {
      for (size_t i = 0; i < parts.size();) {
        Span s = parts[i].span;
        size_t j = i + 1;
        for (; j < parts.size() && parts[j].match == parts[i].match; ++j) s.end = parts[j].span.end;
        add(s);
        i = j;
      }
      break;
    }
    case Behavior::kMergedWithPrevious: {
      bool before = false;
      std::vector<Span> merged;
      for (const Part& p : parts) {
        if (p.match && !before && !merged.empty()) {
          merged.back().end = p.span.end;
        } else {
          merged.push_back(p.span);
        }
        before = p.match;
      }
      for (Span s : merged) add(s);
      break;
    }
    case Behavior::kMergedWithNext: {
      bool after = false;
      std::vector<Span> merged;
      for (auto p = parts.rbegin(); p != parts.rend(); ++p) {
        if (p->match && !after && !merged.empty()) {
          merged.back().begin = p->span.begin;
        } else {
          merged.push_back(p->span);
        }
        after = p->match;
      }
      for (auto s = merged.rbegin(); s != merged.rend(); ++s) add(*s);
      break;
    }
  }
}

// Splits every word with a function that reports parts in order, without gaps.
class Cutter : public PreTokenizer {
 public:
  explicit Cutter(Behavior behavior) : behavior_(behavior) {}
  void apply(Words& words) const override {
    std::vector<Part> parts;
    words.spare.clear();
    for (Span s : words.spans) {
      parts.clear();
      cut(words.text.substr(s.begin, s.end - s.begin), s.begin, parts);
      arrange(parts, behavior_, words.spare);
    }
    words.spans.swap(words.spare);
  }

 protected:
  virtual void cut(std::string_view word, size_t offset, std::vector<Part>& parts) const = 0;
  Behavior behavior_;
};

class RegexCutter final : public Cutter {
 public:
  RegexCutter(std::string_view pattern, Behavior behavior, bool invert)
      : Cutter(behavior), regex_(pattern), invert_(invert) {}

  void apply(Words& words) const override {
    if (behavior_ != Behavior::kIsolated) return Cutter::apply(words);
    words.spare.clear();  // fast path for the common case, without a list of parts
    for (Span s : words.spans) {
      size_t done = s.begin;
      regex_.for_each(words.text.substr(s.begin, s.end - s.begin), [&](Regex::Match m) {
        if (s.begin + m.begin > done) words.spare.push_back({done, s.begin + m.begin});
        if (m.end > m.begin) words.spare.push_back({s.begin + m.begin, s.begin + m.end});
        done = s.begin + m.end;
      });
      if (done < s.end) words.spare.push_back({done, s.end});
    }
    words.spans.swap(words.spare);
  }

 protected:
  void cut(std::string_view word, size_t offset, std::vector<Part>& parts) const override {
    size_t done = 0;
    regex_.for_each(word, [&](Regex::Match m) {
      if (m.begin > done) parts.push_back({{offset + done, offset + m.begin}, invert_});
      parts.push_back({{offset + m.begin, offset + m.end}, !invert_});
      done = m.end;
    });
    if (done < word.size()) parts.push_back({{offset + done, offset + word.size()}, invert_});
  }

 private:
  Regex regex_;
  bool invert_;
};

// Each character for which the predicate holds is a separate match.
class CharCutter final : public Cutter {
 public:
  CharCutter(std::function<bool(char32_t)> is_match, Behavior behavior)
      : Cutter(behavior), is_match_(std::move(is_match)) {}

 protected:
  void cut(std::string_view word, size_t offset, std::vector<Part>& parts) const override {
    size_t done = 0;
    for (size_t pos = 0; pos < word.size();) {
      const Utf8Char c = utf8_decode(word, pos);
      if (is_match_(c.cp)) {
        if (pos > done) parts.push_back({{offset + done, offset + pos}, false});
        parts.push_back({{offset + pos, offset + pos + c.length}, true});
        done = pos + c.length;
      }
      pos += c.length;
    }
    if (done < word.size()) parts.push_back({{offset + done, offset + word.size()}, false});
  }

 private:
  std::function<bool(char32_t)> is_match_;
};

class FixedLength final : public PreTokenizer {
 public:
  explicit FixedLength(int64_t length) : length_(length) {
    if (length <= 0)
      fail(ErrorCode::kInvalidArgument, "tokenizer: FixedLength of {} characters", length);
  }
  void apply(Words& words) const override {
    words.spare.clear();
    for (Span s : words.spans) {
      size_t begin = s.begin;
      int64_t count = 0;
      for (size_t pos = s.begin; pos < s.end; pos += utf8_sequence_length(words.text[pos])) {
        if (count == length_) {
          words.spare.push_back({begin, pos});
          begin = pos;
          count = 0;
        }
        ++count;
      }
      if (begin < s.end) words.spare.push_back({begin, s.end});
    }
    words.spans.swap(words.spare);
  }

 private:
  int64_t length_;
};

// Words of one script. Spaces belong to the preceding word (at the start they are dropped), kana
// count as Han.
class Scripts final : public PreTokenizer {
 public:
  void apply(Words& words) const override {
    words.spare.clear();
    for (Span s : words.spans) {
      size_t begin = s.end;
      int last = kScriptAny;
      for (size_t pos = s.begin; pos < s.end;) {
        const Utf8Char c = utf8_decode(words.text, pos);
        const int script = script_of(c.cp);
        if (script != kScriptAny && last != script) {
          if (begin < pos) words.spare.push_back({begin, pos});
          begin = pos;
          last = script;
        }
        pos += c.length;
      }
      if (begin < s.end) words.spare.push_back({begin, s.end});
    }
    words.spans.swap(words.spare);
  }
};

// Builds a new text word by word: f(word, index, out).
template <class F>
void rewrite(Words& words, F f) {
  std::string out;
  out.reserve(words.text.size() + words.text.size() / 2);
  if (words.spans.empty() || words.spans[0].begin != 0) words.joined = false;
  size_t first = 0;
  std::string head;
  for (size_t i = 0; i < words.spans.size(); ++i) {
    const Span s = words.spans[i];
    const size_t begin = out.size();
    if (s.begin < words.first) {  // the result of the text's first character
      head.clear();
      f(words.text.substr(s.begin, std::min(s.end, words.first) - s.begin), s, head);
      first = begin + head.size();
    }
    f(words.text.substr(s.begin, s.end - s.begin), s, out);
    words.spans[i] = {begin, out.size()};
  }
  words.first = first;
  words.buffer.swap(out);
  words.text = words.buffer;
}

class ByteLevel final : public PreTokenizer {
 public:
  ByteLevel(bool prefix_space, bool use_regex, bool leave_bytes)
      : prefix_space_(prefix_space), leave_bytes_(leave_bytes) {
    if (use_regex) cutter_ = std::make_unique<RegexCutter>(kGpt2, Behavior::kIsolated, false);
  }
  void apply(Words& words) const override {
    if (prefix_space_) {
      rewrite(words, [&](std::string_view word, Span s, std::string& out) {
        if (!(words.joined && s.begin == 0) && !word.starts_with(' ')) out += ' ';
        out += word;
      });
    }
    if (cutter_) cutter_->apply(words);
    if (!leave_bytes_)
      rewrite(words, [](std::string_view word, Span, std::string& out) { map_bytes(word, out); });
  }

 private:
  bool prefix_space_, leave_bytes_;
  std::unique_ptr<RegexCutter> cutter_;
};

class Metaspace final : public PreTokenizer {
 public:
  explicit Metaspace(const Value& config)
      : replacement_(config.get_string("replacement", "\xE2\x96\x81")) {
    std::string scheme = "always";
    if (const Value* old = config.find("add_prefix_space");
        old && old->is_bool() && !old->as_bool())
      scheme = "never";
    scheme = config.get_string("prepend_scheme", scheme);
    if (scheme != "always" && scheme != "never" && scheme != "first")
      fail(ErrorCode::kUnsupported, "tokenizer: unknown prepend_scheme \"{}\"", scheme);
    always_ = scheme == "always";
    first_ = scheme == "first";
    if (config.get_bool("split", true))
      cutter_ = std::make_unique<RegexCutter>(regex_escape(replacement_), Behavior::kMergedWithNext,
                                              false);
  }
  void apply(Words& words) const override {
    rewrite(words, [&](std::string_view word, Span s, std::string& out) {
      const bool at_start = s.begin == 0;
      const bool prefixed = word.starts_with(' ') || word.starts_with(replacement_);
      const bool wanted = always_ || (first_ && s.begin < words.first);
      if (wanted && !prefixed && !(words.joined && at_start)) out += replacement_;
      for (char c : word) {
        if (c == ' ') {
          out += replacement_;
        } else {
          out += c;
        }
      }
    });
    if (cutter_) cutter_->apply(words);
  }

 private:
  std::string replacement_;
  bool always_ = false, first_ = false;
  std::unique_ptr<RegexCutter> cutter_;
};

class PreSequence final : public PreTokenizer {
 public:
  std::vector<std::unique_ptr<PreTokenizer>> parts;
  void apply(Words& words) const override {
    for (const auto& part : parts) part->apply(words);
  }
};

std::unique_ptr<PreTokenizer> make_split(const Value& config) {
  const Value& pattern = config.at("pattern");
  std::string regex;
  if (const Value* literal = pattern.find("String")) {
    regex = regex_escape(literal->as_string());
  } else {
    regex = pattern.at("Regex").as_string();
  }
  return std::make_unique<RegexCutter>(regex,
                                       parse_behavior(config.get_string("behavior", "Isolated")),
                                       config.get_bool("invert", false));
}

std::unique_ptr<PreTokenizer> make_bert() {
  auto both = std::make_unique<PreSequence>();
  both->parts.push_back(std::make_unique<CharCutter>(is_white_space, Behavior::kRemoved));
  both->parts.push_back(std::make_unique<CharCutter>(is_bert_punctuation, Behavior::kIsolated));
  return both;
}

std::unique_ptr<PreTokenizer> make_one(const Value& config, bool leave_bytes) {
  const std::string type = config.get_string("type", "");
  if (type == "ByteLevel")
    return std::make_unique<ByteLevel>(config.get_bool("add_prefix_space", true),
                                       config.get_bool("use_regex", true), leave_bytes);
  if (type == "Split") return make_split(config);
  if (type == "Metaspace") return std::make_unique<Metaspace>(config);
  if (type == "Digits")
    return std::make_unique<CharCutter>(is_numeric, config.get_bool("individual_digits", false)
                                                        ? Behavior::kIsolated
                                                        : Behavior::kContiguous);
  if (type == "Punctuation")
    return std::make_unique<CharCutter>(is_bert_punctuation,
                                        parse_behavior(config.get_string("behavior", "Isolated")));
  if (type == "Whitespace")
    return std::make_unique<RegexCutter>(kWhitespaceWords, Behavior::kRemoved, true);
  if (type == "WhitespaceSplit")
    return std::make_unique<CharCutter>(is_white_space, Behavior::kRemoved);
  if (type == "BertPreTokenizer") return make_bert();
  if (type == "CharDelimiterSplit") {
    const char32_t delimiter = utf8_decode(config.at("delimiter").as_string(), 0).cp;
    return std::make_unique<CharCutter>([delimiter](char32_t c) { return c == delimiter; },
                                        Behavior::kRemoved);
  }
  if (type == "UnicodeScripts") return std::make_unique<Scripts>();
  if (type == "FixedLength") return std::make_unique<FixedLength>(config.get_int("length", 5));
  fail(ErrorCode::kUnsupported, "tokenizer: unknown pre-tokenizer \"{}\"", type);
}

void flatten(const Value& config, std::vector<const Value*>& out) {
  if (config.is_null()) return;
  if (config.get_string("type", "") != "Sequence") return out.push_back(&config);
  for (const Value& part : config.at("pretokenizers").as_array()) flatten(part, out);
}

}  // namespace

PreTokenizerResult make_pre_tokenizer(const Value& config, bool leave_bytes) {
  std::vector<const Value*> configs;
  flatten(config, configs);
  PreTokenizerResult result;
  if (configs.empty()) return result;
  auto all = std::make_unique<PreSequence>();
  result.byte_level = configs.back()->get_string("type", "") == "ByteLevel";
  for (const Value* c : configs)
    all->parts.push_back(make_one(*c, leave_bytes && result.byte_level && c == configs.back()));
  result.step = std::move(all);
  return result;
}

}  // namespace tokamak
