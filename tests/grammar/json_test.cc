// JSON grammars: bounds of numbers by enumeration, long strings, hostile schemas.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <regex>
#include <set>

#include "base/error.h"
#include "base/json.h"
#include "base/rng.h"
#include "tests/grammar/test_vocabulary.h"
#include "text/grammar/json_number.h"
#include "text/grammar/json_schema.h"
#include "text/grammar/value_types.h"

namespace tokamak::grammar {
namespace {

std::shared_ptr<const Grammar> schema_grammar(const std::string& text) {
  static const auto vocabulary = byte_vocabulary();
  return std::make_shared<Grammar>(json_schema_grammar(parse_json(text)), vocabulary);
}

std::string error_of(const std::string& text) {
  try {
    schema_grammar(text);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

// Every integer of a range, and numbers with up to two digits after the point.
TEST(JsonNumber, BoundsByEnumeration) {
  for (int low : {-120, -10, -9, -1, 0, 1, 7, 10, 99, 100})
    for (int high : {-100, -11, -1, 0, 1, 9, 10, 11, 105})
      for (bool exclusive : {false, true}) {
        if (low >= high) continue;
        NumberBounds bounds;
        bounds.min = decimal_of(Value(low));
        bounds.max = decimal_of(Value(high));
        bounds.above_min = bounds.below_max = exclusive;
        CharFsm integers = number_fsm(bounds, true, false),
                numbers = number_fsm(bounds, true, true);
        for (int hundredths = -13000; hundredths <= 13000;
             hundredths += hundredths % 100 == 0 ? 1 : 33) {
          bool in = exclusive ? low * 100 < hundredths && hundredths < high * 100
                              : low * 100 <= hundredths && hundredths <= high * 100;
          int size = std::abs(hundredths);
          std::string text =
              fmt::format("{}{}.{:02}", hundredths < 0 ? "-" : "", size / 100, size % 100);
          ASSERT_EQ(numbers.matches(std::string_view(text)), in)
              << low << ".." << high << " " << text;
          if (hundredths % 100 == 0) {
            std::string whole = std::to_string(hundredths / 100);
            ASSERT_EQ(integers.matches(std::string_view(whole)), in) << whole;
            ASSERT_EQ(numbers.matches(std::string_view(whole)), in) << whole;
          }
        }
      }
}

TEST(JsonNumber, Multiples) {
  struct Divisor {
    double value;
    int hundredths;
  };
  for (Divisor d : {Divisor{7, 700}, {0.25, 25}, {0.5, 50}, {1.1, 110}, {100, 10000}, {0.01, 1}}) {
    NumberBounds bounds;
    bounds.multiples_of.push_back(decimal_of(Value(d.value)));
    CharFsm fsm = number_fsm(bounds, true, true);
    for (int hundredths = -3000; hundredths <= 3000; ++hundredths) {
      int size = std::abs(hundredths);
      std::string text =
          fmt::format("{}{}.{:02}", hundredths < 0 ? "-" : "", size / 100, size % 100);
      if (hundredths % 100 == 0)
        text.resize(text.size() - 3);
      else if (hundredths % 10 == 0)
        text.pop_back();
      ASSERT_EQ(fsm.matches(std::string_view(text)), hundredths % d.hundredths == 0)
          << d.value << ": " << text;
    }
  }
  EXPECT_NE(error_of(R"({"type":"integer","multipleOf":123457})").find("#/multipleOf"),
            std::string::npos);
  EXPECT_NE(error_of(R"({"type":"number","multipleOf":0})").find("greater than 0"),
            std::string::npos);
}

TEST(JsonNumber, Decimals) {
  for (const char* text : {"1e3", "1000.0", "1000"}) {
    Decimal d = decimal_of(parse_json(text));
    EXPECT_EQ(d.whole, "1000") << text;
    EXPECT_EQ(d.fraction, "") << text;
  }
  Decimal small = decimal_of(parse_json("-1.25e-3"));
  EXPECT_TRUE(small.negative && small.whole == "0" && small.fraction == "00125");
  EXPECT_FALSE(decimal_of(parse_json("-0.0")).negative);
}

TEST(JsonSchema, LongStrings) {
  auto grammar = schema_grammar(R"({"type":"string","minLength":700,"maxLength":65536})");
  auto text = [](size_t n) { return '"' + std::string(n, 'x') + '"'; };
  for (size_t n : {700u, 701u, 1211u, 1212u, 1213u, 5000u, 65535u, 65536u})
    EXPECT_TRUE(grammar->matches(text(n))) << n;
  for (size_t n : {0u, 1u, 699u, 65537u}) EXPECT_FALSE(grammar->matches(text(n))) << n;
  // An escape is one character, and so is a pair of surrogates.
  auto two = schema_grammar(R"({"type":"string","minLength":2,"maxLength":2})");
  for (const char* good :
       {R"("\n\"")", R"("\u00e9x")", R"("\ud83d\ude00x")", "\"\xF0\x9F\x98\x80x\""})
    EXPECT_TRUE(two->matches(good)) << good;
  for (const char* bad : {R"("\ud83dx")", R"("x")", R"("\q1")", "\"a\nb\""})
    EXPECT_FALSE(two->matches(bad)) << bad;
}

TEST(JsonSchema, WhiteSpaceIsBounded) {
  auto grammar = schema_grammar(R"({"type":"object","properties":{"a":{"type":"integer"}}})");
  for (const char* good :
       {R"({})", R"({"a":1})", R"({ "a": 1 })", "{\n  \"a\": 1\n}", "{\n\t\"a\":\n1\n}"})
    EXPECT_TRUE(grammar->matches(good)) << good;
  for (const char* bad :
       {R"({"a" :1})", R"({  "a":1})", " {}", "{} ", "{\n\n\"a\":1}", R"({"b":1})"})
    EXPECT_FALSE(grammar->matches(bad)) << bad;
}

// A format that is not known is an annotation that the author hears of; with `strict`, an error.
TEST(JsonSchema, UnknownFormats) {
  Value schema = parse_json(R"({"type": "object", "properties": {
      "a": {"type": "string", "format": "shoe-size"}, "b": {"type": "string", "format": "date"},
      "c": {"type": "string", "format": "password"}, "d": {"type": "integer", "format": "x"}}})");
  Grammar grammar(json_schema_grammar(schema), byte_vocabulary());
  ASSERT_EQ(grammar.notes().size(), 1u);
  EXPECT_NE(grammar.notes()[0].find("#/properties/a/format: 'shoe-size' is not known"),
            std::string::npos);
  EXPECT_TRUE(grammar.matches(R"({"a":"any","b":"2024-02-29"})"));
  EXPECT_FALSE(grammar.matches(R"({"a":"any","b":"any"})"));
  try {
    json_schema_grammar(schema, {}, true);
    FAIL() << "the format is not known";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("#/properties/a/format: is not supported"),
              std::string::npos);
  }
  Value many = Value::array();
  for (int i = 0; i < 100; ++i)
    many.push(Value::Object{{"type", "string"}, {"format", fmt::format("f{}", i)}});
  EXPECT_LE(json_schema_grammar(Value::Object{{"prefixItems", many}}).notes.size(), 16u);
}

// What the Python package jsonschema does not check.
TEST(JsonSchema, FormatsOfNumbersAndEncodings) {
  auto matches = [](const char* schema, const char* text) {
    return Grammar(json_schema_grammar(parse_json(schema)), byte_vocabulary()).matches(text);
  };
  EXPECT_TRUE(matches(R"({"type": "integer", "format": "int32"})", "2147483647"));
  EXPECT_FALSE(matches(R"({"type": "integer", "format": "int32"})", "2147483648"));
  EXPECT_FALSE(matches(R"({"type": "integer", "format": "int64"})", "9223372036854775808"));
  EXPECT_TRUE(matches(R"({"type": "integer", "format": "uint64"})", "18446744073709551615"));
  EXPECT_FALSE(matches(R"({"type": "integer", "format": "uint64"})", "18446744073709551616"));
  EXPECT_FALSE(matches(R"({"type": "integer", "format": "int32", "minimum": 5})", "4"));
  EXPECT_TRUE(matches(R"({"type": "string", "contentEncoding": "base64"})", R"("QUI=")"));
  EXPECT_FALSE(matches(R"({"type": "string", "contentEncoding": "base64"})", R"("QUI")"));
  EXPECT_TRUE(matches(R"({"type": "string", "contentEncoding": "base16"})", R"("0A")"));
  EXPECT_FALSE(matches(R"({"type": "string", "contentEncoding": "base32"})", R"("A")"));
}

TEST(JsonSchema, WhiteSpaceMayBeAPattern) {
  Value schema = parse_json(R"({"type": "object", "properties": {"a": {"type": "null"}}})");
  auto matches = [&](const char* space, const char* text) {
    return Grammar(json_schema_grammar(schema, space), byte_vocabulary()).matches(text);
  };
  EXPECT_TRUE(matches("", "{\"a\":null}"));
  EXPECT_FALSE(matches("", "{\"a\": null}"));
  EXPECT_TRUE(matches("[ \\t]{0,2}", "{ \"a\":\t null}"));
  EXPECT_FALSE(matches("[ \\t]{0,2}", "{\n\"a\":null}"));
  EXPECT_TRUE(Grammar(json_object_grammar("\n?"), byte_vocabulary()).matches("{\n\"x\":\n1}"));
  for (const char* bad : {"x?", "[^a]", ".", "("})
    EXPECT_THROW(json_schema_grammar(Value(true), bad), Error) << bad;
  // It would see what follows the white space.
  for (const char* bad : {"(?!\n)\\s?", "^(?= )[ ]?"}) {
    try {
      json_object_grammar(bad);
      FAIL() << bad;
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find("look-around"), std::string::npos) << e.what();
    }
  }
}

// Bounded time, and a message that says what is too much.
TEST(JsonSchema, HostileSchemas) {
  std::string deep;
  for (int i = 0; i < 120; ++i) deep += R"({"type":"array","items":)";
  std::string close(120, '}');
  EXPECT_NE(error_of(R"({"allOf":[{"$ref":"#"}]})"), "x");  // no end in sight, but an answer
  schema_grammar(deep + "{}" + close);
  std::string chain = R"({"$ref":"#/$defs/d0","$defs":{)";
  for (int i = 0; i < 3000; ++i)
    chain += fmt::format(R"("d{}":{{"type":"array","items":{{"$ref":"#/$defs/d{}"}}}},)", i, i + 1);
  schema_grammar(chain + R"("d3000":{"type":"null"}}})");
  std::string refs = R"({"$ref":"#/$defs/d0","$defs":{)";
  for (int i = 0; i < 3000; ++i)
    refs += fmt::format(R"("d{}":{{"$ref":"#/$defs/d{}"}},)", i, i + 1);
  EXPECT_NE(error_of(refs + R"("d3000":{"type":"null"}}})").find("without end"), std::string::npos);
  EXPECT_NE(error_of(R"({"type":"array","maxItems":1000000})").find("are not supported"),
            std::string::npos);
  EXPECT_NE(
      error_of(R"({"type":"string","pattern":"^((a{1,90}){1,90}){1,90}$"})").find("too large"),
      std::string::npos);
  EXPECT_NE(
      error_of(
          R"({"type":"string","pattern":"(a|b)*a(a|b){14}","minLength":8000,"maxLength":9000})")
          .find("too large"),
      std::string::npos);
  std::string any_of = R"({"allOf":[)";
  for (int i = 0; i < 12; ++i)
    any_of += std::string(i ? "," : "") +
              R"({"anyOf":[{"minLength":1},{"minLength":2},{"minLength":3}]})";
  EXPECT_NE(error_of(any_of + "]}").find("too many alternatives"), std::string::npos);
  std::string values = R"({"enum":[)";
  for (int i = 0; i < 60000; ++i)
    values += fmt::format("{}\"value number {}\"", i ? "," : "", i * 7919);
  EXPECT_NE(error_of(values + "]}"), "x");
  EXPECT_NE(error_of(R"({"minLength":-1,"type":"string"})").find("#/minLength"), std::string::npos);
  EXPECT_NE(error_of(R"({"properties":[]})").find("#/properties"), std::string::npos);
  EXPECT_NE(error_of("17").find("a schema is an object"), std::string::npos);
  std::string again = R"({"properties":{"a":{"$ref":"#/$defs/x"}},"$defs":{"x":{"anyOf":[{})";
  for (int i = 0; i < 100; ++i) again += R"(,{"$ref":"#/$defs/x"})";
  EXPECT_EQ(parameter_types(parse_json(again + "]}}}"), "a"), uint32_t{kAllTypes});
  // Values of an enum under schemas that refer to themselves, or to others in 2^40 ways.
  EXPECT_NE(error_of(R"({"anyOf":[{"$ref":"#"}],"enum":[1]})").find("without end"),
            std::string::npos);
  std::string ways = R"({"$ref":"#/$defs/d0","enum":[1,"a"],"$defs":{)";
  for (int i = 0; i < 40; ++i)
    ways += fmt::format(
        R"("d{0}":{{"anyOf":[{{"$ref":"#/$defs/d{1}"}},{{"$ref":"#/$defs/d{1}"}}]}},)", i, i + 1);
  std::string nested = R"({"$ref":"#/$defs/d0","$defs":{)";
  for (int i = 0; i < 3000; ++i)
    nested +=
        fmt::format(R"("d{}":{{"oneOf":[{{"$ref":"#/$defs/d{}"}},{{"type":"null"}}]}},)", i, i + 1);
  EXPECT_NE(error_of(nested + R"("d3000":{"type":"string"}}})").find("nested too deeply"),
            std::string::npos);
  EXPECT_NE(error_of(ways + R"("d40":{"type":"string"}}})").find("too many alternatives"),
            std::string::npos);
  ways = R"({"type":"array","uniqueItems":true,"items":{"$ref":"#/$defs/d0"},)" +
         ways.substr(ways.find(R"("$defs")"));
  EXPECT_NE(error_of(ways + R"("d40":{"type":"string"}}})").find("#/uniqueItems: is only"),
            std::string::npos);
}

// Where there is no single cause, the message names the largest part.
TEST(JsonSchema, LimitsOfSizeNameAPlace) {
  std::string names, values;
  for (int i = 0; i < 4000; ++i) names += fmt::format(R"({}"m{}":{{}})", i ? "," : "", i);
  for (int i = 0; i < 40000; ++i)
    values += fmt::format(R"({}"{}")", i ? "," : "", i * 7919L * 7919);
  const std::pair<std::string, const char*> cases[] = {
      {R"({"properties":{"a":{"minProperties":200,"properties":{)" + names + "}}}}",
       "#/properties/a: minProperties or maxProperties is too large"},
      {R"({"properties":{"a":{"enum":[)" + values + "]}}}", "'#/properties/a/enum'"},
      {R"({"properties":{"a":{"type":"array","items":{"pattern":"^((a|b){1,140}c){1,140}$"}}}})",
       "#/properties/a/items/pattern: a pattern is too large"},
      {R"({"properties":{"a":{"type":"string","not":{"pattern":"(a|b)*a(a|b){30}"}}}})",
       "#/properties/a/not: a pattern is too large"},
  };
  for (const auto& [schema, place] : cases)
    EXPECT_NE(error_of(schema).find(place), std::string::npos) << place << ": " << error_of(schema);
}

// Few validations, each of which compares a value with very many others.
TEST(JsonSchema, LongListsUnderAlternatives) {
  std::string listed = R"({"enum":[1],"anyOf":[{"$ref":"#/$defs/e"})";
  for (int i = 0; i < 120; ++i) listed += R"(,{"$ref":"#/$defs/e"})";
  listed += R"(],"$defs":{"e":{"enum":["")";
  for (int i = 0; i < 64000; ++i) listed += R"(,"a")";
  EXPECT_NE(error_of(listed + "]}}}").find("too many alternatives"), std::string::npos);
}

// 160 members, each with 100 values that are validated under 20 alternatives.
TEST(JsonSchema, ManyListsOfValuesBesideAlternatives) {
  std::string values, alternatives, members;
  for (int i = 0; i < 100; ++i) values += fmt::format("{}\"v{}\"", i ? "," : "", i);
  for (int i = 0; i < 20; ++i)
    alternatives += fmt::format(R"({}{{"type":"string","minLength":{}}})", i ? "," : "", i + 3);
  for (int i = 0; i < 160; ++i)
    members += fmt::format(R"({}"m{}":{{"enum":[{}],"anyOf":[{}]}})", i ? "," : "", i, values,
                           alternatives);
  const auto grammar = schema_grammar(R"({"type":"object","properties":{)" + members + "}}");
  EXPECT_TRUE(grammar->matches(R"({"m0":"v10","m159":"v99"})"));
  EXPECT_FALSE(grammar->matches(R"({"m0":"v10","m159":"v9"})"));  // too short
  EXPECT_FALSE(grammar->matches(R"({"m0":"v100"})"));
}

// A token is allowed if and only if some text without repetition goes on with it: the masks of
// random vocabularies against the texts that match.
TEST(UniqueStrings, MasksForbidRepetitions) {
  auto vocabulary = random_vocabulary("ab\",[]", 700, 7);
  const auto grammar = std::make_shared<Grammar>(
      json_schema_grammar(
          parse_json(R"({"type": "array", "items": {"type": "string"}, "uniqueItems": true})"), ""),
      vocabulary);
  EXPECT_FALSE(grammar->matches(R"(["a","\u0061"])"));
  EXPECT_TRUE(grammar->matches(R"(["a","\u0062"])"));
  std::string many = "[";
  for (int i = 0; i < 100; ++i) many += fmt::format("\"a{}\",", i);
  EXPECT_TRUE(grammar->matches(many + "\"a\"]"));
  for (int i : {0, 31, 32, 63, 64, 99})
    EXPECT_FALSE(grammar->matches(many + fmt::format("\"a{}\"]", i))) << i;
  Rng rng(11);
  int forbidden = 0;
  for (int round = 0; round < 5; ++round) {
    Matcher matcher(grammar);
    std::string text;
    for (int step = 0; step < 9 && !matcher.finished(); ++step) {
      std::vector<uint32_t> mask(vocabulary->words(), 0);
      matcher.fill_mask(mask);
      std::vector<int32_t> allowed;
      for (int32_t id = 1; id < static_cast<int32_t>(vocabulary->size()); ++id) {
        std::string next = text + std::string(vocabulary->bytes(id));
        // Whatever may follow is completed by a string that is nowhere in the text.
        bool wanted = false;
        for (const char* rest : {"", "]", ",\"zz\"]", "zz\"]", "\"zz\"]", "\"]"})
          wanted |= grammar->matches(next + rest);
        const bool whole = id != 1 + 0x5C && (id <= 128 || id > 256);  // no part of a character
        if (whole && has_bit(mask, id) != wanted) ADD_FAILURE() << next;
        if (whole && has_bit(mask, id)) allowed.push_back(id);
        Matcher fork = matcher;
        if (fork.accept(id) != has_bit(mask, id)) ADD_FAILURE() << next;
        forbidden += !wanted && next.starts_with("[\"");
      }
      ASSERT_FALSE(allowed.empty()) << text;
      int32_t id = allowed[rng.below(allowed.size())];
      if (step % 3 == 2) {  // and back
        ASSERT_TRUE(matcher.accept(id));
        matcher.rollback(1);
      }
      ASSERT_TRUE(matcher.accept(id));
      text += vocabulary->bytes(id);
    }
  }
  EXPECT_GT(forbidden, 100);
}

// Objects of MasksForbidEqualObjects that are the same until the end of "a".
bool repeats_object(const std::string& text) {
  static const std::regex object(R"(\{\s*("n":\s*(-?[0-9]+),\s*)?"a":\s*("([^"\\]|\\[^])*"))");
  std::set<std::pair<std::string, std::string>> known;
  for (std::sregex_iterator it(text.begin(), text.end(), object), end; it != end; ++it) {
    const std::string n = (*it)[2].str();
    const std::string number = n.empty() ? "" : fmt::format("{}", std::stod(n) + 0.0);
    if (!known.emplace(number, parse_json((*it)[3].str()).as_string()).second) return true;
  }
  return false;
}

// The masks are those of the schema without uniqueItems, except for tokens that complete such an
// object.
TEST(UniqueStrings, MasksForbidEqualObjects) {
  std::vector<std::string> tokens{"[{\"a\":\"",
                                  "\"},{\"a\":\"",
                                  "x\"},{\"a\":\"x\"}",
                                  "\"}",
                                  "\"}, ",
                                  "{\"n\":1,",
                                  "\"},{\"n\":1,",
                                  "xy",
                                  "y\"},{\"n\":1,\"a\":\"y\"}",
                                  "\\u0078\"}"};
  for (int byte = 1; byte < 128; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
  const auto vocabulary = std::make_shared<Vocabulary>(tokens);
  Value schema = parse_json(R"({"type": "array", "uniqueItems": true, "items": {
      "type": "object", "properties": {"n": {"type": "integer"}, "a": {"type": "string"},
      "b": {"type": "string"}}, "required": ["a"]}})");
  const auto grammar = std::make_shared<Grammar>(json_schema_grammar(schema), vocabulary);
  schema.set("uniqueItems", false);
  const auto any = std::make_shared<Grammar>(json_schema_grammar(schema), vocabulary);
  EXPECT_TRUE(grammar->matches(R"([{"a":"x"},{"n":1,"a":"x"},{"n":2,"a":"x"},{"a":"y"}])"));
  EXPECT_FALSE(grammar->matches(R"([{"n":1,"a":"x"},{"a":"x"},{"n":1,"a":"\u0078"}])"));
  EXPECT_FALSE(grammar->matches(R"([{"n":0,"a":"x"},{"n": -0,"a":"x"}])"));
  // Members that follow the string are not compared.
  EXPECT_FALSE(grammar->matches(R"([{"a":"x","b":"1"},{"a":"x","b":"2"}])"));
  EXPECT_TRUE(grammar->matches(R"([{"a":"x","b":"1"},{"a":"y","b":"1"}])"));
  Rng rng(12);
  int forbidden = 0;
  for (int round = 0; round < 80; ++round) {
    Matcher matcher(grammar), free(any);
    std::string text;
    for (int step = 0; step < 14 && !matcher.finished(); ++step) {
      std::vector<uint32_t> mask(vocabulary->words(), 0), all(vocabulary->words(), 0);
      matcher.fill_mask(mask);
      free.fill_mask(all);
      std::vector<int32_t> allowed;
      for (int32_t id = 0; id < static_cast<int32_t>(vocabulary->size()); ++id) {
        const std::string next = text + std::string(vocabulary->bytes(id));
        const bool wanted = has_bit(all, id) && !repeats_object(next);
        if (has_bit(mask, id) != wanted) ADD_FAILURE() << next;
        Matcher fork = matcher;
        if (fork.accept(id) != wanted) ADD_FAILURE() << next;
        if (wanted && (id < 10 || rng.below(10) == 0)) allowed.push_back(id);
        forbidden += has_bit(all, id) && !wanted;
      }
      if (allowed.empty()) break;
      const int32_t id = allowed[rng.below(allowed.size())];
      ASSERT_TRUE(matcher.accept(id) && free.accept(id)) << text;
      text += vocabulary->bytes(id);
    }
  }
  EXPECT_GT(forbidden, 40);
}

// Tokens of words, of other plain characters, with quotes and escapes, and some that begin inside
// of a character.
std::shared_ptr<const Vocabulary> string_tokens() {
  const std::vector<std::string> parts = {"a",  "b", "f",  "n", "u",  "z",    "A",    "Z",  "0",
                                          "1",  "9", " ",  ".", "-",  "_",    "@",    ":",  ",",
                                          "\"", "{", "}",  "é", "日", "\xE6", "\x97", "\n", "\x01",
                                          "a",  "b", "\\", "e", "Z",  "5"};
  std::mt19937 rng(13);
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
  while (tokens.size() < 2400) {
    std::string text;
    const size_t kinds = rng() % 3 == 0 ? parts.size() : 11;  // words are the most frequent
    for (size_t count = 1 + rng() % (rng() % 8 == 0 ? 30 : 6); count > 0; --count)
      text += parts[rng() % kinds];
    if (rng() % 4 == 0) text = parts[rng() % parts.size()] + text;
    tokens.push_back(text);
  }
  return std::make_shared<Vocabulary>(tokens);
}

// Masks of strings are found for many tokens at once: all of a length, or all of a shape.
TEST(JsonSchema, MasksOfStringsAreTheAcceptedTokens) {
  const auto vocabulary = string_tokens();
  const auto size = static_cast<int32_t>(vocabulary->size());
  for (const char* schema :
       {R"({"type": "string"})", R"({"type": "string", "minLength": 2, "maxLength": 5})",
        R"({"type": "string", "minLength": 3, "maxLength": 40})",
        R"({"type": "string", "format": "email"})", R"({"type": "string", "format": "uri"})",
        R"({"type": "string", "format": "uuid"})",
        R"({"type": "string", "pattern": "^[a-z]{2,}-[A-Z0-9]{1,4}$"})",
        R"({"type": "string", "pattern": "^[^@]+@[^a]*$"})",
        R"({"type": "string", "pattern": "^\\p{L}{1,12}$"})",
        R"({"type": "string", "pattern": "(?i)^(ab|ba|z)+$", "maxLength": 9})",
        R"({"enum": ["a", "aZ", "ab9", "bé", "Z\n"]})", R"({"additionalProperties": true})"}) {
    const auto grammar =
        std::make_shared<Grammar>(json_schema_grammar(parse_json(schema)), vocabulary);
    std::mt19937 rng(17);
    for (int round = 0; round < 4; ++round) {
      Matcher matcher(grammar);
      for (int step = 0; step < 6; ++step) {
        std::vector<uint32_t> mask(vocabulary->words(), 0);
        matcher.fill_mask(mask);
        std::vector<int32_t> allowed;
        for (int32_t id = 0; id < size; ++id) {
          const bool expected = matcher.accept(id);
          if (expected) matcher.rollback(1);
          ASSERT_EQ(has_bit(mask, id), expected)
              << schema << ", step " << step << ": " << dump_json(Value::Array{id});
          if (expected) allowed.push_back(id);
        }
        if (allowed.empty()) break;
        ASSERT_TRUE(matcher.accept(allowed[rng() % allowed.size()]));
      }
    }
  }
}

}  // namespace
}  // namespace tokamak::grammar
