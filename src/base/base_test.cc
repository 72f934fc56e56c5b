#include <gtest/gtest.h>

#include "base/error.h"
#include "base/json.h"
#include "base/rng.h"
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

TEST(Check, ThrowsInternalWithPlace) {
  try {
    TK_CHECK(1 == 2, "values {} and {}", 1, 2);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kInternal);
    EXPECT_NE(std::string(e.what()).find("base_test.cc"), std::string::npos);
  }
}

}  // namespace
}  // namespace tokamak
