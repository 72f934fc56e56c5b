#include <gtest/gtest.h>

#include "base/error.h"
#include "base/rng.h"
#include "graph/rule_verify.h"

namespace tokamak {
namespace {

struct Wrong {
  const char* why;
  const char* text;
};

// Each is a mistake that someone has made in some compiler.
const Wrong kWrong[] = {
    {"-0 + 0 is +0", "rule a exact: x: f32 add(x, 0.0) => x"},
    {"0 * NaN", "rule a exact: x: f32 scale(x){value=0.0} => sub(x, x)"},
    {"0 * x is not 0", "rule a real: x: f32[n] sub(x, scale(x){value=1.0}) => scale(x){value=0.5}"},
    {"0 / 0", "rule a real: x: f32[n] div(x, x) => fill(){value=1.0, dims=[n]}"},
    {"inf - inf", "rule a exact: x: f32[n] sub(x, x) => fill(){value=0.0, dims=[n]}"},
    {"adding is not associative",
     "rule a exact: x: f32 y: f32 z: f32 add(add(x, y), z) => add(x, add(y, z))"},
    {"nor is multiplying",
     "rule a exact: x: f32 y: f32 z: f32 mul(mul(x, y), z) => mul(x, mul(y, z))"},
    {"a - b is not b - a", "rule a real: x: f32 y: f32 sub(x, y) => sub(y, x)"},
    {"division does not commute", "rule a real: div(x, y) => div(y, x)"},
    {"1/c is rounded",
     "rule a exact: c: scalar div(x, c) => scale(x){value=1.0 / value(c)} if value(c) != 0.0"},
    {"two scales round twice",
     "rule a exact: scale(scale(x){value=a}){value=b} => scale(x){value=a * b}"},
    {"f16 rounds", "rule a exact: x: f32 cast(cast(x){dtype=\"f16\"}){dtype=\"f32\"} => x"},
    {"i32 truncates", "rule a real: x: f32 cast(cast(x){dtype=\"i32\"}){dtype=\"f32\"} => x"},
    {"f32 does not hold every i32",
     "rule a exact: x: i32 cast(cast(x){dtype=\"f32\"}){dtype=\"i32\"} => x"},
    {"integers wrap and truncate", "rule a exact: x: i32 y: i32 div(mul(x, y), y) => x"},
    {"integer division", "rule a exact: x: i32 y: i32 mul(div(x, y), y) => x"},
    {"the sign is lost", "rule a real: x: f32 sqrt(square(x)) => x"},
    {"negative numbers", "rule a real: x: f32 square(sqrt(x)) => x"},
    {"log of a negative number", "rule a real: x: f32 exp(log(x)) => x"},
    {"missing eps",
     "rule a real: x: f32[*s, n] e: scalar mul(x, rsqrt(add(reduce_mean(square(x)){axis=-1, "
     "keep=1}, e))) => "
     "rms_norm(x, fill(){value=1.0, dims=[n]}){eps=0.0}"},
    {"sum instead of mean",
     "rule a real: x: f32[*s, n] e: scalar mul(x, rsqrt(add(reduce_sum(square(x)){axis=-1, "
     "keep=1}, e))) => "
     "rms_norm(x, fill(){value=1.0, dims=[n]}){eps=value(e)} if value(e) >= 0.0"},
    {"the mean is not taken off",
     "rule a real: x: f32[*s, n] w: f32[n] rms_norm(x, w){eps=e} => layer_norm(x, w){eps=e}"},
    {"the bias is lost",
     "rule a real: x: f32[*s, n] w: f32[n] b: f32[n] layer_norm(x, w, b){eps=e} => layer_norm(x, "
     "w){eps=e}"},
    {"weight not transposed",
     "rule a real: x: f32[*s, k, k] w: f32[k, k] matmul(x, w) => linear(x, w)"},
    {"operands exchanged", "rule a real: x: f32[n, n] y: f32[n, n] matmul(x, y) => matmul(y, x)"},
    {"transposes in the wrong order",
     "rule a exact: transpose(transpose(x){perm=p}){perm=q} => transpose(x){perm=compose(p, q)}"},
    {"a transpose is no reshape",
     "rule a exact: x: f32[m, n] transpose(x){perm=[1, 0]} => reshape(x){dims=[n, m], "
     "axes=names(2)}"},
    {"wrong axis",
     "rule a real: x: f32[n, n] reduce_sum(x){axis=0, keep=0} => reduce_sum(x){axis=1, keep=0}"},
    {"rows of the wrong place",
     "rule a exact: x: f32[n, n] slice(x){axis=0, start=s, end=e} => slice(x){axis=0, start=0, "
     "end=e - s}"},
    {"start forgotten",
     "rule a exact: slice(slice(x){axis=a, start=s, end=e}){axis=a, start=t, end=f} => "
     "slice(x){axis=a, start=t, end=f}"},
    {"halves exchanged",
     "rule a exact: x: f32[n] y: f32[n] concat(x, y){axis=0} => concat(y, x){axis=0}"},
    {"half of gelu is missing",
     "rule a real: x: f32 mul(x, add(erf(scale(x){value=~0.7071067811865476}), 1.0)) => "
     "gelu(x){approximate=\"none\"}"},
    {"tanh is not erf",
     "rule a real: x: f32 gelu(x){approximate=\"tanh\"} => gelu(x){approximate=\"none\"}"},
    {"sigmoid of the wrong sign", "rule a real: div(1.0, add(exp(x), 1.0)) => sigmoid(x)"},
    {"silu needs the same x", "rule a real: x: f32 y: f32 mul(x, sigmoid(y)) => silu(x)"},
    {"softmax over another axis",
     "rule a real: x: f32[m, n] in -9..9 div(exp(x), reduce_sum(exp(x)){axis=0, keep=1}) => "
     "softmax(x)"},
    {"overflow without a stated range",
     "rule a real: x: f32[m, n] div(exp(x), reduce_sum(exp(x)){axis=-1, keep=1}) => softmax(x)"},
    {"the scale is lost",
     "rule a real: q: f32[t, d] k: f32[s, d] v: f32[s, e] "
     "matmul(softmax(scale(matmul(q, transpose(k){perm=[1, 0]})){value=c}), v) => sdpa(q, k, "
     "v){scale=1.0}"},
    {"a mask nobody asked for",
     "rule a real: q: f32[s, d] k: f32[s, d] v: f32[s, e] "
     "matmul(softmax(matmul(q, transpose(k){perm=[1, 0]})), v) => sdpa(q, k, v){scale=1.0, "
     "causal=1}"},
    {"NaN is not less",
     "rule a exact: x: f32 y: f32 select(compare(x, y){kind=\"lt\"}, x, y) => minimum(x, y)"},
    {"ge is not lt the other way round",
     "rule a exact: x: f32 y: f32 compare(x, y){kind=\"ge\"} => compare(y, x){kind=\"lt\"}"},
    {"maximum and zeros", "rule a exact: x: f32 maximum(x, 0.0) => relu(x)"},
    {"rope turned backwards",
     "rule a real: x: f32[t, h, d] pos: i32[t] f: f32[r] rope(x, pos, f) => rope(x, pos, neg(f)) "
     "if d == 2 * r"},
    {"a state read with another scale",
     "rule a real: q: f32[t, h, d] st: state v: view pos: i32[t] seq: i32[t] slot: i32[t] q_start: "
     "i32[c] kv_len: i32[b] "
     "attend(scale(q){value=a}, st, v, pos, seq, slot, q_start, kv_len){scale=s} => "
     "attend(q, st, v, pos, seq, slot, q_start, kv_len){scale=s}"},
    {"never ends", "rule a exact: add(x, y) => add(y, x)"},
    {"grows for ever", "rule a real: x: f32 sigmoid(x) => sigmoid(neg(neg(x)))"},
    {"another type", "rule a exact: x: f32 cast(x){dtype=\"f16\"} => x"},
    {"negative index is zero",
     "rule a exact: x: f32[n] i: i32[m] gather(scale(x){value=v}, i){axis=0} => scale(gather(x, "
     "i){axis=0}){value=v}"},
    {"a sum of constants rounds",
     "rule a exact: x: f32 a: scalar b: scalar add(add(x, a), b) => add(x, scalar(){value=value(a) "
     "+ value(b)})"},
    {"NaN is lost", "rule a exact: x: f32 y: f32 minimum(x, maximum(x, y)) => x"},
    {"roots of negative factors",
     "rule a real: x: f32 y: f32 sqrt(mul(x, y)) => mul(sqrt(x), sqrt(y))"},
    {"softmax shifted along the other axis",
     "rule a real: x: f32[m, n] softmax(sub(x, reduce_max(x){axis=0, keep=1})) => softmax(x)"},
    {"square shapes only hide a transpose",
     "rule a exact: x: f32[n, n] reshape(transpose(x){perm=[1, 0]}){dims=[n * n], axes=a} => "
     "reshape(x){dims=[n * n], axes=a}"},
    {"a broadcast addend counts once per row",
     "rule a real: x: f32[n] y: f32[m, n] reduce_sum(add(x, y)){axis=0, keep=0} => add(x, "
     "reduce_sum(y){axis=0, keep=0})"},
    {"division by zero", "rule a real: x: f32 y: f32 mul(div(x, y), y) => x"},
    {"exp overflows", "rule a real: x: f32 y: f32 div(exp(x), exp(y)) => exp(sub(x, y))"},
    {"the largest of negated values",
     "rule a real: x: f32[m, n] reduce_max(scale(x){value=a}){axis=1, keep=0} => "
     "scale(reduce_max(x){axis=1, keep=0}){value=a}"},
    {"eps does not scale",
     "rule a real: x: f32[*s, n] w: f32[n] rms_norm(scale(x){value=a}, w){eps=e} => rms_norm(x, "
     "w){eps=e} if a > 0.0"},
    {"differences wrap",
     "rule a exact: x: i32 y: i32 z: i32 compare(sub(x, y), sub(z, y)){kind=\"lt\"} => compare(x, "
     "z){kind=\"lt\"}"},
    {"pairs are not scaled alike",
     "rule a real: x: f32[t, h, d] y: f32[d] pos: i32[t] f: f32[r] rope(mul(x, y), pos, f) => "
     "mul(rope(x, pos, f), y) if d == 2 * r"},
    {"a mask over keys matters",
     "rule a real: q: f32[t, d] k: f32[s, d] v: f32[s, e] m: f32[s] sdpa(q, k, v, m){scale=c} => "
     "sdpa(q, k, v){scale=c}"},
    {"NaN is not equal to itself",
     "rule a exact: x: f32[n] y: f32[n] z: f32[n] select(compare(x, x){kind=\"eq\"}, y, z) => y"},
    {"the zero of a - b", "rule a exact: x: f32 y: f32 neg(sub(x, y)) => sub(y, x)"},
    {"of 0 and -0 maximum gives the first",
     "rule a exact: x: f32 y: f32 maximum(broadcast(x){..}, y) => maximum(x, y)"},
    {"a constant that is not zero",
     "rule a exact: x: i32 c: const i32 add(x, c) => x if integer(c) == 1"},
    {"axes that are not ones",
     "rule a exact: transpose(x){perm=p} => reshape(x){dims=compose(p, dims(x)), "
     "axes=names(rank(x))}"},
    {"three constants go round",
     "rule a exact: x: i32 a: const i32 b: const i32 add(add(x, a), b) => add(x, add(a, b))"},
    {"two products go round",
     "rule a real: add(add(matmul(q, k), m), n) => add(matmul(q, k), add(m, n))"},
    {"weight scaled the wrong way",
     "rule a real: x: f32[*s, k] w: weight f32[n, k] scale(linear(x, w)){value=a} => linear(x, "
     "recipe(w){add=a})"},
};

// True over the reals, though a number in it is rounded.
TEST(WrongRules, ARightOneIsNot) {
  for (const char* text :
       {"rule a real: x: f32[m, n] reduce_mean(x){axis=1, keep=1} => scale(reduce_sum(x){axis=1, "
        "keep=1}){value=1.0 / n}",
        "rule a real: x: f32 y: f32 z: f32 add(mul(x, y), mul(x, z)) => mul(x, add(y, z))"}) {
    RuleVerdict v = verify_rule(parse_rules(text).at(0));
    EXPECT_TRUE(v.accepted) << text << "\n" << v.message;
  }
}

TEST(WrongRules, EveryOneIsRefuted) {
  int refused = 0;
  for (const Wrong& wrong : kWrong) {
    SCOPED_TRACE(wrong.why);
    std::vector<RewriteRule> rules = parse_rules(wrong.text);
    ASSERT_EQ(rules.size(), 1u);
    RuleVerdict v = verify_rule(rules[0]);
    EXPECT_FALSE(v.accepted) << wrong.text;
    EXPECT_FALSE(v.message.empty());
    refused += !v.accepted;
  }
  fmt::print("{} of {} wrong rules refuted\n", refused, std::size(kWrong));
  EXPECT_GE(refused, 30);
}

// Texts that are no rules at all: each error names the place.
TEST(WrongRules, TextErrors) {
  for (const char* text : {"rule",
                           "rule a",
                           "rule a exact",
                           "rule a exact: x => x",
                           "rule a exact: neg(x) => ",
                           "rule a exact: neg(x) => y",
                           "rule a exact: nop(x) => x",
                           "rule a exact: neg(x, y) => x",
                           "rule a exact: scale(x) => x",
                           "rule a exact: scale(x){value=1.0, other=2} => x",
                           "rule a exact: x: f33 neg(x) => x",
                           "rule a exact: x: f32[*a, *b] neg(x) => x",
                           "rule a exact: neg(x) => x if",
                           "rule a exact: neg(x => x",
                           "rule a exact: neg(x) => x y",
                           "rule a exact: scale(x){..} => scale(x){..}",
                           "rule a fast: neg(x) => x",
                           "\"",
                           "rule a exact: append(s, v, a, b, c) => s",
                           "rule a exact: x: f32[100000, 100000] neg(neg(x)) => x"}) {
    try {
      parse_rules(text);
      ADD_FAILURE() << text;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::kInvalidArgument) << text;
      EXPECT_NE(std::string(e.what()).find("line"), std::string::npos) << e.what();
    }
  }
}

// Whatever stands in a file of rules: it is rules, or an error that says so.
TEST(WrongRules, DamagedTextEndsInAnError) {
  std::string all;
  for (const Wrong& wrong : kWrong) all += std::string(wrong.text) + "\n";
  Rng rng(5);
  int errors = 0;
  for (int i = 0; i < 3000; ++i) {
    size_t from = rng.below(all.size() - 200);
    std::string text = all.substr(from, 1 + rng.below(200));
    if (rng.below(2)) text = "rule a exact: " + text;
    for (size_t n = rng.below(4); n > 0; --n)
      text[rng.below(text.size())] =
          static_cast<char>(rng.below(3) ? 32 + rng.below(95) : rng.below(256));
    try {
      parse_rules(text);
    } catch (const Error& e) {
      ASSERT_EQ(e.code(), ErrorCode::kInvalidArgument) << text << "\n" << e.what();
      ++errors;
    }
  }
  EXPECT_GT(errors, 1000);
}

}  // namespace
}  // namespace tokamak
