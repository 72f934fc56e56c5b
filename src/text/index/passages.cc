#include "text/index/passages.h"

#include <algorithm>

namespace tokamak {
namespace {

constexpr std::string_view kSpace = " \t\r\n\f\v";

std::string_view trimmed(std::string_view text) {
  size_t first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

bool starts_character(char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }

// Where to cut a text that is too long: after a sentence or a word in the second half, or else
// between characters.
size_t cut_of(std::string_view text, size_t most) {
  for (std::string_view ends : {std::string_view(".!?\n"), kSpace})
    for (size_t i = most; i > most / 2; --i)
      if (ends.find(text[i - 1]) != std::string_view::npos &&
          (i == text.size() || kSpace.find(text[i]) != std::string_view::npos || ends == kSpace))
        return i;
  size_t i = most;
  while (i > 1 && !starts_character(text[i])) --i;
  return i;
}

class Splitter {
 public:
  Splitter(std::string_view document, size_t most) : document_(document), most_(most) {}

  std::vector<Passage> split() {
    size_t at = 0;
    while (at < document_.size()) {
      size_t end = paragraph_end(at);
      add(at, end);
      at = end;
    }
    finish();
    return std::move(out_);
  }

 private:
  // After the line breaks that follow the paragraph.
  size_t paragraph_end(size_t at) const {
    bool text = false;
    while (at < document_.size()) {
      size_t end = std::min(document_.find('\n', at), document_.size() - 1) + 1;
      bool blank = trimmed(document_.substr(at, end - at)).empty();
      if (blank && text) return end;
      text = text || !blank;
      at = end;
    }
    return at;
  }

  void add(size_t begin, size_t end) {
    if (trimmed(document_.substr(begin, end - begin)).empty()) return;
    if (end_ > begin_ && end - begin_ > most_) finish();
    if (end_ == begin_) begin_ = begin;
    end_ = end;
    while (end_ - begin_ > most_) {
      size_t cut = begin_ + cut_of(document_.substr(begin_, end_ - begin_), most_);
      emit(begin_, cut);
      begin_ = cut;
    }
  }

  void finish() {
    if (end_ > begin_) emit(begin_, end_);
    begin_ = end_ = 0;
  }

  void emit(size_t begin, size_t end) {
    std::string_view text = document_.substr(begin, end - begin);
    size_t first = text.find_first_not_of(kSpace);
    if (first == std::string_view::npos) return;
    line_ += std::count(document_.begin() + static_cast<std::ptrdiff_t>(counted_),
                        document_.begin() + static_cast<std::ptrdiff_t>(begin + first), '\n');
    counted_ = begin + first;
    out_.push_back({line_, std::string(trimmed(text))});
  }

  std::string_view document_;
  size_t most_, begin_ = 0, end_ = 0, counted_ = 0;
  int64_t line_ = 1;
  std::vector<Passage> out_;
};

}  // namespace

std::vector<Passage> split_passages(std::string_view document, size_t most) {
  return Splitter(document, std::max<size_t>(most, 16)).split();
}

}  // namespace tokamak
