// How bodies are cut into loop programs and anchors.
#include "compile/lower/region.h"

#include "compile/lower/lower_test_util.h"

namespace tokamak {
namespace {

Region build(const std::string& body) {
  Module m = parse_module(
      "module m format 1\nsymbol T in 1..4096\ngroup full window 0 block 16\n"
      "state kv in full per_token {k: f32[h=2, d=8], v: f32[h=2, d=8]}\n"
      "constant half : f32[] = [0.5]\nfunc body {\n" +
      body + "}\n");
  BuiltRegion built = build_region(*m.find_function("body"));
  EXPECT_TRUE(built) << built.reason;
  return built ? *built.region : Region{};
}

// "loop(0 1) -> 5 | linear(5 2) -> 6": pieces with the values they read and produce.
std::string outline(const Region& region) {
  std::string out;
  auto list = [](const std::vector<uint32_t>& values) {
    std::string text;
    for (uint32_t v : values) text += fmt::format("{}{}", text.empty() ? "" : " ", v);
    return text;
  };
  for (const RegionPiece& p : region.pieces)
    out += fmt::format("{}{}({}) -> {}", out.empty() ? "" : " | ", p.is_anchor() ? p.op : "loop",
                       list(p.in), list(p.out));
  return out + " return " + list(region.results);
}

TEST(BuildRegion, BodiesThatLowerAreOneProgram) {
  for (const testing::BodyCase& c : testing::body_cases()) {
    Module m = testing::body_module(c, 16);
    BuiltRegion built = build_region(*m.find_function("body"));
    ASSERT_TRUE(built) << c.name << ": " << built.reason;
    ASSERT_NE(built.region->whole_program(), nullptr) << c.name;
    EXPECT_EQ(*built.region->whole_program(), *lower_region(*m.find_function("body")).program);
  }
}

TEST(BuildRegion, ProgramsBeforeAndAfterMatrices) {
  Region r = build(R"(  %0 = input x : f32[t=T, d=64]
  %1 = input w : f32[d=64]
  %2 = input gate : q4_0[n=96, k=64]
  %3 = input up : q4_0[n=96, k=64]
  %4 = rms_norm(%0, %1) {eps=1e-05}
  %5 = quantize(%4) {format="q8a"}
  %6 = linear(%5, %2)
  %7 = linear(%5, %3)
  %8 = silu(%6)
  %9 = mul(%8, %7)
  %10 = mul(%9, $half)
  %11 = quantize(%10) {format="q8a"}
  return out = %11
)");
  EXPECT_EQ(outline(r),
            "loop(0 1) -> 4 | linear(4 2) -> 5 | linear(4 3) -> 6 | loop(5 6) -> 7 return 7");
  EXPECT_EQ(r.values[4].tensor.dtype, DType::kQ8A);
  EXPECT_EQ(r.values[7].tensor.dtype, DType::kQ8A);
  EXPECT_EQ(r.whole_program(), nullptr);
}

TEST(BuildRegion, UnconnectedOpsAreProgramsOfTheirOwn) {
  Region r = build(R"(  %0 = input s : state<kv>
  %1 = input view : view<full>
  %2 = input seq : i32[t=T]
  %3 = input slot : i32[t=T]
  %4 = input q : f32[t=T, h=4, d=8]
  %5 = input k : f32[t=T, h=2, d=8]
  %6 = input v : f32[t=T, h=2, d=8]
  %7 = input pos : i32[t=T]
  %8 = input w : f32[d=8]
  %9 = input freq : f32[f=4]
  %10 = rms_norm(%4, %8) {eps=1e-05}
  %11 = rope(%10, %7, %9)
  %12 = rms_norm(%5, %8) {eps=1e-05}
  %13 = rope(%12, %7, %9)
  %14 = append(%0, %1, %2, %3, %13, %6)
  return kv = %14
  return q = %11
)");
  EXPECT_EQ(outline(r),
            "loop(4 8) -> 10 | loop(5 8) -> 11 | rope(10 7 9) -> 12 | rope(11 7 9) -> 13 | "
            "append(0 1 2 3 13 6) -> 14 return 14 12");
  EXPECT_EQ(r.values[0].kind, Type::Kind::kState);
  EXPECT_EQ(r.values[0].name, "");  // layers share regions
  EXPECT_EQ(r.values[1].name, "");
}

TEST(BuildRegion, AValueOfAnEarlierProgramCanBeReadLater) {
  Region r = build(R"(  %0 = input x : f32[t=T, d=32]
  %1 = input w : f32[n=32, k=32]
  %2 = neg(%0)
  %3 = linear(%2, %1)
  %4 = add(%2, %3)
  %5 = linear(%4, %1)
  %6 = mul(%5, %2)
  return a = %6
  return b = %0
)");
  EXPECT_EQ(outline(r),
            "loop(0) -> 2 | linear(2 1) -> 3 | loop(2 3) -> 4 | linear(4 1) -> 5 | "
            "loop(5 2) -> 6 return 6 0");
}

TEST(BuildRegion, ResultsThatNeedDifferentSpacesAreSplit) {
  Region r = build(R"(  %0 = input x : f32[t=T, d=32]
  %1 = input w : f32[n=32, k=32]
  %2 = neg(%0)
  %3 = slice(%2) {axis=-1, start=0, end=8}
  %4 = linear(%2, %1)
  return a = %3
  return b = %4
)");
  EXPECT_EQ(outline(r), "loop(0) -> 2 | loop(2) -> 3 | linear(2 1) -> 4 return 3 4");
}

TEST(BuildRegion, SaysWhyThereIsNone) {
  Module m = parse_module(R"(module m format 1
symbol T in 1..4096
func body {
  %0 = input x : f32[t=T, d=32]
  %1 = input w : q4_0[n=32, k=32]
  %2 = input y : f32[n=32, k=32]
  %3 = linear(%0, %1)
  %4 = add(%1, %2)
  %5 = linear(%3, %4)
  return a = %5
}
)");
  BuiltRegion built = build_region(*m.find_function("body"));
  EXPECT_FALSE(built);
  EXPECT_NE(built.reason.find("has to be decoded"), std::string::npos) << built.reason;
}

}  // namespace
}  // namespace tokamak
