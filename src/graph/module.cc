#include <algorithm>
#include <bit>
#include <cmath>

#include "base/error.h"
#include "graph/graph.h"

namespace tokamak {
namespace {

template <class Decl>
const Decl* find_by_name(const std::vector<Decl>& decls, std::string_view name) {
  auto it = std::find_if(decls.begin(), decls.end(), [&](const Decl& d) { return d.name == name; });
  return it == decls.end() ? nullptr : &*it;
}

// The vectors are public: an index that does not cover all entries is not used.
template <class Decl>
const Decl* find_indexed(const std::vector<Decl>& decls,
                         const std::unordered_map<std::string, size_t>& index,
                         std::string_view name) {
  if (index.size() != decls.size()) return find_by_name(decls, name);
  auto it = index.find(std::string(name));
  if (it == index.end() || decls[it->second].name != name) return nullptr;
  return &decls[it->second];
}

bool same_values(const std::vector<double>& a, const std::vector<double>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](double x, double y) {
    return std::bit_cast<uint64_t>(x) == std::bit_cast<uint64_t>(y);
  });
}

void normalize_constant(ConstantDecl& decl) {
  auto n = decl.type.elements().constant();
  if (!n || *n != static_cast<int64_t>(decl.values.size())) {
    fail(ErrorCode::kInvalidArgument, "constant \"{}\" has type {}, but {} values", decl.name,
         decl.type.text(), decl.values.size());
  }
  if (decl.type.dtype == DType::kF32) {
    for (double& v : decl.values) v = static_cast<double>(static_cast<float>(v));
  } else if (decl.type.dtype == DType::kI32) {
    for (double v : decl.values) {
      if (!(v >= INT32_MIN && v <= INT32_MAX) || v != std::floor(v)) {
        fail(ErrorCode::kInvalidArgument, "constant \"{}\": {} is not an i32", decl.name, v);
      }
    }
  } else {
    fail(ErrorCode::kInvalidArgument, "constant \"{}\" must be f32 or i32, not {}", decl.name,
         dtype_name(decl.type.dtype));
  }
}

}  // namespace

Module::Module(Module&& o) noexcept { *this = std::move(o); }

Module& Module::operator=(Module&& o) noexcept {
  if (this == &o) return *this;
  name = std::move(o.name);
  symbols = std::move(o.symbols);
  groups = std::move(o.groups);
  states = std::move(o.states);
  weights = std::move(o.weights);
  constants = std::move(o.constants);
  functions = std::move(o.functions);
  weight_index_ = std::move(o.weight_index_);
  constant_index_ = std::move(o.constant_index_);
  for (auto& f : functions) f->module_ = this;
  return *this;
}

Module Module::clone() const {
  Module copy(name);
  copy.symbols = symbols;
  copy.groups = groups;
  copy.states = states;
  copy.weights = weights;
  copy.constants = constants;
  copy.weight_index_ = weight_index_;
  copy.constant_index_ = constant_index_;
  for (const auto& f : functions) {
    copy.functions.push_back(std::make_unique<Function>(*f));
    copy.functions.back()->module_ = &copy;
  }
  return copy;
}

Function& Module::add_function(std::string function_name) {
  if (find_function(function_name)) {
    fail(ErrorCode::kInvalidArgument, "function \"{}\" is declared twice", function_name);
  }
  return *functions.emplace_back(std::make_unique<Function>(this, std::move(function_name)));
}

const Function* Module::find_function(std::string_view wanted) const {
  for (const auto& f : functions)
    if (f->name() == wanted) return f.get();
  return nullptr;
}
Function* Module::find_function(std::string_view wanted) {
  return const_cast<Function*>(std::as_const(*this).find_function(wanted));
}

const SymbolDecl* Module::find_symbol(std::string_view wanted) const {
  return find_by_name(symbols, wanted);
}
const GroupDecl* Module::find_group(std::string_view wanted) const {
  return find_by_name(groups, wanted);
}
const StateDecl* Module::find_state(std::string_view wanted) const {
  return find_by_name(states, wanted);
}
const WeightDecl* Module::find_weight(std::string_view wanted) const {
  return find_indexed(weights, weight_index_, wanted);
}
const ConstantDecl* Module::find_constant(std::string_view wanted) const {
  return find_indexed(constants, constant_index_, wanted);
}

void Module::add_weight(WeightDecl decl) {
  if (!weight_index_.emplace(decl.name, weights.size()).second) {
    fail(ErrorCode::kInvalidArgument, "weight \"{}\" is declared twice", decl.name);
  }
  weights.push_back(std::move(decl));
}

void Module::add_constant(ConstantDecl decl) {
  normalize_constant(decl);
  auto [it, fresh] = constant_index_.emplace(decl.name, constants.size());
  if (fresh) {
    constants.push_back(std::move(decl));
  } else if (const ConstantDecl& have = constants[it->second];
             have.type != decl.type || !same_values(have.values, decl.values)) {
    fail(ErrorCode::kInvalidArgument, "constant \"{}\" is declared twice with different content",
         decl.name);
  }
}

void Module::keep_constants(const std::set<std::string>& names) {
  std::erase_if(constants, [&](const ConstantDecl& c) { return !names.contains(c.name); });
  constant_index_.clear();
  for (size_t i = 0; i < constants.size(); ++i) constant_index_.emplace(constants[i].name, i);
}

}  // namespace tokamak
