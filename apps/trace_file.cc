#include "apps/trace_file.h"

#include <algorithm>
#include <charconv>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"

namespace tokamak {
namespace {

constexpr int64_t kMostTokens = int64_t{1} << 24;

int64_t whole(std::string_view text, std::string_view where) {
  int64_t value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size())
    fail(ErrorCode::kCorrupt, "{}: \"{}\" is not a number", where, text);
  return value;
}

// Days since 1970-01-01 of a date of the Gregorian calendar.
int64_t days(int64_t y, int64_t m, int64_t d) {
  y -= m <= 2 ? 1 : 0;
  int64_t era = (y >= 0 ? y : y - 399) / 400, of_era = y - era * 400;
  int64_t of_year = (153 * (m + (m > 2 ? -3 : 9)) + 2) / 5 + d - 1;
  return era * 146097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719468;
}

// "2023-11-16 18:15:46.6805900", optionally followed by a time zone, the same on all lines.
Nanos timestamp(std::string_view t, std::string_view where) {
  if (t.size() < 19 || t[4] != '-' || t[13] != ':')
    fail(ErrorCode::kCorrupt, "{}: \"{}\" is not a time", where, t);
  auto part = [&](size_t at, size_t n) { return whole(t.substr(at, n), where); };
  Nanos s =
      ((days(part(0, 4), part(5, 2), part(8, 2)) * 24 + part(11, 2)) * 60 + part(14, 2)) * 60 +
      part(17, 2);
  Nanos fraction = 0, scale = kSecond;
  for (size_t i = 20; i < t.size() && t[19] == '.' && t[i] >= '0' && t[i] <= '9' && scale > 1; ++i)
    fraction += (t[i] - '0') * (scale /= 10);
  return s * kSecond + fraction;
}

TraceRequest azure(std::string_view line, std::string_view where) {
  size_t a = line.find(','), b = a == line.npos ? a : line.find(',', a + 1);
  if (b == line.npos) fail(ErrorCode::kCorrupt, "{}: expected three fields", where);
  return {timestamp(line.substr(0, a), where),
          whole(line.substr(a + 1, b - a - 1), where),
          whole(line.substr(b + 1), where),
          {}};
}

TraceRequest mooncake(std::string_view line, const std::string& where) {
  Value v = parse_json(line, where);
  TraceRequest r;
  r.arrival = v.at("timestamp").as_int() * kMillisecond;
  r.input = v.at("input_length").as_int();
  r.output = v.at("output_length").as_int();
  for (const Value& id : v.at("hash_ids").as_array()) r.block_ids.push_back(id.as_int());
  return r;
}

}  // namespace

std::vector<TraceRequest> load_trace(const std::filesystem::path& path, int64_t most) {
  bool json = path.extension() == ".jsonl";
  if (!json && path.extension() != ".csv")
    fail(ErrorCode::kInvalidArgument, "{}: a trace is a .csv (Azure) or a .jsonl (Mooncake) file",
         path.string());
  std::string text = read_text_file(path, size_t{1} << 30);
  std::vector<TraceRequest> out;
  std::string_view rest = text;
  for (int64_t number = 1; !rest.empty() && (most == 0 || std::ssize(out) < most); ++number) {
    size_t end = std::min(rest.find('\n'), rest.size());
    std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.remove_suffix(1);
    if (line.empty() || (!json && number == 1)) continue;  // the first line names the columns
    std::string where = fmt::format("{}, line {}", path.filename().string(), number);
    TraceRequest r = json ? mooncake(line, where) : azure(line, where);
    // A request without output still computes its prompt.
    r.output = std::max<int64_t>(r.output, 1);
    if (r.input < 1 || r.input > kMostTokens || r.output > kMostTokens)
      fail(ErrorCode::kCorrupt, "{}: lengths of {} and {} tokens are out of range", where, r.input,
           r.output);
    out.push_back(std::move(r));
  }
  if (out.empty()) fail(ErrorCode::kCorrupt, "{}: no requests", path.string());
  std::stable_sort(out.begin(), out.end(), [](const TraceRequest& a, const TraceRequest& b) {
    return a.arrival < b.arrival;
  });
  Nanos first = out.front().arrival;
  for (TraceRequest& r : out) r.arrival -= first;
  return out;
}

}  // namespace tokamak
