#include "text/decoder.h"

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "text/model.h"
#include "text/regex.h"
#include "text/unicode.h"

namespace tokamak {
namespace {

// Steps that need whole tokens.
class WholeToken : public DecodeStep {
 public:
  void feed(std::string_view fragment, bool end) override {
    held_ += fragment;
    open_ = !end;
    if (end) close();
  }
  void finish() override {
    if (open_) close();
    flush();
    next->finish();
    index_ = 0;
  }

 protected:
  virtual void token(std::string& text, size_t index) = 0;
  virtual void flush() {}

 private:
  void close() {
    std::string text;
    text.swap(held_);
    open_ = false;
    token(text, index_++);
  }
  std::string held_;
  bool open_ = false;
  size_t index_ = 0;
};

// Joins all tokens into one; incomplete characters are held back.
class ByteLevelStep final : public DecodeStep {
 public:
  explicit ByteLevelStep(bool valid_utf8) : valid_(valid_utf8) {}
  void feed(std::string_view fragment, bool end) override {
    token_ += fragment;
    if (!end) return;
    if (unmap_bytes(token_, bytes_)) {
      held_ += bytes_;
    } else {
      held_ += token_;
    }
    token_.clear();
    const size_t tail = utf8_incomplete_tail(held_);
    emit(held_.size() - tail);
  }
  void finish() override {
    if (!token_.empty()) feed("", true);
    emit(held_.size());
    pass("", true);
    next->finish();
  }

 private:
  void emit(size_t count) {
    const std::string_view ready = std::string_view(held_).substr(0, count);
    pass(valid_ ? utf8_lossy(ready) : std::string(ready), false);
    held_.erase(0, count);
  }
  bool valid_;
  std::string token_, bytes_, held_;
};

// Runs of <0xXX> tokens: text if the whole run is UTF-8, otherwise U+FFFD per byte.
class ByteFallbackStep final : public WholeToken {
 public:
  explicit ByteFallbackStep(bool valid_utf8) : valid_(valid_utf8) {}

 protected:
  void token(std::string& text, size_t) override {
    const int byte = byte_piece_value(text);
    if (byte >= 0) {
      run_ += static_cast<char>(byte);
      if (!valid_) flush();
      return;
    }
    flush();
    pass(text, true);
  }
  void flush() override {
    if (run_.empty()) return;
    std::string run;
    run.swap(run_);
    if (!valid_ || utf8_is_valid(run)) return pass(run, true);
    for (size_t i = 0; i < run.size(); ++i) pass("\xEF\xBF\xBD", true);
  }

 private:
  bool valid_;
  std::string run_;
};

class FuseStep final : public DecodeStep {
 public:
  void feed(std::string_view fragment, bool) override { pass(fragment, false); }
  void finish() override {
    pass("", true);
    next->finish();
  }
};

class MetaspaceStep final : public DecodeStep {
 public:
  explicit MetaspaceStep(const Value& config)
      : replacement_(config.get_string("replacement", "\xE2\x96\x81")) {
    std::string scheme = "always";
    if (const Value* old = config.find("add_prefix_space");
        old && old->is_bool() && !old->as_bool())
      scheme = "never";
    drop_first_ = config.get_string("prepend_scheme", scheme) != "never";
  }
  void feed(std::string_view fragment, bool end) override {
    std::string out;
    size_t done = 0;
    for (size_t at; (at = fragment.find(replacement_, done)) != std::string_view::npos;
         done = at + replacement_.size()) {
      out += fragment.substr(done, at - done);
      if (!(first_ && drop_first_)) out += ' ';
    }
    out += fragment.substr(done);
    pass(out, end);
    if (end) first_ = false;
  }
  void finish() override {
    first_ = true;
    next->finish();
  }

 private:
  std::string replacement_;
  bool drop_first_, first_ = true;
};

class ReplaceStep final : public WholeToken {
 public:
  explicit ReplaceStep(const Value& config) : content_(config.get_string("content", "")) {
    const Value& pattern = config.at("pattern");
    const Value* literal = pattern.find("String");
    literal_ = literal ? literal->as_string() : "";
    if (!literal) regex_.emplace(pattern.at("Regex").as_string());
    streams_ =
        literal && literal_.size() == utf8_sequence_length(literal_.empty() ? 'x' : literal_[0]);
  }
  void feed(std::string_view fragment, bool end) override {
    // A character is never split between fragments.
    if (streams_) return pass(replaced(fragment), end);
    WholeToken::feed(fragment, end);
  }

 protected:
  void token(std::string& text, size_t) override { pass(replaced(text), true); }

 private:
  std::string replaced(std::string_view text) const {
    std::string out;
    size_t done = 0;
    if (regex_) {
      if (!utf8_is_valid(text)) return std::string(text);
      regex_->for_each(text, [&](Regex::Match m) {
        out.append(text.substr(done, m.begin - done)).append(content_);
        done = m.end;
      });
    } else if (!literal_.empty()) {
      for (size_t at; (at = text.find(literal_, done)) != std::string_view::npos;
           done = at + literal_.size())
        out.append(text.substr(done, at - done)).append(content_);
    }
    return out.append(text.substr(done));
  }
  std::string literal_, content_;
  std::optional<Regex> regex_;
  bool streams_;
};

// Drops up to `start` leading and `stop` trailing characters of each token if they equal `content`.
class StripStep final : public DecodeStep {
 public:
  explicit StripStep(const Value& config)
      : content_(config.get_string("content", " ")),
        start_(static_cast<size_t>(std::max<int64_t>(0, config.get_int("start", 0)))),
        stop_(static_cast<size_t>(std::max<int64_t>(0, config.get_int("stop", 0)))) {}
  void feed(std::string_view fragment, bool end) override {
    while (at_start_ && dropped_ < start_ && fragment.starts_with(content_)) {
      fragment.remove_prefix(content_.size());
      ++dropped_;
    }
    if (!fragment.empty()) at_start_ = false;
    held_ += fragment;
    if (end) {
      for (size_t i = 0; i < stop_ && held_.ends_with(content_); ++i)
        held_.resize(held_.size() - content_.size());
      std::string out;
      out.swap(held_);
      reset();
      return pass(out, true);
    }
    size_t keep = 0;  // trailing content that may be stripped at the end
    for (size_t i = 0; i < stop_; ++i) {
      const std::string_view rest = std::string_view(held_).substr(0, held_.size() - keep);
      if (!rest.ends_with(content_)) break;
      keep += content_.size();
    }
    const std::string out = held_.substr(0, held_.size() - keep);
    held_.erase(0, out.size());
    pass(out, false);
  }
  void finish() override {
    if (!held_.empty()) pass(held_, false);
    held_.clear();
    reset();
    next->finish();
  }

 private:
  void reset() {
    at_start_ = true;
    dropped_ = 0;
  }
  std::string content_, held_;
  size_t start_, stop_, dropped_ = 0;
  bool at_start_ = true;
};

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  if (from.empty()) return;
  std::string out;
  size_t done = 0;
  for (size_t at; (at = text.find(from, done)) != std::string::npos; done = at + from.size())
    out.append(text, done, at - done).append(to);
  if (done == 0) return;
  out.append(text, done);
  text.swap(out);
}

void clean_up(std::string& text) {
  static constexpr std::pair<std::string_view, std::string_view> kRules[] = {
      {" .", "."},   {" ?", "?"},     {" !", "!"},    {" ,", ","},
      {" ' ", "'"},  {" n't", "n't"}, {" 'm", "'m"},  {" do not", " don't"},
      {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
  for (const auto& [from, to] : kRules) replace_all(text, from, to);
}

class WordPieceStep final : public WholeToken {
 public:
  explicit WordPieceStep(const Value& config)
      : prefix_(config.get_string("prefix", "##")), cleanup_(config.get_bool("cleanup", true)) {}

 protected:
  void token(std::string& text, size_t index) override {
    if (index > 0) {
      if (text.starts_with(prefix_)) {
        text.erase(0, prefix_.size());
      } else {
        text.insert(text.begin(), ' ');
      }
    }
    if (cleanup_) clean_up(text);
    pass(text, true);
  }

 private:
  std::string prefix_;
  bool cleanup_;
};

class CtcStep final : public WholeToken {
 public:
  explicit CtcStep(const Value& config)
      : pad_(config.get_string("pad_token", "<pad>")),
        delimiter_(config.get_string("word_delimiter_token", "|")),
        cleanup_(config.get_bool("cleanup", true)) {}

 protected:
  void token(std::string& text, size_t index) override {
    if (index > 0 && text == last_) return;
    last_ = text;
    replace_all(text, pad_, "");
    if (cleanup_) {
      clean_up(text);
      replace_all(text, delimiter_, " ");
    }
    if (!text.empty()) pass(text, true);
  }
  void flush() override { last_.clear(); }

 private:
  std::string pad_, delimiter_, last_;
  bool cleanup_;
};

// The suffix marks the end of a word: it becomes a space, except after the last token.
class BpeStep final : public WholeToken {
 public:
  explicit BpeStep(const Value& config) : suffix_(config.get_string("suffix", "</w>")) {}

 protected:
  void token(std::string& text, size_t index) override {
    if (index > 0) {
      replace_all(last_, suffix_, " ");
      pass(last_, true);
    }
    last_.swap(text);
  }
  void flush() override {
    replace_all(last_, suffix_, "");
    pass(last_, true);
    last_.clear();
  }

 private:
  std::string suffix_, last_;
};

class JoinStep final : public WholeToken {
 protected:
  void token(std::string& text, size_t index) override {
    if (index > 0) text.insert(text.begin(), ' ');
    pass(text, true);
  }
};

void add_steps(const Value& config, bool valid, std::vector<std::unique_ptr<DecodeStep>>& steps) {
  if (config.is_null()) return steps.push_back(std::make_unique<JoinStep>());
  const std::string type = config.get_string("type", "");
  if (type == "Sequence") {
    for (const Value& part : config.at("decoders").as_array()) add_steps(part, valid, steps);
  } else if (type == "ByteLevel") {
    steps.push_back(std::make_unique<ByteLevelStep>(valid));
  } else if (type == "ByteFallback") {
    steps.push_back(std::make_unique<ByteFallbackStep>(valid));
  } else if (type == "Fuse") {
    steps.push_back(std::make_unique<FuseStep>());
  } else if (type == "Metaspace") {
    steps.push_back(std::make_unique<MetaspaceStep>(config));
  } else if (type == "Replace") {
    steps.push_back(std::make_unique<ReplaceStep>(config));
  } else if (type == "Strip") {
    steps.push_back(std::make_unique<StripStep>(config));
  } else if (type == "WordPiece") {
    steps.push_back(std::make_unique<WordPieceStep>(config));
  } else if (type == "CTC") {
    steps.push_back(std::make_unique<CtcStep>(config));
  } else if (type == "BPEDecoder") {
    steps.push_back(std::make_unique<BpeStep>(config));
  } else {
    fail(ErrorCode::kUnsupported, "tokenizer: unknown decoder \"{}\"", type);
  }
}

}  // namespace

// The last step: its output never ends inside a character.
class PieceDecoder::Sink final : public DecodeStep {
 public:
  explicit Sink(bool valid_utf8) : valid_(valid_utf8) {}
  void feed(std::string_view fragment, bool) override {
    const size_t n = std::min(drop_, fragment.size());
    drop_ -= n;
    held_ += fragment.substr(n);
  }
  void finish() override { finished_ = true; }
  void drop(size_t bytes) { drop_ = bytes; }
  std::string take() {
    std::string out;
    out.swap(held_);
    if (!valid_) return out;
    if (!finished_) {
      const size_t tail = utf8_incomplete_tail(out);
      held_ = out.substr(out.size() - tail);
      out.resize(out.size() - tail);
    }
    finished_ = false;
    return utf8_is_valid(out) ? out : utf8_lossy(out);
  }

 private:
  bool valid_, finished_ = false;
  size_t drop_ = 0;  // bytes that are still to come
  std::string held_;
};

PieceDecoder::PieceDecoder(const Value& config, bool valid_utf8)
    : sink_(std::make_unique<Sink>(valid_utf8)) {
  add_steps(config, valid_utf8, steps_);
  for (size_t i = 0; i < steps_.size(); ++i)
    steps_[i]->next =
        i + 1 < steps_.size() ? steps_[i + 1].get() : static_cast<DecodeStep*>(sink_.get());
}
PieceDecoder::~PieceDecoder() = default;

void PieceDecoder::push(std::string_view piece) {
  DecodeStep* head = steps_.empty() ? static_cast<DecodeStep*>(sink_.get()) : steps_[0].get();
  head->feed(piece, true);
}
void PieceDecoder::skip_beginning() {
  sink_->drop(1);
  push("a");
}
void PieceDecoder::finish() {
  DecodeStep* head = steps_.empty() ? static_cast<DecodeStep*>(sink_.get()) : steps_[0].get();
  head->finish();
}
std::string PieceDecoder::take() { return sink_->take(); }

void check_decoder(const Value& config) { PieceDecoder stream(config, true); }

}  // namespace tokamak
