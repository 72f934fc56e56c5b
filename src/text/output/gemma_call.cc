#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "text/output/machines.h"
#include "text/output/mark.h"

namespace tokamak {
namespace {

constexpr size_t kMaxGemmaDepth = 64, kMaxGemmaWord = 256;

class GemmaCall final : public CallMachine {
 public:
  explicit GemmaCall(std::string_view quote) : quote_(quote) {}

 protected:
  bool step(CallSink& sink) override {
    if (where_ != Where::kString && !skip_space()) return false;
    switch (where_) {
      case Where::kBegin:
        if (!expect("call:")) return false;
        held_.erase(0, 5);
        where_ = Where::kName;
        return true;
      case Where::kName:
        if (!read_word("{")) return false;
        sink.begin(word_);
        return open(sink);
      case Where::kKey:
        return read_key(sink);
      case Where::kValue:
        return read_value(sink);
      case Where::kString:
        return read_string(sink);
      default:
        return read_after(sink);
    }
  }

 private:
  enum class Where { kBegin, kName, kKey, kValue, kString, kAfter };

  bool read_word(std::string_view ends) {
    size_t end = held_.find_first_of(ends);
    if (end == std::string::npos) return held_.size() > kMaxGemmaWord ? bad() : false;
    word_ = trimmed(std::string_view(held_).substr(0, end));
    if (word_.empty() || word_.size() > kMaxGemmaWord) return bad();
    held_.erase(0, end);
    return true;
  }

  // { or [ at the beginning of held_.
  bool open(CallSink& sink) {
    if (open_.size() >= kMaxGemmaDepth) return bad();
    open_.push_back(held_[0]);
    sink.add(held_.substr(0, 1));
    held_.erase(0, 1);
    where_ = open_.back() == '{' ? Where::kKey : Where::kValue;
    return true;
  }

  bool close(CallSink& sink) {
    if (open_.empty() || (held_[0] == '}') != (open_.back() == '{')) return bad();
    open_.pop_back();
    sink.add(held_.substr(0, 1));
    held_.erase(0, 1);
    where_ = Where::kAfter;
    return open_.empty() ? done() : true;
  }

  bool read_key(CallSink& sink) {
    if (held_[0] == '}') return close(sink);
    if (!read_word(":}")) return false;
    if (held_[0] != ':') return bad();
    std::string_view key = word_;
    if (key.size() > 2 * quote_.size() && key.starts_with(quote_) && key.ends_with(quote_))
      key = key.substr(quote_.size(), key.size() - 2 * quote_.size());
    sink.add('"' + json_escaped(key) + "\": ");
    held_.erase(0, 1);
    where_ = Where::kValue;
    return true;
  }

  bool read_value(CallSink& sink) {
    if (held_[0] == '{' || held_[0] == '[') return open(sink);
    if (held_[0] == ']') return close(sink);
    if (held_.starts_with(quote_)) {
      held_.erase(0, quote_.size());
      sink.add("\"");
      where_ = Where::kString;
      return true;
    }
    if (std::string_view(quote_).starts_with(held_)) return false;
    if (!read_word(",}]")) return false;
    std::string value = word_ == "None" ? "null" : word_;  // strings have quotes
    try {
      parse_json(value, "argument");
    } catch (const Error&) {
      value = '"' + json_escaped(value) + '"';
    }
    sink.add(value);
    where_ = Where::kAfter;
    return true;
  }

  bool read_string(CallSink& sink) {
    size_t end = held_.find(quote_);
    size_t size = end == std::string::npos ? held_.size() - overlap(held_, quote_) : end;
    if (size > 0) sink.add(json_escaped(std::string_view(held_).substr(0, size)));
    held_.erase(0, size);
    if (end == std::string::npos) return false;
    held_.erase(0, quote_.size());
    sink.add("\"");
    where_ = Where::kAfter;
    return true;
  }

  bool read_after(CallSink& sink) {
    if (held_[0] == '}' || held_[0] == ']') return close(sink);
    if (held_[0] != ',') return bad();
    held_.erase(0, 1);
    sink.add(", ");
    where_ = open_.back() == '{' ? Where::kKey : Where::kValue;
    return true;
  }

  const std::string quote_;
  Where where_ = Where::kBegin;
  std::string word_, open_;
};

}  // namespace

std::unique_ptr<CallMachine> make_gemma_call(std::string_view quote) {
  return std::make_unique<GemmaCall>(quote);
}

}  // namespace tokamak
