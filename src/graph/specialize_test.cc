#include <gtest/gtest.h>

#include <cctype>

#include "base/error.h"
#include "graph/graph.h"
#include "graph/test_models.h"

namespace tokamak {
namespace {

// Replaces whole words.
std::string replace_word(std::string text, std::string_view from, std::string_view to) {
  auto word = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.';
  };
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos;) {
    const bool whole = (at == 0 || !word(text[at - 1])) &&
                       (at + from.size() == text.size() || !word(text[at + from.size()]));
    if (whole) text.replace(at, from.size(), to);
    at += whole ? to.size() : from.size();
  }
  return text;
}

TEST(Specialize, DecodeIsStepWithSymbolsReplaced) {
  Module m = tiny_decoder(2);
  const std::string step = print_function(*m.find_function("step"));
  Function& decode = specialize_decode(m);
  verify_module(m);
  std::string expected = replace_word(replace_word(step, "T", "B"), "R", "B");
  expected = replace_word(expected, "step", "decode");
  expected.insert(expected.find('\n') + 1, "  fact q_start = iota*1\n  fact out_rows = iota*1\n");
  EXPECT_EQ(print_function(decode), expected);
  EXPECT_EQ(print_function(*m.find_function("step")), step);
  EXPECT_EQ(decode.facts().size(), 2u);
}

TEST(Specialize, VerifyHasSeveralRowsPerSequence) {
  Module m = tiny_decoder(1);
  Function& verify = specialize_verify(m, 3);
  verify_module(m);
  EXPECT_EQ(verify.name(), "verify3");
  EXPECT_EQ(verify.tensor(verify.find_input("ids")).text(), "i32[t=4*B]");
  EXPECT_EQ(verify.tensor(verify.find_input("out_rows")).text(), "i32[r=4*B]");
  EXPECT_EQ(verify.facts()[0], (Fact{"q_start", Fact::Kind::kIotaTimes, 4}));
  EXPECT_EQ(verify.facts()[1], (Fact{"out_rows", Fact::Kind::kIotaTimes, 1}));
  const std::string text = print_module(m);
  EXPECT_EQ(print_module(parse_module(text)), text);
  EXPECT_NE(text.find("dims=[\"4*B\", 8]"), std::string::npos);
  EXPECT_THROW(specialize_verify(m, 0), Error);
}

// A change of step, whatever it is, is a change of decode: there is no second source.
TEST(Specialize, DecodeFollowsStep) {
  Module a = tiny_decoder(1), b = tiny_decoder(1);
  Function& step = *b.find_function("step");
  Ref logits = step.results()[1].ref;
  ASSERT_EQ(step.results()[1].name, "logits");
  step.set_result("logits", step.add("softcap", {logits}, Value::Object{{"cap", 30.0}}, "cap"));
  Function &da = specialize_decode(a), &db = specialize_decode(b);
  EXPECT_NE(structural_hash(da), structural_hash(db));
  EXPECT_EQ(db.nodes().size(), step.nodes().size());
  EXPECT_EQ(db.node(db.results()[1].ref.node).op->name, "softcap");
}

TEST(Specialize, EqualNodesMerge) {
  Module m = parse_module(
      "module m format 1\n"
      "symbol T in 1..8\nsymbol B in 1..8\n"
      "func step {\n"
      "  %0 = iota() {n=\"T\"}\n"
      "  %1 = iota() {n=\"B\"}\n"
      "  return a = %0\n  return b = %1\n}\n");
  Function& f = specialize(m, "step", "same", {{"T", SymExpr::symbol("B")}}, {});
  EXPECT_EQ(f.nodes().size(), 1u);
  EXPECT_EQ(f.results()[0].ref, f.results()[1].ref);
  verify_module(m);
}

TEST(Specialize, RefusesWhatIsNotThere) {
  Module m = tiny_decoder(1);
  EXPECT_THROW(specialize(m, "nowhere", "x", {}, {}), Error);
  EXPECT_THROW(specialize(m, "step", "x", {{"Q", 1}}, {}), Error);
  EXPECT_THROW(specialize(m, "step", "x", {}, {{"nothing", Fact::Kind::kIotaTimes, 1}}), Error);
  EXPECT_THROW(specialize(m, "step", "step", {}, {}), Error);
  EXPECT_EQ(m.functions.size(), 1u);
  specialize_decode(m);
  EXPECT_THROW(specialize_decode(m), Error);
  Module empty("empty");
  EXPECT_THROW(specialize_decode(empty), Error);
}

}  // namespace
}  // namespace tokamak
