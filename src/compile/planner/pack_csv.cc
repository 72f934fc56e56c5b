#include "compile/planner/pack_csv.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <unordered_set>

#include "base/error.h"

namespace tokamak {
namespace {

constexpr std::string_view kColumns[] = {"id", "lower", "upper", "size", "alignment"};
enum Column : size_t { kId, kLower, kUpper, kSize, kAlignment, kColumnCount };
constexpr uint64_t kMaxNumber = uint64_t{1} << 62;

std::string_view trim(std::string_view s) {
  while (!s.empty() && (s.front() == ' ' || s.front() == '\t')) s.remove_prefix(1);
  while (!s.empty() && (s.back() == ' ' || s.back() == '\t' || s.back() == '\r'))
    s.remove_suffix(1);
  return s;
}

std::vector<std::string_view> fields_of(std::string_view line) {
  std::vector<std::string_view> fields;
  for (size_t comma; (comma = line.find(',')) != std::string_view::npos;
       line.remove_prefix(comma + 1))
    fields.push_back(trim(line.substr(0, comma)));
  fields.push_back(trim(line));
  return fields;
}

class Parser {
 public:
  explicit Parser(std::string_view what) : what_(what) {}

  PackInstance run(std::string_view text) {
    if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);
    while (!text.empty()) {
      size_t end = std::min(text.find('\n'), text.size());
      std::string_view line = trim(text.substr(0, end));
      text.remove_prefix(std::min(end + 1, text.size()));
      ++line_;
      if (line.empty()) continue;
      if (names_ == 0)
        header(fields_of(line));
      else
        row(fields_of(line));
    }
    if (names_ == 0) bad("no header; the first line must be id,lower,upper,size");
    return std::move(out_);
  }

 private:
  template <class... Args>
  [[noreturn]] void bad(fmt::format_string<Args...> format, Args&&... args) const {
    fail(ErrorCode::kCorrupt, "{}, line {}: {}", what_, std::max<size_t>(line_, 1),
         fmt::format(format, std::forward<Args>(args)...));
  }

  void header(const std::vector<std::string_view>& fields) {
    column_.fill(SIZE_MAX);
    for (size_t i = 0; i < fields.size(); ++i) {
      size_t c = std::find(std::begin(kColumns), std::end(kColumns), fields[i]) - kColumns;
      if (c == kColumnCount)
        bad("column \"{}\" is not known; the header must be id,lower,upper,size", fields[i]);
      if (column_[c] != SIZE_MAX) bad("column {} appears twice", fields[i]);
      column_[c] = i;
    }
    for (size_t c = kId; c <= kSize; ++c)
      if (column_[c] == SIZE_MAX)
        bad("column {} is missing; the header must be id,lower,upper,size", kColumns[c]);
    names_ = fields.size();
  }

  uint64_t number(const std::vector<std::string_view>& fields, Column c) const {
    std::string_view s = fields[column_[c]];
    if (s.starts_with('-')) bad("{} is negative: {}", kColumns[c], s);
    uint64_t value = 0;
    auto [end, error] = std::from_chars(s.data(), s.data() + s.size(), value);
    if (error == std::errc::result_out_of_range || (error == std::errc() && value >= kMaxNumber))
      bad("{} is too large: {}; the limit is 2^62", kColumns[c], s);
    if (error != std::errc() || end != s.data() + s.size())
      bad("{} is not a whole number: \"{}\"", kColumns[c], s);
    return value;
  }

  void row(const std::vector<std::string_view>& fields) {
    if (fields.size() != names_)
      bad("the line has {} fields, the header {}", fields.size(), names_);
    PackBuffer b{number(fields, kLower), number(fields, kUpper), number(fields, kSize), 1};
    if (column_[kAlignment] != SIZE_MAX) b.alignment = number(fields, kAlignment);
    if (b.lower >= b.upper) bad("lower {} is not below upper {}", b.lower, b.upper);
    if (b.alignment == 0 || b.alignment > kMaxAlignment || (b.alignment & (b.alignment - 1)) != 0)
      bad("alignment {} is not a power of two up to {}", b.alignment, kMaxAlignment);
    std::string id(fields[column_[kId]]);
    if (id.empty()) bad("the id is empty");
    if (!seen_.insert(id).second) bad("id {} appears twice", id);
    uint64_t rounded = b.size + kMaxAlignment;  // more than any alignment adds
    if (rounded >= kMaxNumber - sum_) bad("the sizes sum to more than 2^62");
    sum_ += column_[kAlignment] == SIZE_MAX ? b.size : rounded;
    out_.ids.push_back(std::move(id));
    out_.buffers.push_back(b);
  }

  static constexpr uint64_t kMaxAlignment = 1 << 20;
  std::string_view what_;
  std::array<size_t, kColumnCount> column_{};
  size_t names_ = 0, line_ = 0;  // names_: columns of the header, 0 before it was read
  uint64_t sum_ = 0;
  std::unordered_set<std::string> seen_;
  PackInstance out_;
};

}  // namespace

PackInstance parse_pack_csv(std::string_view text, std::string_view what) {
  return Parser(what).run(text);
}

}  // namespace tokamak
