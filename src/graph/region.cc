#include "graph/region.h"

#include <algorithm>

#include "base/error.h"
#include "graph/rebuild.h"

namespace tokamak {
namespace {

constexpr std::string_view kBodyPrefix = "fused.";
constexpr size_t kMaxBodyNodes = 512;  // each use of a body visits all of its nodes

[[noreturn]] void bad_region(std::string_view op, std::string_view what) {
  fail(ErrorCode::kInvalidArgument, "{}: {}", op, what);
}

// A body is a function that depends on its inputs only.
void check_body(const OpDef& op, const Function& body) {
  if (body.nodes().size() > kMaxBodyNodes)
    bad_region(op.name, fmt::format("body {} has more than {} nodes", body.name(), kMaxBodyNodes));
  for (const Node& node : body.nodes()) {
    if (is_region(node)) bad_region(op.name, fmt::format("body {} holds a region", body.name()));
    if (node.op->name == "weight")
      bad_region(op.name, fmt::format("body {} names a weight; it must be an input", body.name()));
    if (node.op->writes_state && !op.writes_state)
      bad_region(op.name, fmt::format("body {} writes a state", body.name()));
  }
  if (body.results().empty())
    bad_region(op.name, fmt::format("body {} has no result", body.name()));
  for (size_t i = 0; i < body.results().size(); ++i) {
    bool state = body.type(body.results()[i].ref).kind == Type::Kind::kState;
    if (state != (op.writes_state && i == 0))
      bad_region(op.name, fmt::format("result {} of body {} {}", i, body.name(),
                                      state ? "is a state" : "must be the state it writes"));
  }
}

std::vector<Ref> inlined(Function& to, const Function& body, const std::vector<Ref>& inputs) {
  std::vector<std::vector<Ref>> now(body.nodes().size());
  size_t next = 0;
  for (NodeId id = 0; id < body.nodes().size(); ++id) {
    const Node& node = body.node(id);
    if (node.op->name == "input") {
      now[id] = {inputs.at(next++)};
    } else if (node.op->name == "constant") {
      now[id] = {to.constant(node.attrs.at("name").as_string())};
    } else {
      std::vector<Ref> in;
      for (Ref r : node.inputs) in.push_back(now[r.node][r.output]);
      to.set_provenance(node.provenance);
      now[id] = copy_node(to, node, std::move(in));
    }
  }
  std::vector<Ref> out;
  for (const Function::Result& r : body.results()) out.push_back(now[r.ref.node][r.ref.output]);
  return out;
}

}  // namespace

const Function& region_body(const Module& module, const Attrs& attrs) {
  const Value* name = attrs.find("body");
  if (!name || !name->is_string())
    fail(ErrorCode::kInvalidArgument, "region: attribute \"body\" must name a function");
  const Function* body = module.find_function(name->as_string());
  if (!body)
    fail(ErrorCode::kInvalidArgument, "region: there is no function \"{}\" (bodies come first)",
         name->as_string());
  return *body;
}

std::vector<Type> region_types(const Module& module, const OpDef& op, std::span<const Type> in,
                               const Attrs& attrs) {
  for (const auto& [key, value] : attrs.as_object())
    if (key != "body" || !value.is_string())
      bad_region(op.name, fmt::format("attribute \"{}\"", key));
  const Function& body = region_body(module, attrs);
  check_body(op, body);
  size_t count = body.inputs().size();
  if (op.writes_state ? in.size() < count || count == 0 : in.size() != count)
    bad_region(op.name,
               fmt::format("body {} takes {} inputs, got {}", body.name(), count, in.size()));
  for (size_t i = 0; i < count; ++i)
    if (const Type& want = body.node(body.inputs()[i]).outputs[0]; want != in[i])
      bad_region(op.name, fmt::format("input {} is {}, body {} takes {}", i, in[i].text(),
                                      body.name(), want.text()));
  std::vector<Type> out;
  for (const Function::Result& r : body.results()) out.push_back(body.type(r.ref));
  if (op.writes_state && in[0] != out[0])
    bad_region(op.name, "input 0 is not the state that the body writes");
  return out;
}

size_t written_inputs(const Module& module, const OpDef* op, const Attrs& attrs,
                      const Type& state) {
  constexpr size_t kFirstPlane = 4;  // state, view, seq, slot
  if (op->tier == Tier::kRegion) return region_body(module, attrs).inputs().size();
  if (op->recurrent) return SIZE_MAX;
  const StateDecl* decl = module.find_state(state.name);
  TK_CHECK(decl, "{} writes a state that is not declared", op->name);
  return kFirstPlane + decl->planes.size();
}

std::string add_body(Module& module, Function body, std::string_view hint) {
  std::string name =
      fmt::format("{}{}.{:012x}", kBodyPrefix, hint, structural_hash(body) & 0xffffffffffff);
  if (module.find_function(name)) return name;
  Function& made = module.add_function(name);
  // A Function cannot be renamed: its nodes are copied into one with the new name.
  for (const Node& node : body.nodes())
    if (node.op->name == "input")
      made.add_input(node.attrs.at("name").as_string(), node.outputs[0]);
  std::vector<Ref> inputs;
  for (NodeId id : made.inputs()) inputs.push_back({id, 0});
  std::vector<Ref> out = inlined(made, body, inputs);
  for (size_t i = 0; i < out.size(); ++i) made.set_result(body.results()[i].name, out[i]);
  return name;
}

std::set<std::string> body_names(const Module& module) {
  std::set<std::string> names;
  for (const auto& fn : module.functions)
    for (const Node& node : fn->nodes())
      if (is_region(node)) names.insert(node.attrs.get_string("body", ""));
  return names;
}

void drop_unused_bodies(Module& module) {
  std::set<std::string> used = body_names(module);
  std::erase_if(module.functions, [&](const auto& fn) {
    return fn->name().starts_with(kBodyPrefix) && !used.contains(fn->name());
  });
}

void inline_regions(Module& module, Function& function,
                    const std::function<bool(const Node&)>& which) {
  rebuild(module, function, [&](Function& to, const Node& node, const std::vector<Ref>& in) {
    if (!is_region(node) || !which(node)) return copy_node(to, node, in);
    return inlined(to, region_body(module, node.attrs), in);
  });
}

}  // namespace tokamak
