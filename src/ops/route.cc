// moe_route: from a router's logits to the chosen experts of each token and their weights.
#include "ops/route.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/infer.h"
#include "ops/meaning.h"
#include "ops/tables.h"

namespace tokamak {
namespace {

constexpr double kRemoved = -std::numeric_limits<double>::infinity();

void score(const RouteRule& rule, std::span<double> x) {
  if (rule.sigmoid) {
    for (double& v : x) v = 1 / (1 + std::exp(-v));
    return;
  }
  double top = *std::max_element(x.begin(), x.end()), sum = 0;
  for (double& v : x) sum += v = std::exp(v - top);
  for (double& v : x) v /= sum;
}

double group_score(const RouteRule& rule, std::span<const double> group) {
  double first = kRemoved, second = kRemoved;
  for (double v : group) {
    if (v > first) {
      second = first;
      first = v;
    } else {
      second = std::max(second, v);
    }
  }
  return rule.sigmoid && group.size() > 1 ? first + second : first;
}

// Removes groups, the worst first, until `used_groups` are left; of equal ones the last.
void keep_groups(const RouteRule& rule, std::span<double> choice) {
  auto groups = static_cast<size_t>(rule.groups), size = choice.size() / groups;
  for (int64_t left = rule.groups; left > rule.used_groups; --left) {
    double worst = std::numeric_limits<double>::infinity();
    size_t at = 0;
    for (size_t g = 0; g < groups; ++g) {
      std::span<double> group = choice.subspan(g * size, size);
      double own = group_score(rule, group);
      if (own != kRemoved && own <= worst) {
        worst = own;
        at = g;
      }
    }
    std::fill_n(choice.begin() + static_cast<ptrdiff_t>(at * size), size, kRemoved);
  }
}

}  // namespace

RouteRule route_rule(const Value& attrs) {
  RouteRule r;
  r.used = attrs.at("k").as_int();
  r.sigmoid = attrs.get_string("gate", "softmax") == "sigmoid";
  r.normalize = attrs.get_int("normalize", 0) != 0;
  r.scale = attrs.get_double("scale", 1.0);
  r.groups = attrs.get_int("groups", 1);
  r.used_groups = attrs.get_int("used_groups", r.groups);
  return r;
}

void route_row(const RouteRule& rule, std::span<double> scores, std::span<const double> bias,
               std::span<double> choice, std::span<double> weights, std::span<int32_t> experts) {
  score(rule, scores);
  for (size_t i = 0; i < scores.size(); ++i)
    choice[i] = bias.empty() ? scores[i] : scores[i] + bias[i];
  keep_groups(rule, choice);
  double sum = 0;
  for (size_t k = 0; k < experts.size(); ++k) {
    auto best =
        static_cast<size_t>(std::max_element(choice.begin(), choice.end()) - choice.begin());
    experts[k] = static_cast<int32_t>(best);
    weights[k] = scores[best];
    sum += scores[best];
    choice[best] = kRemoved;
  }
  for (double& w : weights) {
    if (rule.normalize) w /= sum;
    w *= rule.scale;
  }
}

namespace {

template <class S>
void moe_route(const MeaningArgs<S>& args) {
  const TensorRef<S>&logits = args.in[0].tensor, &weights = args.out[0].tensor,
        &experts = args.out[1].tensor;
  RouteRule rule = route_rule(args.attrs);
  int64_t count = logits.dims[1], k = rule.used;
  std::vector<double> scores(static_cast<size_t>(count)), choice(scores.size()), bias;
  std::vector<double> chosen(static_cast<size_t>(k));
  std::vector<int32_t> ids(chosen.size());
  if (args.in.size() > 1)
    for (int64_t e = 0; e < count; ++e)
      bias.push_back(static_cast<double>(Wide<S>(args.in[1].tensor.f[e])));
  for (int64_t t = 0; t < logits.dims[0]; ++t) {
    for (int64_t e = 0; e < count; ++e)
      scores[static_cast<size_t>(e)] = static_cast<double>(Wide<S>(logits.f[t * count + e]));
    route_row(rule, scores, bias, choice, chosen, ids);
    for (int64_t j = 0; j < k; ++j) {
      experts.i[t * k + j] = ids[static_cast<size_t>(j)];
      store(weights, t * k + j, chosen[static_cast<size_t>(j)]);
    }
  }
}

std::vector<Type> infer(const InferContext& context) {
  Rule rule("moe_route", context);
  const TensorType& logits = rule.values(0, "logits", 2);
  auto count = logits.extent(1).constant();
  if (!count) rule.fail("the number of experts {} is not constant", logits.extent(1).text());
  if (rule.inputs() > 1)
    rule.same(rule.values(1, "bias", 1).extent(0), "the bias", logits.extent(1), "the experts");
  std::string gate = rule.attrs().get_string("gate", "softmax");
  if (gate != "softmax" && gate != "sigmoid")
    rule.fail("unknown gate \"{}\": use softmax or sigmoid", gate);
  RouteRule r = route_rule(rule.attrs());
  if (r.used < 1 || r.used > *count) rule.fail("k = {} does not fit {} experts", r.used, *count);
  if (r.groups < 1 || *count % r.groups != 0 || r.used_groups < 1 || r.used_groups > r.groups ||
      *count / r.groups * r.used_groups < r.used)
    rule.fail("{} of {} experts in {} of {} groups", r.used, *count, r.used_groups, r.groups);
  std::vector<Dim> dims = {logits.dims[0], {"k", r.used}};
  return {Type::of({DType::kF32, dims}), Type::of({DType::kI32, dims})};
}

SymExpr flops(std::span<const Type> in, std::span<const Type>) {
  return in[0].tensor.elements() * 4;
}

}  // namespace

std::vector<OpDef> route_ops() {
  return {{.name = "moe_route",
           .tier = Tier::kComposite,
           .min_inputs = 1,
           .max_inputs = 2,
           .infer = infer,
           .f32 = moe_route<float>,
           .f64 = moe_route<double>,
           .traced = moe_route<Traced>,
           .attr_names = {"k", "gate", "normalize", "scale", "groups", "used_groups"},
           .required_attrs = 1,
           .storage = true,
           .flops = flops,
           .doc = "the chosen experts of each token and their weights"}};
}

}  // namespace tokamak
