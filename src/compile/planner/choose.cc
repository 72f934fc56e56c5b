#include "compile/planner/choose.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace tokamak {

// One request, measured at its smallest and its largest shape.
struct KernelChooser::Bucket {
  const PlanRequest& request;
  size_t index;
  std::vector<ShapeValues> shapes;  // smallest, largest
  std::unique_ptr<Module> inlined;  // holds `fn` when some regions run op by op
  const Function* fn;
  std::unique_ptr<WorkMeter> meter;
  // Bodies, by name and by which inputs are weights.
  struct Body {
    std::unique_ptr<WorkMeter> meter;
    std::optional<std::vector<RegionMatch>> kernels;
  };
  mutable std::map<std::pair<std::string, std::vector<bool>>, Body> bodies;
  std::map<const Node*, Choice> chosen;

  const WorkMeter& body_meter(const Function& body, const std::vector<bool>& weights) const {
    auto& known = bodies[{body.name(), weights}];
    if (!known.meter)
      known.meter = std::make_unique<WorkMeter>(body, shapes, weights, meter->all_weight_bytes());
    return *known.meter;
  }
  const std::vector<RegionMatch>& body_kernels(const KernelSet& kernels, const Function& body,
                                               const std::vector<bool>& weights) const {
    auto& known = bodies[{body.name(), weights}].kernels;
    if (!known) known = kernels.of_region(body, weights);
    return *known;
  }
};

// What could be one call: a node of a function, a node inside a region, or a region.
struct KernelChooser::Site {
  const WorkMeter* meter = nullptr;
  std::vector<NodeId> nodes;
  std::vector<Ref> in, out;
  std::vector<RegionMatch> kernels;
  std::string signature;  // of a single op; of a region: its anchor's
  std::vector<Matrix> matrices;
  const Function* fn = nullptr;  // that has the node
  const Node* node = nullptr;
};

namespace {

std::vector<ShapeValues> bucket_shapes(const PlanRequest& request) {
  std::vector<ShapeValues> out(2);
  for (const SymbolDecl& s : request.function->module().symbols) {
    int64_t lo = s.lo, hi = s.hi;
    for (const GuardRange& g : request.guard)
      if (g.symbol == s.name) {
        lo = g.pad > 0 && g.multiple <= 1 ? g.pad : g.lo;
        hi = g.hi;
      }
    out[0][s.name] = lo;
    out[1][s.name] = std::max(lo, hi);
  }
  return out;
}

std::vector<Ref> unique_inputs(const Function& fn, const Node& node) {
  std::vector<Ref> out;
  size_t count = node.op->writes_state ? first_ordering_input(fn, node) : node.inputs.size();
  for (size_t i = 0; i < count; ++i)
    if (std::find(out.begin(), out.end(), node.inputs[i]) == out.end())
      out.push_back(node.inputs[i]);
  return out;
}

std::vector<Ref> all_outputs(const Function& fn, NodeId id) {
  std::vector<Ref> out;
  for (uint32_t o = 0; o < fn.node(id).outputs.size(); ++o) out.push_back({id, o});
  return out;
}

bool is_matrix(const Function& fn, Ref r) {
  return is_weight(fn.node(r.node)) && fn.tensor(r).rank() >= 2;
}

std::string_view layout_name(std::string_view layout) { return layout.empty() ? "rows" : layout; }
std::string layout_names(const std::map<std::string, double>& layouts) {
  std::string out;
  for (const auto& [layout, seconds] : layouts)
    out += fmt::format("{}{}", out.empty() ? "" : " or ", layout_name(layout));
  return out;
}

// KernelChoice::group of a region: its ops and what they give. Layers share it, although each
// writes a state of its own.
std::string region_group(const Function& body) {
  std::string ops, results;
  for (const Node& node : body.nodes()) {
    if (node.op->tier == Tier::kStructural) continue;
    ops += fmt::format("{}{}", ops.empty() ? "" : "+", node.op->name);
    for (const Type& t : node.outputs)
      if (t.kind == Type::Kind::kTensor) results += " " + t.text();
  }
  return ops + results;
}

std::string weight_name(const Function& fn, Ref r) {
  return fn.node(r.node).attrs.at("name").as_string();
}

}  // namespace

KernelChooser::KernelChooser(const KernelSet& kernels, const Machine& machine,
                             const std::vector<PlanRequest>& requests)
    : kernels_(kernels), machine_(machine) {
  for (const PlanRequest& r : requests) {
    auto b = std::make_unique<Bucket>(
        Bucket{r, buckets_.size(), bucket_shapes(r), nullptr, r.function, nullptr, {}, {}});
    b->meter = std::make_unique<WorkMeter>(*b->fn, b->shapes);
    buckets_.push_back(std::move(b));
  }
  fix_classes();
  fix_layouts();
  for (auto& b : buckets_) decide(*b);
}

KernelChooser::~KernelChooser() = default;

const Function& KernelChooser::function(size_t request) const { return *buckets_[request]->fn; }

KernelChooser::Site KernelChooser::site(const Bucket& bucket, const Function& fn, NodeId id) const {
  const Node& node = fn.node(id);
  Site s;
  s.signature = node_signature(fn, node);
  s.fn = &fn;
  s.node = &node;
  for (size_t i = 0; i < node.inputs.size(); ++i)
    if (Ref r = node.inputs[i]; is_matrix(fn, r)) s.matrices.push_back({weight_name(fn, r), i});
  if (!is_region(node)) {
    s.meter = bucket.meter.get();
    s.nodes = {id};
    s.in = unique_inputs(fn, node);
    s.out = all_outputs(fn, id);
    for (const KernelDesc* k : kernels_.of_node(fn, node)) s.kernels.push_back({k, {}});
    return s;
  }
  const Function& body = region_body(fn.module(), node.attrs);
  std::vector<bool> weights = weight_inputs(fn, node);
  weights.resize(body.inputs().size());  // without what only orders a write
  s.meter = &bucket.body_meter(body, weights);
  for (NodeId inner = 0; inner < body.nodes().size(); ++inner)
    if (body.node(inner).op->tier == Tier::kStructural)
      s.in.push_back({inner, 0});
    else
      s.nodes.push_back(inner);
  for (const Function::Result& r : body.results()) s.out.push_back(r.ref);
  s.kernels = bucket.body_kernels(kernels_, body, weights);
  if (!s.kernels.empty())
    for (size_t i = 0; i < s.nodes.size(); ++i)
      if (s.kernels[0].parts[i] == OpWork::Part::kAnchor)
        s.signature = inner_site(bucket, fn, node, body, s.nodes[i]).signature;
  return s;
}

KernelChooser::Site KernelChooser::inner_site(const Bucket& bucket, const Function& fn,
                                              const Node& region, const Function& body,
                                              NodeId id) const {
  const Node& node = body.node(id);
  Site s;
  s.fn = &body;
  s.node = &node;
  std::vector<bool> weights = weight_inputs(fn, region);
  weights.resize(body.inputs().size());
  s.meter = &bucket.body_meter(body, weights);
  s.nodes = {id};
  s.in = unique_inputs(body, node);
  s.out = all_outputs(body, id);
  s.signature = node_signature(body, node, weights);
  for (const KernelDesc* k : kernels_.of_node(body, node, weights)) s.kernels.push_back({k, {}});
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    auto at = std::find(body.inputs().begin(), body.inputs().end(), node.inputs[i].node);
    if (at == body.inputs().end()) continue;
    Ref outer = region.inputs[static_cast<size_t>(at - body.inputs().begin())];
    if (is_matrix(fn, outer)) s.matrices.push_back({weight_name(fn, outer), i});
  }
  return s;
}

template <class See>
void KernelChooser::each_site(See&& see) const {
  for (const auto& b : buckets_) {
    const Function& fn = *b->fn;
    for (NodeId id = 0; id < fn.nodes().size(); ++id) {
      const Node& node = fn.node(id);
      if (!is_call_node(fn, node)) continue;
      see(site(*b, fn, id), is_region(node));
      if (!is_region(node)) continue;
      const Function& body = region_body(fn.module(), node.attrs);
      for (NodeId inner = 0; inner < body.nodes().size(); ++inner)
        if (is_call_node(body, body.node(inner))) see(inner_site(*b, fn, node, body, inner), false);
    }
  }
}

KernelChooser::Options KernelChooser::options(const Site& s) const {
  Options out;
  for (const RegionMatch& match : s.kernels) {
    KernelWork lo = s.meter->work(s.nodes, match.parts, s.in, s.out, 0),
               hi = s.meter->work(s.nodes, match.parts, s.in, s.out, 1);
    const KernelDesc& k = *match.kernel;
    Option o{&k, kernel_cost(k, hi, machine_), k.scratch ? k.scratch(hi) : 0, {}};
    if (!guard_holds(k, lo, hi)) o.refused = "guard " + guard_text(k);
    auto wanted = class_of_.find(s.signature);
    if (!k.numeric_class.empty() && wanted != class_of_.end() && k.numeric_class != wanted->second)
      o.refused = "numeric class";
    for (const Matrix& matrix : s.matrices) {
      auto it = layout_of_.find(matrix.name);
      std::string layout = layout_for(k, s, matrix.operand);
      if (it != layout_of_.end() && it->second != layout)
        o.refused = fmt::format("layout {}", layout_name(layout));
    }
    out.push_back(std::move(o));
  }
  return out;
}

std::string KernelChooser::layout_for(const KernelDesc& kernel, const Site& s,
                                      size_t operand) const {
  return kernels_.packs(kernel, *s.fn, *s.node, operand) ? kernel.weight_layout : "";
}

const KernelChooser::Option* KernelChooser::best(const Options& options) {
  const Option* best = nullptr;
  for (const Option& o : options)
    if (o.refused.empty() && (!best || o.seconds < best->seconds)) best = &o;
  return best;
}

const KernelChooser::Option* KernelChooser::taken(const Bucket& bucket, const std::string& group,
                                                  const Options& options) {
  auto it = bucket.request.forced.find(group);
  if (it != bucket.request.forced.end())
    for (const Option& o : options)
      if (o.kernel->name == it->second && o.refused.empty()) return &o;
  return best(options);
}

// The class of an op with these types: the first one, in the order of the backend's kernels, that
// has a kernel in every plan. Times do not matter: no kernel is so fast that bits may change.
void KernelChooser::fix_classes() {
  struct Ranked {
    std::vector<std::string> classes;  // in the backend's order
    std::map<std::string, size_t> sites;
  };
  std::map<std::string, Ranked> ranked;
  each_site([&](const Site& s, bool region) {
    if (region) return;
    Ranked& r = ranked[s.signature];
    std::set<std::string> usable;
    bool several = std::any_of(s.kernels.begin(), s.kernels.end(), [&](const RegionMatch& m) {
      return m.kernel->numeric_class != s.kernels[0].kernel->numeric_class;
    });
    if (several)
      for (const Option& o : options(s))
        if (o.refused.empty()) usable.insert(o.kernel->numeric_class);
    for (const RegionMatch& m : s.kernels)
      if (r.sites.try_emplace(m.kernel->numeric_class, 0).second)
        r.classes.push_back(m.kernel->numeric_class);
    for (const std::string& c : usable) ++r.sites.at(c);
  });
  for (const auto& [signature, r] : ranked) {
    const std::string* most = nullptr;
    for (const std::string& c : r.classes)
      if (!most || r.sites.at(c) > r.sites.at(*most)) most = &c;
    if (most) class_of_[signature] = *most;
  }
}

// What a call costs for each layout of a matrix that it reads.
KernelChooser::LayoutSeconds KernelChooser::layout_seconds(const Site& s, const Options& options,
                                                           const Matrix& matrix) const {
  LayoutSeconds out;
  for (const Option& o : options) {
    if (!o.refused.empty()) continue;
    auto [it, fresh] = out.try_emplace(layout_for(*o.kernel, s, matrix.operand), o.seconds);
    if (!fresh) it->second = std::min(it->second, o.seconds);
  }
  return out;
}

// A region: by a kernel for it, or op by op.
std::map<std::string, KernelChooser::LayoutSeconds> KernelChooser::region_layouts(
    const Bucket& bucket, const Function& fn, NodeId id) const {
  std::map<std::string, LayoutSeconds> out, apart;
  Site whole = site(bucket, fn, id);
  Options all = options(whole);
  for (const Matrix& m : whole.matrices) out[m.name] = layout_seconds(whole, all, m);
  const Function& body = region_body(fn.module(), fn.node(id).attrs);
  double seconds = 0;
  for (NodeId inner = 0; inner < body.nodes().size(); ++inner) {
    if (!is_call_node(body, body.node(inner))) continue;
    Site one = inner_site(bucket, fn, fn.node(id), body, inner);
    Options kernels = options(one);
    const Option* cheapest = best(kernels);
    if (!cheapest) return out;  // only as a region
    seconds += cheapest->seconds;
    for (const Matrix& m : one.matrices)
      for (const auto& [layout, time] : layout_seconds(one, kernels, m))
        apart[m.name][layout] += time - cheapest->seconds;
  }
  for (auto& [matrix, layouts] : apart)
    for (const auto& [layout, extra] : layouts) {
      auto [it, fresh] = out[matrix].try_emplace(layout, seconds + extra);
      if (!fresh) it->second = std::min(it->second, seconds + extra);
    }
  return out;
}

// The layout of a matrix that all its uses can take and that costs least over all plans.
void KernelChooser::fix_layouts() {
  std::map<std::string, LayoutSeconds> totals;
  auto add = [&](const std::string& matrix, const LayoutSeconds& use, std::string_view op) {
    if (use.empty()) return;  // no kernel at all, which choice() reports
    auto [it, fresh] = totals.try_emplace(matrix, use);
    if (fresh) return;
    std::string others = layout_names(it->second);
    std::erase_if(it->second, [&](const auto& e) { return !use.contains(e.first); });
    if (it->second.empty())
      fail(ErrorCode::kUnsupported,
           "weight {}: kernels of backend {} for {} read it as {}, those of its other uses as {}; "
           "a weight is held once, so one of them needs a kernel for another layout",
           matrix, kernels_.backend().name(), op, layout_names(use), others);
    for (auto& [layout, seconds] : it->second) seconds += use.at(layout);
  };
  for (const auto& b : buckets_) {
    const Function& fn = *b->fn;
    for (NodeId id = 0; id < fn.nodes().size(); ++id) {
      const Node& node = fn.node(id);
      if (!is_call_node(fn, node) || std::none_of(node.inputs.begin(), node.inputs.end(),
                                                  [&](Ref r) { return is_matrix(fn, r); }))
        continue;
      if (is_region(node)) {
        for (const auto& [matrix, use] : region_layouts(*b, fn, id))
          add(matrix, use, node.op->name);
        continue;
      }
      Site s = site(*b, fn, id);
      Options all = options(s);
      for (const Matrix& m : s.matrices) add(m.name, layout_seconds(s, all, m), node.op->name);
    }
  }
  for (const auto& [matrix, layouts] : totals)
    layout_of_[matrix] =
        std::min_element(layouts.begin(), layouts.end(), [](const auto& x, const auto& y) {
          return x.second < y.second;
        })->first;
}

void KernelChooser::decide(Bucket& bucket) {
  std::set<NodeId> apart;
  const Function& fn = *bucket.fn;
  for (NodeId id = 0; id < fn.nodes().size(); ++id) {
    const Node& node = fn.node(id);
    if (!is_region(node)) continue;
    Options all = options(site(bucket, fn, id));
    const Function& body = region_body(fn.module(), node.attrs);
    const std::string group = region_group(body);
    const Option* chosen = taken(bucket, group, all);
    double seconds = 0;
    for (NodeId inner = 0; inner < body.nodes().size(); ++inner) {
      if (!is_call_node(body, body.node(inner))) continue;
      Options one = options(inner_site(bucket, fn, node, body, inner));
      const Option* o = best(one);
      seconds += o ? o->seconds : INFINITY;
    }
    auto forced = bucket.request.forced.find(group);
    bool one_by_one = forced == bucket.request.forced.end() ? !chosen || chosen->seconds > seconds
                                                            : forced->second == kOpByOp;
    if (!chosen || one_by_one) {
      apart.insert(id);
      chosen = nullptr;
    }
    note(bucket, node, group, all, chosen, seconds);
  }
  if (!apart.empty()) {
    bucket.inlined = std::make_unique<Module>(fn.module().clone());
    Function& copy = *bucket.inlined->find_function(fn.name());
    const Node* first = copy.nodes().data();
    inline_regions(*bucket.inlined, copy, [&](const Node& node) {
      return apart.contains(static_cast<NodeId>(&node - first));
    });
    bucket.fn = &copy;
    bucket.bodies.clear();
    bucket.meter = std::make_unique<WorkMeter>(copy, bucket.shapes);
  }
  const Function& final = *bucket.fn;
  for (NodeId id = 0; id < final.nodes().size(); ++id) {
    const Node& node = final.node(id);
    if (!is_call_node(final, node)) continue;
    Site one = site(bucket, final, id);
    Options all = options(one);
    std::string group =
        is_region(node) ? region_group(region_body(final.module(), node.attrs)) : one.signature;
    const Option* chosen = taken(bucket, group, all);
    if (chosen) bucket.chosen[&node] = {chosen->kernel, chosen->scratch, chosen->seconds};
    if (!is_region(node)) note(bucket, node, group, all, chosen, 0);
  }
}

// `apart`: a region's time op by op.
void KernelChooser::note(const Bucket& bucket, const Node& node, const std::string& group,
                         const Options& options, const Option* chosen, double apart) {
  if (options.size() < 2 && !is_region(node)) return;
  KernelChoice c;
  c.function = bucket.request.function->name();
  c.plan = bucket.index;
  c.call = node.name.empty() ? std::string(node.op->name) : node.name;
  c.group = group;
  c.kernel = chosen ? chosen->kernel->name : kOpByOp;
  c.seconds = chosen ? chosen->seconds : apart;
  for (const Option& o : options)
    if (&o != chosen)
      c.losers.push_back({o.kernel->name, o.seconds, o.refused.empty() ? "slower" : o.refused});
  if (chosen && is_region(node)) c.losers.push_back({kOpByOp, apart, "slower"});
  report_.push_back(std::move(c));
}

const KernelChooser::Choice& KernelChooser::choice(size_t request, const Node& node) const {
  const Bucket& b = *buckets_[request];
  TK_CHECK(is_call_node(*b.fn, node), "{} is not a call", node.op->name);
  auto it = b.chosen.find(&node);
  if (it != b.chosen.end()) return it->second;
  std::string types;
  for (Ref in : node.inputs) {
    const Type& t = b.fn->type(in);
    types += fmt::format(
        "{}{}", types.empty() ? "" : ", ",
        t.kind == Type::Kind::kTensor ? std::string(dtype_name(t.tensor.dtype)) : t.text());
  }
  std::string stored;
  if (stored_narrow(node))
    stored = fmt::format(" stored as {}", dtype_name(node.outputs[0].tensor.dtype));
  fail(ErrorCode::kUnsupported, "backend {} has no kernel for {}({}){}, needed by {}",
       kernels_.backend().name(), node.op->name, types, stored,
       node.name.empty() ? b.fn->name() : node.name);
}

std::set<std::string> KernelChooser::numeric_classes() const {
  std::set<std::string> out;
  for (const auto& [signature, cls] : class_of_) out.insert(signature + ": " + cls);
  return out;
}

}  // namespace tokamak
