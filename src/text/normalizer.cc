#include "text/normalizer.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "text/model.h"
#include "text/regex.h"
#include "text/unicode.h"

namespace tokamak {
namespace {

// A normalizer defined by a function of the text.
class TextFunction final : public Normalizer {
 public:
  explicit TextFunction(std::function<void(std::string&)> f) : f_(std::move(f)) {}
  void apply(std::string& text, bool) const override { f_(text); }

 private:
  std::function<void(std::string&)> f_;
};

// One that maps characters one by one: f(character, out).
template <class F>
std::unique_ptr<Normalizer> per_char(F f) {
  return std::make_unique<TextFunction>([f](std::string& text) {
    std::string out;
    out.reserve(text.size());
    for (size_t pos = 0; pos < text.size();) {
      const Utf8Char c = utf8_decode(text, pos);
      f(c.cp, out);
      pos += c.length;
    }
    text.swap(out);
  });
}

class Sequence final : public Normalizer {
 public:
  explicit Sequence(const Value& config) {
    for (const Value& part : config.at("normalizers").as_array())
      if (auto n = make_normalizer(part)) parts_.push_back(std::move(n));
  }
  void apply(std::string& text, bool joined) const override {
    for (const auto& part : parts_) part->apply(text, joined);
  }
  size_t apply_tracked(std::string& text, bool joined, size_t start) const override {
    for (const auto& part : parts_) start = part->apply_tracked(text, joined, start);
    return start;
  }

 private:
  std::vector<std::unique_ptr<Normalizer>> parts_;
};

class Prepend final : public Normalizer {
 public:
  explicit Prepend(std::string prefix) : prefix_(std::move(prefix)) {}
  void apply(std::string& text, bool joined) const override {
    if (!text.empty() && !joined) text.insert(0, prefix_);
  }
  size_t apply_tracked(std::string& text, bool joined, size_t start) const override {
    const size_t before = text.size();
    apply(text, joined);
    return start == 0 ? 0 : start + text.size() - before;
  }

 private:
  std::string prefix_;
};

class Replace final : public Normalizer {
 public:
  explicit Replace(const Value& config) : content_(config.get_string("content", "")) {
    const Value& pattern = config.at("pattern");
    if (const Value* literal = pattern.find("String")) {
      literal_ = literal->as_string();
    } else {
      regex_ = std::make_unique<Regex>(pattern.at("Regex").as_string());
    }
  }
  void apply(std::string& text, bool joined) const override { apply_tracked(text, joined, 0); }
  // The replacement maps to the last character of what it replaces.
  size_t apply_tracked(std::string& text, bool, size_t start) const override {
    if (text.empty()) return start;  // not a position for an empty match either
    std::string out;
    size_t done = 0, kept = 0;
    const auto replace = [&](size_t begin, size_t end) {
      out.append(text, done, begin - done);
      if (done < start) kept = out.size() - (begin > start ? begin - start : 0);
      out += content_;
      if (start > 0 && end <= start) kept = out.size();
      done = end;
    };
    if (regex_) {
      regex_->for_each(text, [&](Regex::Match m) { replace(m.begin, m.end); });
    } else if (!literal_.empty()) {
      for (size_t at; (at = text.find(literal_, done)) != std::string::npos;)
        replace(at, at + literal_.size());
    }
    if (done == 0 && out.empty()) return start;
    if (done < start) kept = out.size() + start - done;
    out.append(text, done);
    text.swap(out);
    return std::min(kept, text.size());
  }

 private:
  std::string literal_, content_;
  std::unique_ptr<Regex> regex_;
};

size_t strip(std::string& text, bool left,
             bool right) {  // returns the number of bytes removed on the left
  size_t begin = 0, end = text.size();
  while (left && begin < end) {
    const Utf8Char c = utf8_decode(text, begin);
    if (!is_white_space(c.cp)) break;
    begin += c.length;
  }
  while (right && end > begin) {
    size_t last = end - 1;
    while (last > begin && is_utf8_continuation(text[last])) --last;
    if (!is_white_space(utf8_decode(text, last).cp)) break;
    end = last;
  }
  text = text.substr(begin, end - begin);
  return begin;
}

class Strip final : public Normalizer {
 public:
  Strip(bool left, bool right) : left_(left), right_(right) {}
  void apply(std::string& text, bool) const override { strip(text, left_, right_); }
  size_t apply_tracked(std::string& text, bool, size_t start) const override {
    const size_t gone = strip(text, left_, right_);
    return std::min(start > gone ? start - gone : 0, text.size());
  }

 private:
  bool left_, right_;
};

class Bert final : public Normalizer {
 public:
  explicit Bert(const Value& config)
      : clean_(config.get_bool("clean_text", true)),
        ideographs_(config.get_bool("handle_chinese_chars", true)),
        lower_(config.get_bool("lowercase", true)),
        accents_(config.get_bool("strip_accents", lower_)) {}

  void apply(std::string& text, bool) const override {
    std::string out;
    out.reserve(text.size() + text.size() / 4);
    for (size_t pos = 0; pos < text.size();) {
      const Utf8Char c = utf8_decode(text, pos);
      pos += c.length;
      char32_t cp = c.cp;
      if (clean_) {
        const bool space = cp == '\t' || cp == '\n' || cp == '\r' || is_white_space(cp);
        const bool control = is_bert_control(cp);
        if (!space && (cp == 0 || cp == 0xFFFD || control)) continue;
        if (cp != '\t' && cp != '\n' && cp != '\r' && control) continue;
        if (space) cp = ' ';
      }
      if (ideographs_ && is_bert_ideograph(cp)) {
        out += ' ';
        utf8_append(out, cp);
        out += ' ';
      } else {
        utf8_append(out, cp);
      }
    }
    text.swap(out);
    if (accents_) {
      const std::string apart = normalize_unicode(text, NormalForm::kNfd);
      text.clear();
      for (size_t pos = 0; pos < apart.size();) {
        const Utf8Char c = utf8_decode(apart, pos);
        if (!is_bert_accent(c.cp)) text.append(apart, pos, c.length);
        pos += c.length;
      }
    }
    if (lower_) text = to_lower(text);
  }

 private:
  bool clean_, ideographs_, lower_, accents_;
};

void nmt(char32_t c, std::string& out) {
  if ((c >= 0x01 && c <= 0x08) || c == 0x0B || (c >= 0x0E && c <= 0x1F) || c == 0x7F || c == 0x8F ||
      c == 0x9F)
    return;
  const bool space = c == 9 || c == 0x0A || c == 0x0C || c == 0x0D || c == 0x1680 ||
                     (c >= 0x200B && c <= 0x200F) || c == 0x2028 || c == 0x2029 || c == 0x2581 ||
                     c == 0xFEFF || c == 0xFFFD;
  utf8_append(out, space ? U' ' : c);
}

// Decomposes since Unicode 11 to 15; the tables of `tokenizers`, and so vocabularies, are older.
bool decomposes_lately(char32_t c, bool compatibility) {
  static constexpr std::pair<char32_t, char32_t> kRanges[] = {
      {0x32FF, 0x32FF},   {0xA7F2, 0xA7F4},   {0xAB69, 0xAB69},
      {0x10781, 0x10785}, {0x10787, 0x107B0}, {0x107B2, 0x107BA},
      {0x1E030, 0x1E06D}, {0x1F16C, 0x1F16C}, {0x1FBF0, 0x1FBF9}};
  if (c == 0x11938) return true;
  return compatibility && c >= 0x32FF &&
         std::any_of(std::begin(kRanges), std::end(kRanges),
                     [c](auto r) { return c >= r.first && c <= r.second; });
}

// These characters are left as they are; none of them combines with its neighbours.
std::unique_ptr<Normalizer> unicode_form(NormalForm form) {
  return std::make_unique<TextFunction>([form](std::string& text) {
    const bool compatibility = form == NormalForm::kNfkc || form == NormalForm::kNfkd;
    std::string out;
    size_t done = 0;
    for (size_t pos = 0; form != NormalForm::kNfc && pos < text.size();) {
      const Utf8Char c = utf8_decode(text, pos);
      pos += c.length;
      if (c.length < 3 || !decomposes_lately(c.cp, compatibility)) continue;
      out += normalize_unicode(text.substr(done, pos - c.length - done), form);
      out.append(text, pos - c.length, c.length);
      done = pos;
    }
    text = out + normalize_unicode(done == 0 ? text : text.substr(done), form);
  });
}

}  // namespace

bool is_bert_ideograph(char32_t c) {
  return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) ||
         (c >= 0x20000 && c <= 0x2A6DF) || (c >= 0x2A700 && c <= 0x2B73F) ||
         (c >= 0x2B740 && c <= 0x2B81F) || (c >= 0x2B920 && c <= 0x2CEAF) ||
         (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x2F800 && c <= 0x2FA1F);
}

std::unique_ptr<Normalizer> make_normalizer(const Value& config) {
  if (config.is_null()) return nullptr;
  const std::string type = config.get_string("type", "");
  if (type == "Sequence") return std::make_unique<Sequence>(config);
  if (type == "NFC") return unicode_form(NormalForm::kNfc);
  if (type == "NFD") return unicode_form(NormalForm::kNfd);
  if (type == "NFKC") return unicode_form(NormalForm::kNfkc);
  if (type == "NFKD") return unicode_form(NormalForm::kNfkd);
  if (type == "Lowercase")
    return std::make_unique<TextFunction>([](std::string& text) { text = to_lower(text); });
  if (type == "StripAccents")
    return per_char([](char32_t c, std::string& out) {
      if (!is_accent(c)) utf8_append(out, c);
    });
  if (type == "Strip")
    return std::make_unique<Strip>(config.get_bool("strip_left", true),
                                   config.get_bool("strip_right", true));
  if (type == "Prepend") return std::make_unique<Prepend>(config.get_string("prepend", ""));
  if (type == "Replace") return std::make_unique<Replace>(config);
  if (type == "BertNormalizer") return std::make_unique<Bert>(config);
  if (type == "Nmt") return per_char(nmt);
  if (type == "Precompiled")
    return make_precompiled_normalizer(base64_decode(config.get_string("precompiled_charsmap", "")),
                                       config.get_bool("longest_match", false));
  if (type == "ByteLevel")
    return std::make_unique<TextFunction>([](std::string& text) {
      std::string out;
      map_bytes(text, out);
      text.swap(out);
    });
  fail(ErrorCode::kUnsupported, "tokenizer: unknown normalizer \"{}\"", type);
}

}  // namespace tokamak
