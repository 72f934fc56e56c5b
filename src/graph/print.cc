#include <fmt/format.h>

#include <algorithm>

#include "graph/region.h"
#include "graph/text_format.h"

namespace tokamak {
namespace {

constexpr size_t kColumns = 100;

std::string list_text(const std::vector<std::string>& items) {
  std::string out;
  for (const std::string& s : items) out += (out.empty() ? "" : ", ") + quote_text(s);
  return out;
}

void print_constant(const ConstantDecl& c, std::string& out) {
  std::string line = fmt::format("constant {} : {} = [", name_text(c.name), c.type.text());
  for (size_t i = 0; i < c.values.size(); ++i) {
    std::string item = constant_value_text(c.type.dtype, c.values[i]);
    item += i + 1 < c.values.size() ? "," : "]";
    if (line.size() + item.size() + 1 > kColumns) {
      out += line;
      out += '\n';
      line = " ";
    }
    if (line.back() != '[') line += ' ';
    line += item;
  }
  if (c.values.empty()) line += ']';
  out += line;
  out += '\n';
}

void print_declarations(const Module& m, std::string& out) {
  for (const SymbolDecl& s : m.symbols) {
    out += fmt::format("symbol {} in {}..{}", name_text(s.name), s.lo, s.hi);
    if (s.multiple != 1) out += fmt::format(" multiple {}", s.multiple);
    out += '\n';
  }
  for (const GroupDecl& g : m.groups) {
    out += fmt::format("group {} window {} block {}\n", name_text(g.name), g.window, g.block_size);
  }
  for (const StateDecl& s : m.states) {
    const bool per_token = s.growth == StateDecl::Growth::kPerToken;
    out += fmt::format("state {} in {} {} {{", name_text(s.name), name_text(s.group),
                       per_token ? "per_token" : "per_sequence");
    for (size_t i = 0; i < s.planes.size(); ++i) {
      out += fmt::format("{}{}: {}", i > 0 ? ", " : "", name_text(s.planes[i].name),
                         s.planes[i].type.text());
    }
    out += "}\n";
  }
  for (const WeightDecl& w : m.weights) {
    out += fmt::format("weight {} : {}", name_text(w.name), w.type.text());
    const std::string recipe = recipe_text(w.recipe);
    if (!recipe.empty()) out += " from " + recipe;
    out += '\n';
  }
  for (const ConstantDecl& c : m.constants) print_constant(c, out);
}

// The most common provenance is printed once; of equally common ones the first.
std::vector<std::string> common_provenance(const Function& function) {
  std::map<std::vector<std::string>, size_t> counts;
  size_t best = 0;
  for (const Node& n : function.nodes()) {
    if (n.op->tier != Tier::kStructural) best = std::max(best, ++counts[n.provenance]);
  }
  for (const Node& n : function.nodes()) {
    if (n.op->tier != Tier::kStructural && counts[n.provenance] == best) return n.provenance;
  }
  return {};
}

class FunctionPrinter {
 public:
  FunctionPrinter(const Function& fn, std::string& out) : fn_(fn), out_(out) {}

  void print() {
    out_ += fmt::format("func {} {{\n", name_text(fn_.name()));
    for (const Fact& f : fn_.facts()) {
      out_ += fmt::format("  fact {} ", name_text(f.input));
      out_ += f.kind == Fact::Kind::kNatural ? ">= 0\n" : fmt::format("= iota*{}\n", f.value);
    }
    common_ = common_provenance(fn_);
    if (!common_.empty()) out_ += fmt::format("  provenance {}\n", list_text(common_));
    labels_.resize(fn_.nodes().size());
    size_t number = 0;
    for (NodeId id = 0; id < fn_.nodes().size(); ++id) {
      const Node& node = fn_.node(id);
      if (node.op->name == "weight" || node.op->name == "constant") {
        labels_[id] = (node.op->name == "weight" ? "@" : "$") + attr_name(node);
      } else {
        labels_[id] = fmt::format("%{}", number++);
        print_node(id, node);
      }
    }
    for (const Function::Result& r : fn_.results()) {
      out_ += fmt::format("  return {} = {}\n", name_text(r.name), ref_text(r.ref));
    }
    out_ += "}\n";
  }

 private:
  static std::string attr_name(const Node& node) {
    return name_text(node.attrs.at("name").as_string());
  }
  std::string ref_text(Ref r) const {
    return r.output == 0 ? labels_[r.node] : fmt::format("{}.{}", labels_[r.node], r.output);
  }

  void print_node(NodeId id, const Node& node) {
    out_ += fmt::format("  {} = {}", labels_[id], node.op->name);
    if (node.op->name == "input") {
      out_ += fmt::format(" {} : {}\n", attr_name(node), type_text(node.outputs[0]));
      return;
    }
    out_ += '(';
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      if (i > 0) out_ += ", ";
      out_ += ref_text(node.inputs[i]);
    }
    out_ += ')';
    if (std::string attrs = attrs_text(node.attrs); !attrs.empty()) out_ += ' ' + attrs;
    out_ += " : " + types_text(node.outputs);
    const bool special = node.provenance != common_;
    if (!node.name.empty() || special) out_ += "  #";
    if (!node.name.empty()) out_ += ' ' + name_text(node.name);
    if (special) out_ += " [" + list_text(node.provenance) + ']';
    out_ += '\n';
  }

  const Function& fn_;
  std::string& out_;
  std::vector<std::string> common_, labels_;
};

}  // namespace

std::string print_function(const Function& function) {
  std::string out;
  FunctionPrinter(function, out).print();
  return out;
}

std::string print_module(const Module& module) {
  std::string out = fmt::format("module {} format 1\n", name_text(module.name));
  print_declarations(module, out);
  // Declarations come before their use: bodies of regions first.
  const std::set<std::string> bodies = body_names(module);
  for (bool body : {true, false})
    for (const auto& f : module.functions) {
      if (bodies.contains(f->name()) != body) continue;
      out += '\n';
      FunctionPrinter(*f, out).print();
    }
  return out;
}

}  // namespace tokamak
