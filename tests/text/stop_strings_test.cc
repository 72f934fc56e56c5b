#include "text/stop_strings.h"

#include <gtest/gtest.h>

#include <random>

#include "text/unicode.h"

namespace tokamak {
namespace {

TEST(StopStrings, HoldsBackWhatMayBecomeAStop) {
  StopStrings stops({"END", "\n\n"});
  EXPECT_EQ(stops.push("abE").text, "ab");
  EXPECT_EQ(stops.push("N").text, "");
  EXPECT_EQ(stops.push("x\n").text, "ENx");
  const StopStrings::Result r = stops.push("\nrest");
  EXPECT_TRUE(r.stopped);
  EXPECT_EQ(r.text, "");
  EXPECT_EQ(stops.matched(), "\n\n");
  EXPECT_EQ(stops.push("more").text, "");
}

TEST(StopStrings, IncludeStopAndFinish) {
  StopStrings with({"</s>"}, true);
  EXPECT_EQ(with.push("hello</s>tail").text, "hello</s>");
  StopStrings without({"</s>"});
  EXPECT_EQ(without.push("hello</").text, "hello");
  EXPECT_EQ(without.finish(), "</");
  StopStrings none;
  EXPECT_EQ(none.push("anything").text, "anything");
}

TEST(StopStrings, FirstToEndWins) {
  StopStrings stops({"abcd", "bc"});
  const StopStrings::Result r = stops.push("xabcd");
  EXPECT_TRUE(r.stopped);
  EXPECT_EQ(r.text, "xa");
  EXPECT_EQ(stops.matched(), "bc");
}

TEST(StopStrings, AnyCutGivesTheSameText) {
  std::mt19937 rng(5);
  const std::vector<std::string> stops = {"aab", "ba\xC3\xA9", "bbbb"};
  for (int round = 0; round < 2000; ++round) {
    std::string text;
    static const std::string kParts[] = {"a", "b", "\xC3\xA9"};
    for (int i = 0; i < 20; ++i) text += kParts[rng() % 3];
    size_t end = std::string::npos, length = 0;
    for (const std::string& s : stops)
      if (const size_t at = text.find(s);
          at != std::string::npos && (end == std::string::npos || at + s.size() < end)) {
        end = at + s.size();
        length = s.size();
      }
    const std::string want = end == std::string::npos ? text : text.substr(0, end - length);
    StopStrings matcher(stops);
    std::string got;
    for (size_t pos = 0; pos < text.size() && !matcher.stopped();) {
      size_t n = 1 + rng() % 4;
      while (pos + n < text.size() && is_utf8_continuation(text[pos + n])) ++n;
      const std::string part = matcher.push(text.substr(pos, n)).text;
      EXPECT_TRUE(utf8_is_valid(part));
      got += part;
      pos += n;
    }
    if (!matcher.stopped()) got += matcher.finish();
    EXPECT_EQ(got, want) << text;
  }
}

}  // namespace
}  // namespace tokamak
