#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <thread>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/line_file.h"
#include "base/new_file.h"
#include "base/rng.h"
#include "base/sha256.h"
#include "base/value.h"

namespace tokamak {
namespace {

TEST(Json, RoundTripKeepsOrderAndTypes) {
  const char* text = R"({"z":1,"a":[true,null,2.5,"\u00e9\n"],"m":{"k":-7}})";
  EXPECT_EQ(dump_json(parse_json(text)),
            "{\"z\":1,\"a\":[true,null,2.5,\"é\\n\"],\"m\":{\"k\":-7}}");
}

TEST(Json, LastDuplicateWins) {
  EXPECT_EQ(dump_json(parse_json(R"({"a":1,"b":2,"a":3})")), R"({"a":3,"b":2})");
}

TEST(Json, BadTextNamesThePlace) {
  try {
    parse_json("{\"a\":\n 1,}", "config.json");
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kInvalidArgument);
    EXPECT_NE(std::string(e.what()).find("config.json"), std::string::npos);
    EXPECT_NE(std::string(e.what()).find("line 2"), std::string::npos);
  }
}

TEST(Json, DeepNestingIsRefused) { EXPECT_THROW(parse_json(std::string(100000, '[')), Error); }

// Known answers of Philox 4x32-10 from the Random123 distribution.
TEST(Rng, PhiloxKnownAnswers) {
  EXPECT_EQ(philox(0, 0, 0),
            (std::array<uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox(~0ull, ~0ull, ~0ull),
            (std::array<uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
}

TEST(LineFile, AppendsWholeLines) {
  std::filesystem::path path =
      std::filesystem::temp_directory_path() / fmt::format("tk_lines_{}", ::getpid());
  LineFile first("log", path.string()), second("log", path.string());
  auto write = [](LineFile& file, char c) {
    for (int i = 0; i < 200; ++i) file.write(std::string(300, c));
  };
  std::thread other(write, std::ref(first), 'a'), third(write, std::ref(first), 'b');
  write(second, 'c');
  other.join();
  third.join();
  std::ifstream in(path);
  std::map<std::string, int> lines;
  for (std::string line; std::getline(in, line);) ++lines[line];
  EXPECT_EQ(lines, (std::map<std::string, int>{{std::string(300, 'a'), 200},
                                               {std::string(300, 'b'), 200},
                                               {std::string(300, 'c'), 200}}));
  std::filesystem::remove(path);
}

TEST(LineFile, AFullDiskIsOneWarning) {
  LineFile file("request log", "/dev/full");
  testing::internal::CaptureStderr();
  file.write("one");
  file.write("two");
  std::string text = testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1) << text;
  EXPECT_NE(text.find("request log /dev/full"), std::string::npos) << text;
  EXPECT_THROW(LineFile("log", "/no/such/folder/x"), Error);
}

TEST(Check, ThrowsInternalWithPlace) {
  try {
    TK_CHECK(1 == 2, "values {} and {}", 1, 2);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kInternal);
    EXPECT_NE(std::string(e.what()).find("base_test.cc"), std::string::npos);
  }
}

// Named and unnamed: the old content until commit(), then the new one, and nothing besides.
TEST(NewFile, TakesItsNameWhenItIsComplete) {
  namespace fs = std::filesystem;
  fs::path folder = fs::temp_directory_path() / fmt::format("tk_new_file_{}", ::getpid());
  fs::create_directories(folder);
  auto bytes = [](std::string_view text) { return std::as_bytes(std::span(text)); };
  auto files = [&] { return std::distance(fs::directory_iterator(folder), {}); };
  for (bool unnamed : {true, false})
    for (const char* text : {"first", "second"}) {
      fs::path path = folder / (unnamed ? "a" : "b");
      const bool replaces = std::string_view(text) == "second";
      const auto before = files();
      {
        NewFile dropped(path, unnamed);
        dropped.write(bytes("lost"));
      }
      EXPECT_EQ(files(), before);
      NewFile file(path, unnamed);
      file.write(bytes("....."));
      file.write(bytes(text));
      file.rewrite(0, bytes("begin"));
      if (replaces) {
        EXPECT_EQ(read_text_file(path), "beginfirst");
      }
      EXPECT_EQ(files(), before + (unnamed ? 0 : 1));
      file.commit();
      EXPECT_EQ(read_text_file(path), std::string("begin") + text);
      EXPECT_EQ(files(), before + (replaces ? 0 : 1));
    }
  EXPECT_THROW(NewFile("/nowhere/at/all"), Error);
  // A link is followed; a pipe, a device or a folder is not replaced.
  write_text_file(folder / "file", "old");
  fs::create_symlink("file", folder / "link");
  replace_file(folder / "link", "new");
  EXPECT_TRUE(fs::is_symlink(folder / "link"));
  EXPECT_EQ(read_text_file(folder / "file"), "new");
  fs::create_symlink("later", folder / "early");
  replace_file(folder / "early", "there");
  EXPECT_TRUE(fs::is_symlink(folder / "early"));
  EXPECT_EQ(read_text_file(folder / "later"), "there");
  fs::create_symlink("/dev/null", folder / "null");
  EXPECT_THROW(NewFile(folder / "null"), Error);
  replace_file(folder / "null", "x");
  EXPECT_TRUE(fs::is_character_file(folder / "null"));
  EXPECT_THROW(NewFile{folder}, Error);
  fs::remove_all(folder);
}

TEST(Sha256, EqualsThePublishedExamples) {
  auto hash = [](std::string_view text, size_t step) {
    Sha256 h;
    for (size_t at = 0; at < text.size(); at += step)
      h.add(std::as_bytes(std::span(text.substr(at, step))));
    return h.hex();
  };
  const std::string million(1000000, 'a');
  const std::pair<std::string_view, const char*> cases[] = {
      {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
      {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
      {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
       "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
      {million, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"}};
  for (const auto& [text, expected] : cases)
    for (size_t step : {1, 63, 64, 65, 4096}) EXPECT_EQ(hash(text, step), expected) << step;
}

}  // namespace
}  // namespace tokamak
