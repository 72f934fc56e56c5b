#include "tensor/sym.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "base/rng.h"

namespace tokamak {
namespace {

using Values = std::map<std::string, int64_t, std::less<>>;

TEST(SymExpr, CanonicalText) {
  const std::pair<const char*, const char*> cases[] = {
      {"0", "0"},
      {"T", "T"},
      {"1 + T*2", "2*T + 1"},
      {"T+T", "2*T"},
      {"T - T", "0"},
      {"B*T", "B*T"},
      {"T*B", "B*T"},
      {"(T+1)*(T-1)", "T*T - 1"},
      {"-T + 3", "-T + 3"},
      {"3 - 2*T", "-2*T + 3"},
      {"--T", "T"},
      {"ceildiv(T, 16)", "ceildiv(T, 16)"},
      {"ceildiv(T, 1)", "T"},
      {"ceildiv(32*T + 16, 16)", "2*T + 1"},
      {"ceildiv(16*T + B, 16)", "T + ceildiv(B, 16)"},
      {"ceildiv(4*T + 6, 8)", "ceildiv(2*T + 3, 4)"},
      {"ceildiv(ceildiv(T, 4), 8)", "ceildiv(T, 32)"},
      {"ceildiv(-7, 2)", "-3"},
      {"ceildiv(7, 2)", "4"},
      {"min(T, B)", "min(B, T)"},
      {"min(T, min(3, B), 5)", "min(3, B, T)"},
      {"max(T, T + 2, T - 1)", "T + 2"},
      {"max(T, T)", "T"},
      {"2*max(T, B)*T", "2*T*max(B, T)"},
      {"N.full*16", "16*N.full"},
  };
  for (auto [in, out] : cases) {
    EXPECT_EQ(SymExpr::parse(in).text(), out) << in;
    EXPECT_EQ(SymExpr::parse(out).text(), out);
    EXPECT_EQ(SymExpr::parse(out), SymExpr::parse(in));
  }
}

TEST(SymExpr, HostileTextIsRefused) {
  const std::string nested = std::string(500, '(') + "T" + std::string(500, ')');
  std::string calls = "T", power = "T", sum = "T", wide = "(a0";
  for (int i = 0; i < 40; ++i) calls = "ceildiv(" + calls + " + 1, 3)";
  for (int i = 0; i < 40; ++i) power += "*T";
  for (int i = 0; i < 3000; ++i) sum += "+T";
  for (int i = 1; i < 40; ++i) wide += "+a" + std::to_string(i);
  wide = wide + ")*" + wide + ")";
  for (const std::string& bad : std::vector<std::string>{"",
                                                         " ",
                                                         "T +",
                                                         "+",
                                                         "T T",
                                                         "2T",
                                                         "(T",
                                                         "T)",
                                                         "T*",
                                                         "ceildiv(T)",
                                                         "ceildiv(T, 0)",
                                                         "ceildiv(T, B)",
                                                         "ceildiv(T, -1)",
                                                         "min()",
                                                         "min(T",
                                                         "min",
                                                         "max + 1",
                                                         "9223372036854775808",
                                                         "99999999999999999999",
                                                         "9223372036854775807*2",
                                                         "9223372036854775807*T + T",
                                                         "T/2",
                                                         "$",
                                                         "T\n",
                                                         std::string("T\0", 2),
                                                         nested,
                                                         calls,
                                                         power,
                                                         sum,
                                                         wide}) {
    try {
      SymExpr e = SymExpr::parse(bad);
      ADD_FAILURE() << bad.substr(0, 60) << " was read as " << e.text();
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::kInvalidArgument) << bad.substr(0, 60);
    }
  }
  EXPECT_THROW(SymExpr::symbol("2x"), Error);
  EXPECT_THROW(SymExpr::symbol("min"), Error);
  EXPECT_THROW(SymExpr::symbol(""), Error);
}

TEST(SymExpr, ValuesAndOverflow) {
  SymExpr e = SymExpr::parse("2*T*B + ceildiv(T, 16) - min(B, 3)");
  EXPECT_EQ(e.eval({{"T", 33}, {"B", 2}}), 132 + 3 - 2);
  EXPECT_EQ(e.symbols(), (std::vector<std::string>{"B", "T"}));
  EXPECT_THROW(e.eval({{"T", 1}}), Error);
  EXPECT_THROW(e.eval({{"T", INT64_MAX}, {"B", 2}}), Error);
  EXPECT_EQ(SymExpr(7).constant(), 7);
  EXPECT_FALSE(e.constant());
  EXPECT_THROW(SymExpr(INT64_MIN), Error);
}

TEST(SymExpr, SubstituteIsSimultaneous) {
  SymExpr e = SymExpr::parse("T + 10*B + min(T, B)");
  auto swapped = e.substitute({{"T", SymExpr::symbol("B")}, {"B", SymExpr::symbol("T")}});
  EXPECT_EQ(swapped, SymExpr::parse("B + 10*T + min(T, B)"));
  EXPECT_EQ(
      SymExpr::parse("ceildiv(T, 16)").substitute({{"T", SymExpr(16) * SymExpr::symbol("N")}}),
      SymExpr::symbol("N"));
  EXPECT_EQ(SymExpr::parse("max(T, B)").substitute({{"T", SymExpr::parse("B + 1")}}),
            SymExpr::parse("B + 1"));
}

TEST(SymExpr, Bounds) {
  const std::vector<SymbolDecl> symbols = {{"T", 1, 512, 1}, {"N", 3, 70, 16}, {"D", -4, 5, 1}};
  auto bounds = [&](const char* text) {
    SymExpr e = SymExpr::parse(text);
    return std::pair(e.lower(symbols), e.upper(symbols));
  };
  EXPECT_EQ(bounds("2*T + 1"), std::pair(int64_t{3}, int64_t{1025}));
  EXPECT_EQ(bounds("N"), std::pair(int64_t{16}, int64_t{64}));
  EXPECT_EQ(bounds("3 - T"), std::pair(int64_t{-509}, int64_t{2}));
  EXPECT_EQ(bounds("D*T"), std::pair(int64_t{-2048}, int64_t{2560}));
  EXPECT_EQ(bounds("ceildiv(T, 16)"), std::pair(int64_t{1}, int64_t{32}));
  EXPECT_EQ(bounds("min(T, 100)"), std::pair(int64_t{1}, int64_t{100}));
  EXPECT_EQ(bounds("max(T, 100)"), std::pair(int64_t{100}, int64_t{512}));
  EXPECT_THROW(SymExpr::symbol("X").upper(symbols), Error);
  const std::vector<SymbolDecl> wide = {{"T", INT64_MIN, INT64_MAX, 3}};
  EXPECT_THROW(SymExpr::parse("2*T").upper(wide), Error);
}

// A random expression beside the same computation in plain integers.
struct Sample {
  SymExpr expr;
  int64_t value;
};

Sample random_sample(Rng& rng, const Values& values, int depth) {
  if (depth == 0 || rng.below(4) == 0) {
    if (rng.below(3) == 0) {
      int64_t c = static_cast<int64_t>(rng.below(9)) - 4;
      return {c, c};
    }
    auto it = std::next(values.begin(), static_cast<std::ptrdiff_t>(rng.below(values.size())));
    return {SymExpr::symbol(it->first), it->second};
  }
  Sample a = random_sample(rng, values, depth - 1), b = random_sample(rng, values, depth - 1);
  const int64_t d = 1 + static_cast<int64_t>(rng.below(8));
  switch (rng.below(6)) {
    case 0:
      return {a.expr + b.expr, a.value + b.value};
    case 1:
      return {a.expr - b.expr, a.value - b.value};
    case 2:
      return {a.expr * b.expr, a.value * b.value};
    case 3:
      return {SymExpr::min(a.expr, b.expr), std::min(a.value, b.value)};
    case 4:
      return {SymExpr::max(a.expr, b.expr), std::max(a.value, b.value)};
    default: {
      int64_t q = a.value / d, r = a.value % d;
      return {SymExpr::ceildiv(a.expr, d), q + (r > 0)};
    }
  }
}

TEST(SymExpr, RandomExpressionsKeepTheirValue) {
  Rng rng(7);
  int done = 0;
  for (int i = 0; i < 3000; ++i) {
    Values values;
    std::vector<std::string> order;
    std::vector<int64_t> table;
    std::vector<SymbolDecl> decls;
    for (const char* name : {"T", "B", "R"}) {
      int64_t lo = static_cast<int64_t>(rng.below(20)) - 5,
              hi = lo + static_cast<int64_t>(rng.below(9));
      int64_t v = lo + static_cast<int64_t>(rng.below(static_cast<uint64_t>(hi - lo + 1)));
      values[name] = v;
      order.push_back(name);
      table.push_back(v);
      decls.push_back({name, lo, hi, 1});
    }
    Sample s;
    try {
      s = random_sample(rng, values, 4);
    } catch (const Error&) {
      continue;  // beyond the size limits
    }
    ++done;
    ASSERT_EQ(s.expr.eval(values), s.value) << s.expr.text();
    ASSERT_EQ(CompiledExpr(s.expr, order).eval(table), s.value) << s.expr.text();
    ASSERT_LE(s.expr.lower(decls), s.value) << s.expr.text();
    ASSERT_GE(s.expr.upper(decls), s.value) << s.expr.text();
    SymExpr again = SymExpr::parse(s.expr.text());
    ASSERT_EQ(again, s.expr);
    ASSERT_EQ(again.text(), s.expr.text());
  }
  EXPECT_GT(done, 2500);
}

TEST(CompiledExpr, Edges) {
  EXPECT_EQ(CompiledExpr().eval({}), 0);
  EXPECT_EQ(CompiledExpr(SymExpr(0), {}).eval({}), 0);
  const std::vector<std::string> order = {"B", "T"};
  EXPECT_THROW(CompiledExpr(SymExpr::symbol("X"), order), Error);
  CompiledExpr square(SymExpr::parse("T*T"), order);
  const int64_t big[] = {1, int64_t{1} << 40};
  EXPECT_THROW(square.eval(big), Error);
  const int64_t few[] = {1};
  EXPECT_THROW(square.eval(few), Error);
}

}  // namespace
}  // namespace tokamak
