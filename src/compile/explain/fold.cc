#include "compile/explain/fold.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <tuple>

#include "base/json.h"
#include "graph/region.h"

namespace tokamak {
namespace {

// The digits after the next "blk."; {npos, npos} if there are none.
std::pair<size_t, size_t> layer_digits(std::string_view name, size_t from) {
  for (size_t at = name.find("blk.", from); at != std::string_view::npos;
       at = name.find("blk.", at + 1)) {
    size_t begin = at + 4, end = begin;
    while (end < name.size() && std::isdigit(static_cast<unsigned char>(name[end]))) ++end;
    if (end > begin && end - begin < 7) return {begin, end};
  }
  return {std::string_view::npos, std::string_view::npos};
}

bool is_structural(const Node& node) { return node.op->tier == Tier::kStructural; }

std::string weight_name(const Node& node) {
  bool weight = node.op->role == OpDef::Role::kWeight || node.op->role == OpDef::Role::kConstant;
  return weight ? node.attrs.at("name").as_string() : std::string();
}

// A node whose name has no layer belongs to none, regardless of its inputs.
int own_layer(std::string_view name, bool named) {
  int layer = layer_of(name);
  return layer >= 0 ? layer : named ? -2 : -1;
}

std::vector<int> node_layers(const Function& fn) {
  std::vector<int> layers(fn.nodes().size(), -1);
  for (NodeId id = 0; id < layers.size(); ++id) {
    const Node& node = fn.node(id);
    if (is_structural(node)) {
      layers[id] = layer_of(weight_name(node));
      continue;
    }
    int layer = own_layer(node.name, !node.name.empty());
    if (layer == -1)
      for (Ref r : node.inputs) layer = std::max(layer, layers[r.node]);
    layers[id] = std::max(layer, -1);
  }
  return layers;
}

// Builds the summary of one function.
class GraphFolder {
 public:
  explicit GraphFolder(const Function& fn) : fn_(fn), layers_(node_layers(fn)) {}

  Value run() {
    std::vector<NodeId> before, behind;
    std::map<int, std::vector<NodeId>> layers;
    for (NodeId id = 0; id < layers_.size(); ++id) {
      if (is_structural(fn_.node(id))) continue;
      if (layers_[id] >= 0)
        layers[layers_[id]].push_back(id);
      else
        (layers.empty() ? before : behind).push_back(id);
    }
    Value out = Value::array();
    if (!before.empty()) out.push(segment("before the layers", 1, before));
    std::vector<std::pair<std::string, std::vector<int>>> kinds;
    for (const auto& [layer, nodes] : layers) {
      std::string text = signature(nodes);
      auto it = std::find_if(kinds.begin(), kinds.end(), [&](auto& k) { return k.first == text; });
      if (it == kinds.end()) it = kinds.insert(kinds.end(), {text, {}});
      it->second.push_back(layer);
    }
    for (const auto& [text, members] : kinds)
      out.push(
          segment(fmt::format("layer{} {}", members.size() == 1 ? "" : "s", layer_ranges(members)),
                  members.size(), layers[members[0]]));
    if (!behind.empty()) out.push(segment("after the layers", 1, behind));
    return out;
  }

 private:
  // A body that writes a state has the layer in its name, so its content is used instead.
  std::string meaning_of(const Node& node) const {
    if (!is_region(node)) return dump_json(node.attrs);
    std::string out;
    for (const Node& inner : region_body(fn_.module(), node.attrs).nodes())
      out +=
          fmt::format("{} {} {};", inner.op->name,
                      is_structural(inner) ? "" : dump_json(inner.attrs), inner.outputs[0].text());
    return out;
  }

  std::string signature(const std::vector<NodeId>& nodes) const {
    std::map<NodeId, size_t> local;
    std::string out;
    for (NodeId id : nodes) {
      const Node& node = fn_.node(id);
      out += fmt::format("{} {} {}(", node.op->name, meaning_of(node), node.outputs[0].text());
      for (Ref r : node.inputs) {
        auto it = local.find(r.node);
        out += it != local.end() ? fmt::format("{}.{},", it->second, r.output)
                                 : without_layer(weight_name(fn_.node(r.node))) + ",";
      }
      out += ")\n";
      local.emplace(id, local.size());
    }
    // States have the layer's number in their type and name.
    std::string flat;
    for (size_t i = 0; i < out.size(); ++i) {
      flat += out[i];
      if (out.compare(i, 4, "<kv.") == 0) {
        flat += "kv.";
        i += 3;
        while (i + 1 < out.size() && std::isdigit(static_cast<unsigned char>(out[i + 1]))) ++i;
      }
    }
    return flat;
  }

  Value segment(std::string title, size_t count, const std::vector<NodeId>& nodes) const {
    std::map<NodeId, int64_t> local;
    Value list = Value::array();
    for (NodeId id : nodes) {
      const Node& node = fn_.node(id);
      Value from = Value::array(), weights = Value::array();
      size_t inputs = node.op->writes_state ? first_ordering_input(fn_, node) : node.inputs.size();
      for (size_t i = 0; i < inputs; ++i) {
        Ref r = node.inputs[i];
        const Node& source = fn_.node(r.node);
        if (auto it = local.find(r.node); it != local.end())
          from.push(it->second);
        else if (!weight_name(source).empty())
          weights.push(weight_name(source));
        else if (source.op->role == OpDef::Role::kInput)
          from.push(source.attrs.at("name").as_string());
        else
          from.push(source.name.empty() ? std::string(source.op->name) : source.name);
      }
      Value entry = Value::Object{{"op", std::string(node.op->name)},
                                  {"name", node.name},
                                  {"type", node.outputs[0].text()},
                                  {"from", std::move(from)},
                                  {"weights", std::move(weights)},
                                  {"why", fmt::format("{}", fmt::join(node.provenance, "; "))}};
      if (is_region(node)) entry.set("body", body_ops(node));
      list.push(std::move(entry));
      local[id] = static_cast<int64_t>(local.size());
    }
    return Value::Object{{"title", std::move(title)}, {"count", count}, {"nodes", std::move(list)}};
  }

  Value body_ops(const Node& node) const {
    Value out = Value::array();
    for (const Node& inner : region_body(fn_.module(), node.attrs).nodes())
      if (!is_structural(inner)) out.push(std::string(inner.op->name));
    return out;
  }

  const Function& fn_;
  std::vector<int> layers_;
};

}  // namespace

int layer_of(std::string_view name) {
  auto [begin, end] = layer_digits(name, 0);
  return begin == std::string_view::npos ? -1
                                         : std::stoi(std::string(name.substr(begin, end - begin)));
}

std::string without_layer(std::string_view name) {
  std::string out(name);
  for (auto [begin, end] = layer_digits(out, 0); begin != std::string::npos;
       std::tie(begin, end) = layer_digits(out, begin))
    out.replace(begin, end - begin, "*");
  return out;
}

std::string layer_ranges(const std::vector<int>& layers) {
  std::string out;
  for (size_t i = 0; i < layers.size();) {
    size_t last = i;
    while (last + 1 < layers.size() && layers[last + 1] == layers[last] + 1) ++last;
    if (layers[i] >= 0)
      out += fmt::format("{}{}{}", out.empty() ? "" : ", ", layers[i],
                         last > i ? fmt::format("-{}", layers[last]) : "");
    i = last + 1;
  }
  return out;
}

std::vector<int> call_layers(const PlanSet& set, const Plan& plan) {
  std::vector<int> layers;
  std::map<uint32_t, int> made;  // arena value -> layer
  for (const KernelCall& call : plan.calls) {
    int layer = own_layer(call.label, call.label != call.op);
    if (layer == -1)
      for (const CallArg& arg : call.in) {
        if (arg.kind == CallArg::Kind::kWeight)
          layer = std::max(layer, layer_of(set.weights[arg.index].name));
        else if (auto it = made.find(arg.index);
                 arg.kind == CallArg::Kind::kArena && it != made.end())
          layer = std::max(layer, it->second);
      }
    layer = std::max(layer, -1);
    for (const CallArg& arg : call.out)
      if (arg.kind == CallArg::Kind::kArena) made[arg.index] = layer;
    layers.push_back(layer);
  }
  return layers;
}

Value folded_graph(const Function& function) { return GraphFolder(function).run(); }

}  // namespace tokamak
