#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>

#include "base/error.h"
#include "graph/evaluate.h"
#include "graph/input_numbers.h"
#include "graph/random_lists.h"
#include "ops/sampling.h"
#include "tensor/block_formats.h"

namespace tokamak {
namespace {

constexpr int64_t kMostOlder = 1 << 18;  // elements of a plane, for long sequences
constexpr int64_t kMostPosition = 1 << 30;

class InputMaker {
 public:
  InputMaker(const Function& fn, SymbolValues symbols, Rng& rng, Values kind,
             const InputHints& hints)
      : fn_(fn), rng_(rng), kind_(kind), hints_(hints) {
    out_.symbols = std::move(symbols);
    if (kind == Values::kClose) {
      static constexpr double kApart[] = {1e-4, 0x1p-21, 0x1p-22, 0x1p-23};
      around_ = rng.normal() * 10;
      apart_ = kApart[rng.below(std::size(kApart))];
    }
    if (kind >= Values::kMixed) find_special();
  }

  EvalInputs<double> make() {
    make_step();
    for (NodeId id : fn_.inputs()) {
      const Node& node = fn_.node(id);
      const std::string& name = node.attrs.at("name").as_string();
      const Type& type = node.outputs[0];
      if (type.kind == Type::Kind::kState) make_state(type.name);
      if (type.kind != Type::Kind::kTensor || out_.tensors.contains(name)) continue;
      std::vector<int64_t> dims = extents(type.tensor);
      if (type.tensor.dtype == DType::kI32)
        out_.tensors[name] = integers(dims, {id, 0});
      else
        out_.tensors[name] = floats(dims, type.tensor.dtype);
      if (is_settings({id, 0}) && rng_.below(2))
        for (double& v : out_.tensors[name].f) v = kSettings[rng_.below(std::size(kSettings))];
    }
    const auto& weights = fn_.module().weights;
    for (size_t i = 0; i < std::min(weights.size(), hints_.weights); ++i) make_sources(weights[i]);
    for (auto& [name, dims] : source_dims_) {
      EvalTensor<double>& t = out_.sources[name] = floats(dims, source_types_[name]);
      encode_blocks(source_types_[name], t);
    }
    for (const Node& node : fn_.nodes()) {
      if (node.op->name == "ssm_scan") make_negative(node.inputs.at(6));
      if (node.op->name == "gated_delta") make_negative(node.inputs.at(7));
    }
    make_lists(fn_, hints_.nodes, rng_, out_);
    return std::move(out_);
  }

 private:
  std::vector<int64_t> extents(const TensorType& type) const {
    std::vector<int64_t> dims;
    for (const Dim& d : type.dims) dims.push_back(d.extent.eval(out_.symbols));
    return dims;
  }

  // Settings of sampling stages that switch them on and off, also together.
  static constexpr double kSettings[] = {0, 0.25, 0.5, 0.75, 1, 2, 3};
  bool is_settings(Ref input) const {
    return std::any_of(fn_.nodes().begin(), fn_.nodes().end(), [&](const Node& node) {
      const TensorType& t = fn_.tensor(input);
      for (size_t i = 0; i + 1 < node.inputs.size(); ++i)  // the next operand are the keys
        if (node.inputs[i] == input && t.rank() == 2 && t.extent(1) == SymExpr(kSampleParams) &&
            fn_.tensor(node.inputs[i + 1]).dtype == DType::kI32)
          return true;
      return false;
    });
  }

  EvalTensor<double> floats(const std::vector<int64_t>& dims, DType dtype) {
    EvalTensor<double> t;
    t.dims = dims;
    t.f.resize(static_cast<size_t>(element_count(dims)));
    static constexpr double kInf = std::numeric_limits<double>::infinity();
    static constexpr std::array kFinite = {0.0, 1.0, -1.0, 2.0, -0.5, 3.0, 1e4, -1e-4};
    static constexpr std::array kNasty = {
        0.0, -0.0, 1.0, -2.0, kInf, -kInf, 0.5, 1e-40, std::numeric_limits<double>::quiet_NaN()};
    if (kind_ == Values::kEach && hints_.special == SpecialNumbers::kInverted)
      for (double& v : t.f) v = special_[rng_.below(special_.size())];
    else if (kind_ == Values::kEach && hints_.special != SpecialNumbers::kSome)
      enumerate<double>(t.f, special_);
    else if (kind_ == Values::kEach)
      enumerate<double>(t.f, kFinite);
    else if (kind_ == Values::kEachNasty)
      enumerate<double>(t.f, kNasty);
    else
      for (double& v : t.f)
        v = kind_ == Values::kClose                 ? around_ * (1 + rng_.normal() * apart_)
            : special_.empty() || rng_.below(4) > 0 ? random_value(rng_, kind_)
                                                    : special_[rng_.below(special_.size())];
    bool nasty = kind_ == Values::kNasty || kind_ == Values::kEachNasty;
    const double most = nasty                   ? kInf
                        : dtype == DType::kF16  ? 65504
                        : dtype == DType::kBF16 ? 3.38e38
                                                : std::numeric_limits<float>::max();
    for (double& v : t.f) v = round_to(dtype, std::clamp(v, -most, most));
    return t;
  }

  // Numbers where a comparison with a constant may change.
  void find_special() {
    std::set<double> found;
    for (const ConstantDecl& c : fn_.module().constants)
      for (size_t i = 0; i < std::min<size_t>(c.values.size(), 4); ++i) found.insert(c.values[i]);
    for (size_t i = 0; i < std::min<size_t>(hints_.numbers.size(), 8); ++i)
      found.insert(hints_.numbers[i]);
    auto add = [&](double v) {
      if (std::isfinite(v) || kind_ == Values::kNasty) special_.push_back(v);
      double whole = std::floor(v);
      for (int by = -1; by <= 1; ++by)
        if (std::abs(whole + by) < 0x1p31)
          special_integers_.push_back(static_cast<int32_t>(whole + by));
    };
    if (hints_.special == SpecialNumbers::kStated) {
      for (double v : found)
        if (std::isfinite(v)) special_.push_back(v);
      for (double v : special_)
        if (std::abs(v) < 0x1p31) special_integers_.push_back(static_cast<int32_t>(v));
      special_.push_back(0);
      special_integers_.push_back(0);
    } else {
      bool inverted = hints_.special == SpecialNumbers::kInverted;
      for (double v : inverted ? inverted_numbers(found) : combined_numbers(found)) add(v);
      if (hints_.special == SpecialNumbers::kSome) return;
      for (double v : {0.0, 1.0, -1.0}) add(v);
    }
    sort_unique(special_);
    sort_unique(special_integers_);
  }

  static void sort_unique(auto& values) {
    std::sort(values.begin(), values.end());
    values.erase(std::unique(values.begin(), values.end()), values.end());
  }

  // The first input advances with every element, the next one when the first starts again; those
  // for which there are too few elements are random.
  template <class T>
  void enumerate(std::vector<T>& values, std::span<const T> list) {
    for (size_t j = 0; j < values.size(); ++j)
      values[j] =
          list[(stride_ < values.size() ? j / stride_ : rng_.below(list.size())) % list.size()];
    stride_ = std::min<size_t>(stride_ * list.size(), 1 << 20);
  }

  // Values that the weight's block format can hold.
  static void encode_blocks(DType dtype, EvalTensor<double>& t) {
    auto n = static_cast<int64_t>(t.f.size());
    if (!is_block_type(dtype) || !can_encode(dtype) || n % dtype_info(dtype).block_elements != 0)
      return;
    std::vector<float> values(t.f.begin(), t.f.end());
    std::vector<std::byte> bytes(dtype_bytes(dtype, n));
    encode_row(dtype, values.data(), bytes.data(), n);
    decode_row(dtype, bytes.data(), values.data(), n);
    t.f.assign(values.begin(), values.end());
  }

  // Indices are within the extent they index; other integers are as large as the floating values.
  EvalTensor<double> integers(const std::vector<int64_t>& dims, Ref input) {
    int64_t lo = -3, hi = INT32_MAX;
    for (size_t n = 0; n < std::min(fn_.nodes().size(), hints_.nodes); ++n) {
      const Node& node = fn_.nodes()[n];
      for (size_t i = 0; i < node.inputs.size(); ++i)
        if (node.inputs[i] == input)
          if (auto bound = index_bound(node, i)) {
            hi = std::min(hi, *bound);
            // The token ids of a whole model are not negative.
            bool tokens = hints_.nodes == SIZE_MAX && node.op->name == "embed";
            lo = std::max<int64_t>(lo, tokens ? 0 : -1);
          }
    }
    bool index = hi != INT32_MAX, natural = is_natural(fn_, input);
    if (natural) lo = std::max<int64_t>(lo, 0);
    EvalTensor<double> t;
    t.dims = dims;
    t.integer = true;
    t.i.resize(static_cast<size_t>(element_count(dims)));
    auto between = [&](int64_t from, int64_t to) {
      return static_cast<int32_t>(
          from + static_cast<int64_t>(rng_.below(static_cast<uint64_t>(to - from))));
    };
    bool bytes = integers_++ == hints_.bytes;
    if (kind_ == Values::kEach || kind_ == Values::kEachNasty) {
      std::vector<int32_t> list = {INT32_MIN, INT32_MIN + 1, -3,       -2, -1, 0, 1, 2, 3,
                                   7,         INT32_MAX - 1, INT32_MAX};
      if (index) {
        list.clear();
        for (int64_t v = lo; v < std::min<int64_t>(hi, 64); ++v)
          list.push_back(static_cast<int32_t>(v));
      }
      if (hints_.special != SpecialNumbers::kSome && !index) list = special_integers_;
      if (bytes && !index) {
        for (int32_t v = -128; v < 128; ++v) list.push_back(v);
        list.insert(list.end(), special_integers_.begin(), special_integers_.end());
      }
      if (natural) std::erase_if(list, [](int32_t v) { return v < 0; });
      if (bytes)
        for (size_t j = 0; j < t.i.size(); ++j) t.i[j] = list[j % list.size()];
      else
        enumerate<int32_t>(t.i, list);
      return t;
    }
    static constexpr int32_t kSpecial[] = {INT32_MIN, INT32_MAX, 16777217, -33554433, 65519};
    bool special = kind_ == Values::kNasty || kind_ == Values::kLarge;
    for (int32_t& v : t.i)
      if (index)
        v = between(lo, hi);
      else if (!special_integers_.empty() && rng_.below(4) == 0)
        v = special_integers_[rng_.below(special_integers_.size())];
      else if (special && rng_.below(2))
        v = rng_.below(3) ? kSpecial[rng_.below(5)]
                          : static_cast<int32_t>(rng_.next_u32()) >> rng_.below(8);
      else
        v = kind_ == Values::kMixed ? between(-1000, 1000) : between(-3, 4);
    if (natural)
      for (int32_t& v : t.i) v = std::max(v, v == INT32_MIN ? 0 : -v);
    return t;
  }

  std::optional<int64_t> index_bound(const Node& node, size_t input) const {
    auto extent = [&](size_t of, int axis) {
      return fn_.tensor(node.inputs[of]).extent(axis).eval(out_.symbols);
    };
    std::string_view op = node.op->name;
    if (op == "gather" && input == 1) {
      int64_t axis = node.attrs.get_int("axis", 0), rank = fn_.tensor(node.inputs[0]).rank();
      return extent(0, static_cast<int>(axis < 0 ? axis + rank : axis));
    }
    if (op == "embed" && input == 0) return extent(1, 0);
    if (op == "lora" && input == 3) return extent(1, 0);
    if (op == "moe_dispatch" && input == 1) return node.attrs.get_int("count", 1);
    return std::nullopt;
  }

  int64_t rows_of(const char* name) const {
    Ref r = fn_.find_input(name);
    return r.valid() ? fn_.tensor(r).extent(0).eval(out_.symbols) : -1;
  }
  // The rows of the first operand of the op that reads q_start, for encoders, which have no slots.
  int64_t rows_between_starts() const {
    Ref starts = fn_.find_input("q_start");
    for (const Node& node : fn_.nodes())
      if (starts.valid() &&
          std::find(node.inputs.begin(), node.inputs.end(), starts) != node.inputs.end() &&
          fn_.tensor(node.inputs[0]).rank() > 0)
        return fn_.tensor(node.inputs[0]).extent(0).eval(out_.symbols);
    return -1;
  }
  void set(const char* name, std::vector<int32_t> values) {
    Ref r = fn_.find_input(name);
    if (!r.valid()) return;
    std::vector<int64_t> dims = extents(fn_.tensor(r));
    if (element_count(dims) != static_cast<int64_t>(values.size())) return;
    EvalTensor<double> t;
    t.dims = std::move(dims);
    t.i = std::move(values);
    t.integer = true;
    out_.tensors[name] = std::move(t);
  }
  int64_t fact(std::string_view name) const {
    for (const Fact& f : fn_.facts())
      if (f.input == name && f.kind == Fact::Kind::kIotaTimes) return f.value;
    return 0;
  }

  // The frame of step(): T tokens of B sequences, each with older tokens in its state.
  void make_step() {
    int64_t t = rows_of("seq"), b = rows_of("kv_len");
    if (t < 0) t = rows_of("slot");
    if (t < 0) t = rows_between_starts();
    if (b < 0) b = rows_of("q_start") - 1;
    b = std::max<int64_t>(b, 1);
    std::vector<int64_t> own(static_cast<size_t>(b), 0);
    if (int64_t each = fact("q_start"); each > 0)
      own.assign(own.size(), each);
    else
      share_rows(t, own);
    std::vector<int32_t> seq, slot, q_start = {0}, kv_len;
    std::vector<int64_t> lengths = window_lengths();
    for (size_t s = 0; s < own.size(); ++s) {
      auto older = static_cast<int32_t>(rng_.below(rng_.below(6) == 0 ? 70 : 7));
      if (!lengths.empty() && rng_.below(2))
        older = static_cast<int32_t>(lengths[rng_.below(lengths.size())]);
      for (int32_t m = 0; m < own[s]; ++m) {
        seq.push_back(static_cast<int32_t>(s));
        slot.push_back(older + m);
      }
      q_start.push_back(static_cast<int32_t>(seq.size()));
      kv_len.push_back(older + static_cast<int32_t>(own[s]));
      longest_ = std::max<int64_t>(longest_, kv_len.back());
    }
    sequences_ = b;
    set("seq", seq);
    set("slot", slot);
    set("pos", positions(slot, q_start));
    set("q_start", q_start);
    set("kv_len", kv_len);
    if (int64_t r = rows_of("out_rows"); r >= 0) {
      std::vector<int32_t> rows(static_cast<size_t>(r));
      for (size_t i = 0; i < rows.size(); ++i)
        rows[i] = static_cast<int32_t>(
            fact("out_rows") > 0 ? i : rng_.below(static_cast<uint64_t>(std::max<int64_t>(t, 1))));
      set("out_rows", rows);
    }
    for (const GroupDecl& g : fn_.module().groups) make_view(g);
  }

  // Every sequence has a row, where there are enough; one of them may have most of the others.
  void share_rows(int64_t rows, std::vector<int64_t>& own) {
    bool even = !hints_.windows || rng_.below(2);
    size_t longest = rng_.below(own.size());
    for (int64_t i = 0; i < rows; ++i) {
      bool first = i < std::ssize(own);
      ++own[first ? static_cast<size_t>(i) : even ? rng_.below(own.size()) : longest];
    }
  }

  // Those of a chain are its slots; in a tree of drafts several rows have the same one.
  std::vector<int32_t> positions(std::vector<int32_t> slot, const std::vector<int32_t>& q_start) {
    if (!hints_.windows || rng_.below(2)) return slot;
    for (size_t s = 0; s + 1 < q_start.size(); ++s)
      for (auto i = static_cast<size_t>(q_start[s]); i < static_cast<size_t>(q_start[s + 1]); ++i)
        slot[i] -= static_cast<int32_t>(rng_.below(i - static_cast<size_t>(q_start[s]) + 1));
    int64_t window = 0;  // positions beyond it, however few slots there are
    for (const Node& node : fn_.nodes())
      window = std::max(window, node.op->reads_state ? node.attrs.get_int("window", 0) : 0);
    if (window < kMostPosition && rng_.below(2))
      for (int32_t& p : slot) p += static_cast<int32_t>(window);
    return slot;
  }

  // Lengths at which windows and chunks of attention begin to hide keys, as far as the states stay
  // small.
  std::vector<int64_t> window_lengths() const {
    std::vector<int64_t> out;
    int64_t width = 1;
    for (const StateDecl& s : fn_.module().states)
      for (const PlaneDecl& p : s.planes) width = std::max(width, element_count(extents(p.type)));
    for (const Node& node : fn_.nodes())
      for (const char* key : {"window", "chunk"})
        if (int64_t w = node.op->reads_state ? node.attrs.get_int(key, 0) : 0;
            hints_.windows && w > 0)
          for (int64_t length : {w - 2, w - 1, w, w + 1, 2 * w})
            if (length >= 0 && length * width < kMostOlder) out.push_back(length);
    return out;
  }

  void make_view(const GroupDecl& g) {
    EvalView view;
    view.block_size = g.block_size;
    view.stride = std::max<int64_t>((longest_ + g.block_size - 1) / g.block_size, 1);
    view.table.resize(static_cast<size_t>(view.stride * sequences_));
    std::iota(view.table.begin(), view.table.end(), 0);
    for (size_t i = view.table.size(); i > 1; --i)
      std::swap(view.table[i - 1], view.table[rng_.below(i)]);
    out_.views[g.name] = std::move(view);
  }

  void make_state(const std::string& name) {
    const StateDecl* decl = fn_.module().find_state(name);
    TK_CHECK(decl);
    const EvalView& view = out_.views.at(decl->group);
    EvalState<double> state;
    state.slots = static_cast<int64_t>(view.table.size());
    if (decl->growth == StateDecl::Growth::kPerToken) state.slots *= view.block_size;
    for (const PlaneDecl& p : decl->planes) {
      std::vector<int64_t> dims = extents(p.type), all = dims;
      all.insert(all.begin(), state.slots);
      state.planes.push_back({p.name, dims, floats(all, p.type.dtype).f});
    }
    out_.states[name] = std::move(state);
  }

  // The shape of a source follows from the recipes that read it, applied backwards.
  void make_sources(const WeightDecl& w) {
    using Kind = RecipeStep::Kind;
    std::vector<int64_t> dims = extents(w.type);
    DType dtype = w.type.dtype;
    for (auto step = w.recipe.steps.rbegin(); step != w.recipe.steps.rend(); ++step) {
      if (step->kind == Kind::kSliceRows && !dims.empty())
        dims[0] = step->dims.empty()
                      ? step->b
                      : dims[0] / std::max<int64_t>(1, step->b - step->a) * step->dims[0];
      if (step->kind == Kind::kTranspose && dims.size() >= 2)
        std::swap(dims[dims.size() - 2], dims.back());
      if (step->kind == Kind::kReshape) dims = {element_count(dims)};
      if (step->kind == Kind::kScaleColumns && !dims.empty())
        if (source_dims_.emplace(step->tensor, std::vector<int64_t>{dims.back()}).second)
          source_types_[step->tensor] = DType::kF32;
      if (step->kind == Kind::kAddScalar || step->kind == Kind::kScale ||
          step->kind == Kind::kCast || step->kind == Kind::kScaleColumns ||
          step->kind == Kind::kUnitRows || step->kind == Kind::kTernary)
        dtype = DType::kF32;
    }
    std::vector<std::string> sources = w.recipe.sources;
    if (sources.empty()) sources = {w.name};
    for (size_t i = 0; i < sources.size(); ++i) {
      std::vector<int64_t> part = dims;
      if (auto n = static_cast<int64_t>(sources.size()); n > 1 && !dims.empty())
        part[0] = dims[0] / n + (i + 1 == sources.size() ? dims[0] % n : 0);
      auto [it, fresh] = source_dims_.emplace(sources[i], part);
      if (fresh)
        source_types_[sources[i]] = dtype;
      else if (it->second.size() == part.size())
        for (size_t d = 0; d < part.size(); ++d) it->second[d] = std::max(it->second[d], part[d]);
    }
  }

  // Decays of recurrent states are negative: with others a state overflows after a few rows.
  void make_negative(Ref r) {
    const Node& node = fn_.node(r.node);
    if (node.op->name == "mul" || node.op->name == "reshape")
      for (Ref input : node.inputs) make_negative(input);
    if (node.op->role != OpDef::Role::kWeight) return;
    const WeightDecl* w = fn_.module().find_weight(node.attrs.at("name").as_string());
    for (const std::string& name : w->recipe.sources)
      for (double& v : out_.sources[name].f) v = -std::abs(v);
  }

  const Function& fn_;
  Rng& rng_;
  Values kind_;
  const InputHints& hints_;
  EvalInputs<double> out_;
  std::vector<double> special_;
  std::vector<int32_t> special_integers_;
  std::map<std::string, std::vector<int64_t>> source_dims_;
  std::map<std::string, DType> source_types_;
  int64_t longest_ = 1, sequences_ = 1;
  size_t stride_ = 1;              // of the next input that is enumerated
  double around_ = 1, apart_ = 0;  // Values::kClose
  int integers_ = 0;               // inputs of integers so far
};

}  // namespace

EvalInputs<double> random_inputs(const Function& function, SymbolValues symbols, Rng& rng,
                                 Values kind, const InputHints& hints) {
  return InputMaker(function, std::move(symbols), rng, kind, hints).make();
}

SymbolValues random_symbols(const Function& function, Rng& rng) {
  SymbolValues values;
  for (const SymbolDecl& s : function.module().symbols) {
    int64_t lowest = (s.lo + s.multiple - 1) / s.multiple,
            span = rng.below(4) == 0 ? std::max<int64_t>(kLargeSymbol / s.multiple, 5) : 5,
            highest = std::min(s.hi / s.multiple, lowest + span);
    values[s.name] = (lowest + static_cast<int64_t>(rng.below(static_cast<uint64_t>(
                                   std::max<int64_t>(highest - lowest + 1, 1))))) *
                     s.multiple;
  }
  // A step has a row for every sequence.
  if (auto t = values.find("T"), b = values.find("B");
      t != values.end() && b != values.end() && t->second < b->second)
    std::swap(t->second, b->second);
  return values;
}

}  // namespace tokamak
