// Type rules: their results, and their error messages.
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "ops/op.h"

namespace tokamak {
namespace {

Type type(std::string_view text) {
  if (text.starts_with("state<")) return Type::state(std::string(text.substr(6, text.size() - 7)));
  if (text.starts_with("view<")) return Type::view(std::string(text.substr(5, text.size() - 6)));
  size_t pos = 0;
  return Type::of(parse_tensor_type(text, pos));
}

struct RuleCase {
  const char* op;
  std::vector<const char*> in;
  Value::Object attrs;
  std::vector<const char*> out;  // empty: must fail
  const char* message = "";      // a part of the error
};

std::string join(const std::vector<Type>& types) {
  std::string text;
  for (const Type& t : types) text += t.text() + "; ";
  return text;
}

const TensorType* plane_type(int index) {
  size_t pos = 0;
  static const TensorType k = parse_tensor_type("f16[h=2, d=8]", pos);
  pos = 0;
  static const TensorType v = parse_tensor_type("f16[h=2, v=6]", pos);
  return index == 0 ? &k : &v;
}

using A = Value::Array;
const std::vector<RuleCase> kRuleCases = {
    {"add", {"f32[t=T, d=4]", "f32[d=4]"}, {}, {"f32[t=T, d=4]"}},
    {"add", {"f32[d=4]", "f32[t=T, d=4]"}, {}, {"f32[t=T, d=4]"}},
    {"mul", {"f32[t=T, x=1]", "f16[d=4]"}, {}, {"f32[t=T, d=4]"}},
    {"add", {"i32[t=T]", "i32[t=T]"}, {}, {"i32[t=T]"}},
    {"add", {"f32[t=T]", "f32[b=B]"}, {}, {}, "add: extents T and B do not broadcast"},
    {"add", {"f32[t=T]", "i32[t=T]"}, {}, {}, "cast one of them"},
    {"add", {"f32[t=T]"}, {}, {}, "takes 2 to 2 inputs, got 1"},
    {"add", {"f32[t=T]", "state<s>"}, {}, {}, "b must be a tensor, got state<s>"},
    {"exp", {"f32[t=T]"}, {{"x", 1}}, {}, "exp: unknown attribute \"x\""},
    {"scale", {"f32[t=T]"}, {}, {}, "scale: attribute \"value\" is missing"},
    {"linear", {"f32[t=T, k=64]", "q4_0[n=7, k=64]"}, {}, {"f32[t=T, n=7]"}},
    {"linear", {"q8a[t=T, k=64]", "q4_0[n=7, k=64]"}, {}, {"f32[t=T, n=7]"}},
    {"linear",
     {"f32[t=T, k=64]", "f32[n=7, k=32]"},
     {},
     {},
     "linear: k of x is 64 but k of w is 32"},
    {"linear", {"f32[t=T, k=64]", "f32[n=7, k=64]", "f32[n=6]"}, {}, {}, "bias"},
    {"linear", {"bf16[t=T, k=64]", "bf16[n=7, k=64]"}, {{"out", "bf16"}}, {"bf16[t=T, n=7]"}},
    {"linear", {"f16[t=T, k=64]", "q4_0[n=7, k=64]"}, {}, {"f32[t=T, n=7]"}},
    {"add", {"bf16[t=T]", "f32[t=T]"}, {}, {"f32[t=T]"}},
    {"add", {"bf16[t=T]", "f32[t=T]"}, {{"out", "f16"}}, {"f16[t=T]"}},
    {"add", {"f32[t=T]", "f32[t=T]"}, {{"out", "f32"}}, {}, "out must be \"f16\" or \"bf16\""},
    {"add", {"f32[t=T]", "f32[t=T]"}, {{"out", "q8_0"}}, {}, "out must be"},
    {"add", {"f32[t=T]", "f32[t=T]"}, {{"out", 16}}, {}, "out must be"},
    {"add", {"i32[t=T]", "i32[t=T]"}, {{"out", "f16"}}, {}, "its result is i32"},
    {"reshape",
     {"f32[t=T]"},
     {{"dims", A{"T"}}, {"axes", A{"t"}}, {"out", "f16"}},
     {},
     "unknown attribute \"out\""},
    {"top_k", {"bf16[t=T, e=8]"}, {{"k", 2}, {"out", "bf16"}}, {"bf16[t=T, k=2]", "i32[t=T, k=2]"}},
    {"concat", {"bf16[t=T, d=6]", "bf16[t=T, d=2]"}, {{"axis", 1}}, {"bf16[t=T, d=8]"}},
    {"concat", {"bf16[t=T, d=6]", "f32[t=T, d=2]"}, {{"axis", 1}}, {"f32[t=T, d=8]"}},
    {"concat", {"i32[t=T, d=6]", "f32[t=T, d=2]"}, {{"axis", 1}}, {}, "cast one of them"},
    {"matmul", {"f32[b=B, m=2, k=3]", "f32[k=3, n=T]"}, {}, {"f32[b=B, m=2, n=T]"}},
    {"quantize", {"f32[t=T, k=64]"}, {{"format", "q8a"}}, {"q8a[t=T, k=64]"}},
    {"quantize", {"f32[t=T, k=48]"}, {{"format", "q8a"}}, {}, "multiple of 32"},
    {"quantize", {"f32[t=T, k=7]"}, {{"format", "bf16"}}, {"bf16[t=T, k=7]"}},
    {"quantize", {"f32[t=T, k=64]"}, {{"format", "f16"}}, {}, "use q8a or bf16"},
    {"reshape",
     {"f32[t=T, d=6]"},
     {{"dims", A{"T", 2, "3"}}, {"axes", A{"t", "h", "d"}}},
     {"f32[t=T, h=2, d=3]"}},
    {"reshape", {"f32[t=T, d=6]"}, {{"dims", A{"T", 2}}, {"axes", A{"t", "h"}}}, {}, "elements"},
    {"transpose", {"f32[t=T, d=6]"}, {{"perm", A{1, 0}}}, {"f32[d=6, t=T]"}},
    {"transpose", {"f32[t=T, d=6]"}, {{"perm", A{1, 1}}}, {}, "permutation"},
    {"slice", {"f32[t=T, d=6]"}, {{"axis", 1}, {"start", 2}, {"end", 6}}, {"f32[t=T, d=4]"}},
    {"slice", {"f32[t=T, d=6]"}, {{"axis", 1}, {"start", 2}, {"end", 7}}, {}, "does not fit"},
    {"slice", {"f32[t=T, d=6]"}, {{"axis", 2}, {"start", 0}, {"end", 1}}, {}, "axis 2"},
    {"concat", {"f32[t=T, d=6]", "f32[t=T, d=2]"}, {{"axis", 1}}, {"f32[t=T, d=8]"}},
    {"gather", {"f32[t=T, d=6]", "i32[r=R]"}, {}, {"f32[r=R, d=6]"}},
    {"gather", {"q8_0[v=100, d=64]", "i32[r=R]"}, {}, {"f32[r=R, d=64]"}},
    {"gather", {"f32[t=T, d=6]", "f32[r=R]"}, {}, {}, "index must be i32"},
    {"embed", {"i32[t=T]", "q6_k[v=100, d=256]"}, {}, {"f32[t=T, d=256]"}},
    {"top_k", {"f32[t=T, e=8]"}, {{"k", 2}}, {"f32[t=T, k=2]", "i32[t=T, k=2]"}},
    {"top_k", {"f32[t=T, e=8]"}, {{"k", 9}}, {}, "k = 9"},
    {"reduce_mean", {"f32[t=T, d=6]"}, {{"axis", -1}}, {"f32[t=T]"}},
    {"rms_norm", {"f32[t=T, d=6]", "f32[d=6]"}, {{"eps", 1e-5}}, {"f32[t=T, d=6]"}},
    {"rope", {"f32[t=T, h=2, d=8]", "i32[t=T]", "f32[j=4]"}, {}, {"f32[t=T, h=2, d=8]"}},
    {"rope", {"f32[t=T, h=2, d=8]", "i32[t=T]", "f32[j=5]"}, {}, {}, "frequencies"},
    {"append",
     {"state<s>", "view<g>", "i32[t=T]", "i32[t=T]", "f32[t=T, h=2, d=8]", "f32[t=T, x=12]"},
     {},
     {"state<s>"}},
    {"append",
     {"state<s>", "view<g>", "i32[t=T]", "i32[t=T]", "f32[t=T, h=2, d=8]", "f32[t=T, x=13]"},
     {},
     {},
     "plane v"},
    {"attend",
     {"f32[t=T, h=4, d=8]", "state<s>", "view<g>", "i32[t=T]", "i32[t=T]", "i32[t=T]",
      "i32[b=B + 1]", "i32[b=B]"},
     {{"scale", 1.0}},
     {"f32[t=T, h=4, v=6]"}},
    {"attend",
     {"f32[t=T, h=3, d=8]", "state<s>", "view<g>", "i32[t=T]", "i32[t=T]", "i32[t=T]",
      "i32[b=B + 1]", "i32[b=B]"},
     {{"scale", 1.0}},
     {},
     "heads"},
    {"moe_route",
     {"f32[t=T, e=8]", "f32[e=8]"},
     {{"k", 2}, {"groups", 4}, {"used_groups", 1}},
     {"f32[t=T, k=2]", "i32[t=T, k=2]"}},
    {"moe_route", {"f32[t=T, e=8]"}, {{"k", 9}}, {}, "k = 9 does not fit 8 experts"},
    {"moe_route", {"f32[t=T, e=8]"}, {{"k", 2}, {"gate", "tanh"}}, {}, "unknown gate"},
    {"moe_route", {"f32[t=T, e=8]"}, {{"k", 3}, {"groups", 4}, {"used_groups", 1}}, {}, "groups"},
    {"moe_route", {"f32[t=T, e=8]", "f32[e=7]"}, {{"k", 2}}, {}, "bias"},
    {"grouped_linear",
     {"f32[m<=2*T, k=6]", "f32[e=4, n=3, k=6]", "i32[e=5]", "f32[e=4, n=3]"},
     {},
     {"f32[m<=2*T, n=3]"}},
    {"grouped_linear",
     {"f32[m<=2*T, k=6]", "f32[e=4, n=3, k=6]", "i32[e=5]", "f32[e=4, n=2]"},
     {},
     {},
     "the bias"},
    {"moe_dispatch",
     {"f32[t=T, d=6]", "i32[t=T, k=2]"},
     {{"count", 4}},
     {"f32[m<=2*T, d=6]", "i32[e=5]", "i32[m<=2*T]"}},
    {"silu", {"f32[m<=2*T, d=6]"}, {}, {"f32[m<=2*T, d=6]"}},
    {"linear", {"f32[m<=2*T, d=6]", "f32[n=3, d=6]"}, {}, {}, "device-valued"},
    {"cast", {"f32[t=T]"}, {{"dtype", "q4_0"}}, {}, "cannot cast to q4_0"},
    {"softcap", {"f32[t=T]"}, {{"cap", 0.0}}, {}, "positive"},
    {"softcap", {"f32[t=T]"}, {{"cap", INFINITY}}, {}, "cap must be a finite positive number"},
    {"rms_norm", {"f32[t=T, d=6]", "f32[d=6]"}, {{"eps", -1e-5}}, {}, "eps must be a finite"},
    {"rms_norm", {"f32[t=T, d=6]", "f32[d=6]"}, {{"eps", INFINITY}}, {}, "eps must be a finite"},
    {"layer_norm", {"f32[t=T, d=6]", "f32[d=6]"}, {{"eps", NAN}}, {}, "eps must be a finite"},
    {"input", {}, {{"name", "x"}}, {}, "no type rule"},
};

TEST(Infer, Table) {
  for (const RuleCase& c : kRuleCases) {
    std::vector<Type> in, want;
    for (const char* text : c.in) in.push_back(type(text));
    for (const char* text : c.out) want.push_back(type(text));
    SCOPED_TRACE(std::string(c.op) + "(" + join(in) + ")");
    Attrs attrs{c.attrs};
    InferContext context{in, attrs,
                         [](std::string_view, int i) -> std::optional<InferContext::Plane> {
                           if (i > 1) return std::nullopt;
                           return InferContext::Plane{i == 0 ? "k" : "v", plane_type(i)};
                         }};
    ASSERT_NE(find_op(c.op), nullptr);
    try {
      std::vector<Type> got = infer_types(*find_op(c.op), context);
      EXPECT_FALSE(c.out.empty()) << "accepted, gives " << join(got);
      EXPECT_EQ(join(got), join(want));
    } catch (const Error& e) {
      EXPECT_TRUE(c.out.empty()) << e.what();
      EXPECT_EQ(e.code(), ErrorCode::kInvalidArgument);
      EXPECT_NE(std::string(e.what()).find(c.message), std::string::npos) << e.what();
      EXPECT_EQ(std::string(e.what()).find(c.op), 0u) << e.what();
    }
  }
}

TEST(Infer, TableOfOpsIsSound) {
  for (const OpDef* op : all_ops()) {
    SCOPED_TRACE(op->name);
    EXPECT_EQ(find_op(op->name), op);
    EXPECT_LE(op->required_attrs, static_cast<int>(op->attr_names.size()));
    EXPECT_FALSE(op->doc.empty());
    bool structural = op->tier == Tier::kStructural || op->tier == Tier::kRegion;
    EXPECT_EQ(op->infer == nullptr, structural);
    EXPECT_EQ(op->f32 == nullptr, structural);
    EXPECT_EQ(op->f64 == nullptr, structural);
  }
  EXPECT_EQ(find_op("no_such_op"), nullptr);
}

TEST(Infer, Flops) {
  std::vector<Type> in = {type("f32[t=T, k=64]"), type("q4_0[n=7, k=64]")},
                    out = {type("f32[t=T, n=7]")};
  EXPECT_EQ(find_op("linear")->flops(in, out), SymExpr::parse("896*T"));
}

}  // namespace
}  // namespace tokamak
