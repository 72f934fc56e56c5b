// Four probes that the graph supports future features, on backend/ref: a mixture-of-experts layer
// (device-valued extents), a latent-attention layer (MLA, absorbed), LoRA rows, and verification of
// a draft tree. Each against plain loops in double or against the model itself.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>

#include "base/error.h"
#include "tests/numerics/model_runner.h"

namespace tokamak {
namespace {

using Matrix = std::vector<std::vector<double>>;

class ProbeSource final : public ModelSource {
 public:
  const PlanSet& plans() const override { return plans_; }
  const WeightSource& weights() const override { return weights_; }
  const TokenizerSpec& tokenizer() const override { return tokenizer_; }
  const Value& metadata() const override { return metadata_; }
  const EmbeddingSpec& embedding() const override { return embedding_; }
  PlanSet plans_;
  WeightTable weights_;

 private:
  TokenizerSpec tokenizer_;
  Value metadata_;
  EmbeddingSpec embedding_;
};

// A module with the inputs of step(), random weights on demand and everything else that a runner
// needs.
class Probe {
 public:
  Probe() : source_(std::make_unique<ProbeSource>()), module_("probe"), rng_(7) {
    module_.symbols = {{"T", 1, 64, 1}, {"B", 1, 8, 1}, {"R", 1, 64, 1}};
  }
  Module& module() { return module_; }
  Function& start() {
    fn_ = &module_.add_function("step");
    SymExpr t = SymExpr::symbol("T"), b = SymExpr::symbol("B"), r = SymExpr::symbol("R");
    for (const char* name : {"ids", "pos", "seq", "slot", "adapter"})
      in_[name] = input(name, t, "t");
    in_["q_start"] = input("q_start", b + 1, "b1");
    in_["kv_len"] = input("kv_len", b, "b");
    in_["out_rows"] = input("out_rows", r, "r");
    for (const GroupDecl& g : module_.groups)
      in_["view"] = fn_->add_input("view." + g.name, Type::view(g.name));
    return *fn_;
  }
  Ref in(const std::string& name) { return in_.at(name); }
  // A random weight of the given extents; returns its values for the test's loops.
  Ref weight(const std::string& name, std::vector<int64_t> dims,
             std::vector<double>* values = nullptr) {
    int64_t n = 1;
    TensorType type{DType::kF32, {}};
    for (int64_t d : dims) {
      n *= d;
      type.dims.push_back({"w" + std::to_string(type.dims.size()), d, false});
    }
    std::vector<float> data(static_cast<size_t>(n));
    for (float& x : data) x = static_cast<float>(rng_.normal() * 0.5);
    source_->weights_.add_f32(name, dims, data);
    module_.add_weight({name, type, {{name}, {}}});
    if (values) values->assign(data.begin(), data.end());
    return fn_->weight(name);
  }
  ModelRunner finish(Ref rows) {
    fn_->set_result("logits",
                    fn_->add("gather", {rows, in("out_rows")}, Value::Object{{"axis", 0}}));
    int64_t width = fn_->tensor(rows).extent(1).constant().value();
    ModelConfig config;
    config.vocab = config.hidden = width;
    config.context = 64;
    CompileOptions options;
    options.max_sequences = 8;
    options.max_tokens = options.max_logit_rows = 64;
    options.activations = "f32";
    auto backend = make_backend("ref");
    verify_module(module_);
    // The text form supports the probes too.
    std::string text = print_module(module_);
    EXPECT_EQ(print_module(parse_module(text)), text);
    source_->plans_ = compile_module(module_, config, *backend, options);
    return ModelRunner(std::move(source_), std::move(backend), {});
  }

 private:
  Ref input(const std::string& name, SymExpr extent, const std::string& axis) {
    return fn_->add_input(name, Type::of({DType::kI32, {{axis, std::move(extent), false}}}));
  }
  std::unique_ptr<ProbeSource> source_;
  Module module_;
  Function* fn_ = nullptr;
  Rng rng_;
  std::map<std::string, Ref> in_;
};

std::vector<double> row_of(const std::vector<double>& table, int64_t row, int64_t width) {
  return {table.begin() + row * width, table.begin() + (row + 1) * width};
}

// y[n] = sum_k w[n][k] x[k]
std::vector<double> times(const double* w, int64_t n, int64_t k, const std::vector<double>& x) {
  std::vector<double> y(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < k; ++j)
      y[static_cast<size_t>(i)] += w[i * k + j] * x[static_cast<size_t>(j)];
  return y;
}

void softmax(std::vector<double>& v) {
  double top = *std::max_element(v.begin(), v.end()), sum = 0;
  for (double& x : v) sum += x = std::exp(x - top);
  for (double& x : v) x /= sum;
}

const std::vector<int32_t> kIds = {3, 1, 4, 1, 0, 2, 2, 3};

TEST(Probe, MixtureOfExperts) {
  constexpr int64_t D = 6, F = 5, E = 4, K = 2, V = D;
  Probe probe;
  Function& fn = probe.start();
  std::vector<double> table, router, up, down;
  Ref x = fn.add("embed", {probe.in("ids"), probe.weight("table", {V, D}, &table)});
  Ref scores = fn.add("softmax", {fn.add("linear", {x, probe.weight("router", {E, D}, &router)})});
  std::vector<Ref> best = fn.add_multi("top_k", {scores}, Value::Object{{"k", K}});
  std::vector<Ref> sent = fn.add_multi("moe_dispatch", {x, best[1]}, Value::Object{{"count", E}});
  EXPECT_TRUE(fn.tensor(sent[0]).dims[0].bound);  // only the device knows the number of rows
  Ref h = fn.add("grouped_linear", {sent[0], probe.weight("up", {E, F, D}, &up), sent[1]});
  h = fn.add("grouped_linear",
             {fn.add("silu", {h}), probe.weight("down", {E, D, F}, &down), sent[1]});
  Ref y = fn.add("moe_combine", {h, sent[2], sent[1], best[0]});
  ModelRunner runner = probe.finish(y);
  auto rows = runner.all_logits(0, kIds, 64);
  for (size_t t = 0; t < kIds.size(); ++t) {
    std::vector<double> in = row_of(table, kIds[t], D), p = times(router.data(), E, D, in), want(D);
    softmax(p);
    std::vector<int> order = {0, 1, 2, 3};
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
      return p[static_cast<size_t>(a)] > p[static_cast<size_t>(b)];
    });
    for (int k = 0; k < K; ++k) {
      int e = order[static_cast<size_t>(k)];
      std::vector<double> mid = times(up.data() + e * F * D, F, D, in);
      for (double& v : mid) v /= 1 + std::exp(-v);
      std::vector<double> out = times(down.data() + e * D * F, D, F, mid);
      for (size_t d = 0; d < D; ++d) want[d] += p[static_cast<size_t>(e)] * out[d];
    }
    EXPECT_LE(nmse(rows[t], want), 1e-12) << "token " << t;
  }
}

TEST(Probe, LoraRows) {
  constexpr int64_t D = 6, N = 5, S = 3, RANK = 2, V = N;
  Probe probe;
  Function& fn = probe.start();
  std::vector<double> table, w, a, b;
  Ref x = fn.add("embed", {probe.in("ids"), probe.weight("table", {V, D}, &table)});
  Ref base = fn.add("linear", {x, probe.weight("w", {N, D}, &w)});
  Ref delta = fn.add("lora", {x, probe.weight("a", {S, RANK, D}, &a),
                              probe.weight("b", {S, N, RANK}, &b), probe.in("adapter")});
  ModelRunner runner = probe.finish(fn.add("add", {base, delta}));
  std::vector<int32_t> adapters = {0, -1, 2, 1, 1, 0, -1, 2};
  runner.edit = [&](StepInputs& step) { step.set_input("adapter", adapters); };
  auto rows = runner.all_logits(0, kIds, 64);
  for (size_t t = 0; t < kIds.size(); ++t) {
    std::vector<double> in = row_of(table, kIds[t], D), want = times(w.data(), N, D, in);
    if (int32_t s = adapters[t]; s >= 0) {
      std::vector<double> low = times(a.data() + s * RANK * D, RANK, D, in),
                          add = times(b.data() + s * N * RANK, N, RANK, low);
      for (size_t n = 0; n < N; ++n) want[n] += add[n];
    }
    EXPECT_LE(nmse(rows[t], want), 1e-12) << "token " << t;
  }
}

// MLA as served: the cache holds a latent vector and one rotated key part per token; the
// up-projections of K and V are absorbed into the query and the output. The oracle materialises K
// and V per head.
struct LatentAttention {
  static constexpr int64_t D = 8, H = 3, NOPE = 4, ROPE = 2, RANK = 5, VD = 4, V = 12;
  static constexpr double kFrequency = 0.7;
  const double scale = 1 / std::sqrt(double{NOPE + ROPE});
  std::vector<double> table, wqn, wqr, wc, wkr, uk, uv;

  ModelRunner build(Probe& probe) {
    auto f32 = [](int64_t n) {
      return TensorType{DType::kF32, {{"one", 1, false}, {"c", n, false}}};
    };
    probe.module().groups.push_back({"latent", 0, 16});
    probe.module().states.push_back(
        {"mla.0", "latent", StateDecl::Growth::kPerToken, {{"c", f32(RANK)}, {"kr", f32(ROPE)}}});
    probe.module().add_constant({"freq", {DType::kF32, {{"n", 1, false}}}, {kFrequency}});
    Function& fn = probe.start();
    Ref state = fn.add_input("mla.0", Type::state("mla.0"));
    auto reshape = [&](Ref r, std::vector<std::string> dims) {
      Value d = Value::array(), axes = Value::array();
      for (size_t i = 0; i < dims.size(); ++i) {
        d.push(dims[i]);
        axes.push("x" + std::to_string(i));
      }
      return fn.add("reshape", {r}, Value::Object{{"dims", d}, {"axes", axes}});
    };
    auto transpose = [&](Ref r) {
      return fn.add("transpose", {r}, Value::Object{{"perm", Value::Array{1, 0, 2}}});
    };
    Ref x = fn.add("embed", {probe.in("ids"), probe.weight("table", {V, D}, &table)});
    Ref qn =
        reshape(fn.add("linear", {x, probe.weight("wqn", {H * NOPE, D}, &wqn)}), {"T", "3", "4"});
    Ref qr =
        reshape(fn.add("linear", {x, probe.weight("wqr", {H * ROPE, D}, &wqr)}), {"T", "3", "2"});
    qr = fn.add("rope", {qr, probe.in("pos"), fn.constant("freq")});
    Ref c = fn.add("linear", {x, probe.weight("wc", {RANK, D}, &wc)});
    Ref kr = reshape(fn.add("linear", {x, probe.weight("wkr", {ROPE, D}, &wkr)}), {"T", "1", "2"});
    kr = fn.add("rope", {kr, probe.in("pos"), fn.constant("freq")});
    state = fn.add("append", {state, probe.in("view"), probe.in("seq"), probe.in("slot"), c, kr});
    Ref qc = transpose(fn.add(
        "matmul", {transpose(qn), probe.weight("uk", {H, NOPE, RANK}, &uk)}));  // absorbed: q W_uk
    Ref q = fn.add("concat", {qc, qr}, Value::Object{{"axis", 2}});
    Ref mixed =
        fn.add("attend",
               {q, state, probe.in("view"), probe.in("pos"), probe.in("seq"), probe.in("slot"),
                probe.in("q_start"), probe.in("kv_len")},
               Value::Object{{"key", Value::Array{"c", "kr"}}, {"value", "c"}, {"scale", scale}});
    Ref out =
        transpose(fn.add("matmul", {transpose(mixed), probe.weight("uv", {H, RANK, VD}, &uv)}));
    fn.set_result("mla.0", state);
    return probe.finish(reshape(out, {"T", "12"}));
  }

  static std::vector<double> rotate(std::vector<double> v, size_t pos) {
    double angle = static_cast<double>(pos) * kFrequency, s = std::sin(angle), c = std::cos(angle);
    return {v[0] * c - v[1] * s, v[1] * c + v[0] * s};
  }

  // What head h adds for token t.
  std::vector<double> expected(int64_t h, size_t t) const {
    std::vector<double> in = row_of(table, kIds[t], D),
                        qn = times(wqn.data() + h * NOPE * D, NOPE, D, in),
                        qr = rotate(times(wqr.data() + h * ROPE * D, ROPE, D, in), t), p, out(VD);
    Matrix values;
    for (size_t j = 0; j <= t; ++j) {
      std::vector<double> past = row_of(table, kIds[j], D), lat = times(wc.data(), RANK, D, past),
                          kr = rotate(times(wkr.data(), ROPE, D, past), j),
                          kn = times(uk.data() + h * NOPE * RANK, NOPE, RANK, lat), value(VD);
      for (int64_t v = 0; v < VD; ++v)
        for (int64_t r = 0; r < RANK; ++r)
          value[static_cast<size_t>(v)] +=
              lat[static_cast<size_t>(r)] * uv[static_cast<size_t>((h * RANK + r) * VD + v)];
      double score = qr[0] * kr[0] + qr[1] * kr[1];
      for (size_t i = 0; i < NOPE; ++i) score += qn[i] * kn[i];
      p.push_back(score * scale);
      values.push_back(value);
    }
    softmax(p);
    for (size_t j = 0; j < p.size(); ++j)
      for (size_t v = 0; v < VD; ++v) out[v] += p[j] * values[j][v];
    return out;
  }
};

TEST(Probe, LatentAttention) {
  Probe probe;
  LatentAttention attention;
  ModelRunner runner = attention.build(probe);
  auto rows = runner.all_logits(0, kIds, 3);  // in chunks, so that the cache is used
  for (size_t t = 0; t < kIds.size(); ++t) {
    std::vector<double> want;
    for (int64_t h = 0; h < LatentAttention::H; ++h) {
      std::vector<double> head = attention.expected(h, t);
      want.insert(want.end(), head.begin(), head.end());
    }
    EXPECT_LE(nmse(rows[t], want), 1e-11) << "token " << t;
  }
}

// A draft tree is verified in one step: every node's logits equal those of its own branch decoded
// alone.
void verify_a_draft_tree(const std::string& path, const char* name, int32_t length) {
  auto backend = make_backend(name);
  CompileOptions options;
  options.activations = "f32";
  options.kv_dtype = DType::kF32;
  options.max_sequences = 8;
  options.max_tokens = options.max_logit_rows = 64;
  options.tree_mask = true;
  options.verify = {4};
  auto source = compile_model(path, *backend, options);
  ModelRunner tree(std::move(source), std::move(backend), {});
  ModelRunner chain(path, {.backend = name});

  std::vector<int32_t> prompt;
  for (int32_t i = 0; i < length; ++i) prompt.push_back((i * 37 + 5) % 80);
  // root -> a -> c, root -> b -> d: parents of the five nodes (root first), their ids and depths.
  const std::vector<int> parent = {-1, 0, 0, 1, 2}, depth = {0, 1, 1, 2, 2};
  const std::vector<int32_t> ids = {50, 11, 12, 13, 14};
  auto causal = [](StepInputs& step) {
    auto n = static_cast<int32_t>(step.ids.size());
    step.mask_width = n;
    for (int32_t i = 0; i < n; ++i)
      for (int32_t m = 0; m < n; ++m) step.mask.push_back(m <= i);
  };
  tree.edit = causal;
  tree.all_logits(0, prompt, 64);
  tree.edit = [&](StepInputs& step) {
    step.function = "verify4";
    step.mask_width = 5;
    for (size_t i = 0; i < 5; ++i) {
      step.pos[i] = static_cast<int32_t>(prompt.size()) + depth[i];
      for (int m = 0; m < 5; ++m) {
        int up = static_cast<int>(i);
        while (up != m && up >= 0) up = parent[static_cast<size_t>(up)];
        step.mask.push_back(up == m);
      }
    }
  };
  auto rows = tree.step({{0, ids}});
  ASSERT_EQ(rows.size(), 5u);
  for (size_t leaf : {size_t{3}, size_t{4}}) {
    std::vector<int> path_nodes = {0, parent[leaf], static_cast<int>(leaf)};
    int sequence = static_cast<int>(leaf) - 3;
    chain.all_logits(sequence, prompt, 64);
    for (int node : path_nodes)
      EXPECT_EQ(chain.decode({{sequence, {ids[static_cast<size_t>(node)]}}})[0],
                rows[static_cast<size_t>(node)])
          << "node " << node << " of " << path << " on " << name << ", " << length << " tokens";
  }
}

// 62: the branches lie in two tiles of the cpu kernel.
TEST(Probe, VerifyADraftTree) {
  const char* dir = std::getenv("TOKAMAK_TINY_MODELS");
  if (!dir) GTEST_SKIP() << "TOKAMAK_TINY_MODELS is not a folder";
  for (const char* model : {"llama", "mistral"})  // the second has a sliding window
    for (const char* backend : {"ref", "cpu"})
      for (int32_t length : {11, 62})
        verify_a_draft_tree((std::filesystem::path(dir) / model).string(), backend, length);
}

}  // namespace
}  // namespace tokamak
