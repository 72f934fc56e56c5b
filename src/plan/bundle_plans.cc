// One list of fields serves writing and reading: visit() names every member of every struct by a
// structured binding, so that a new member does not compile until it is here (and then raise
// kLayout).
#include "plan/bundle_plans.h"

#include <algorithm>
#include <concepts>
#include <cstring>
#include <optional>
#include <type_traits>
#include <unordered_map>

#include "base/error.h"

namespace tokamak {
namespace {

constexpr uint64_t kLayout = 4;
constexpr size_t kMaxDepth = 64;  // of attribute values

template <class T, class U>
concept Is = std::same_as<std::remove_const_t<T>, U>;

template <class A>
void visit(A& a, Is<SymbolDecl> auto& x) {
  auto& [name, lo, hi, multiple] = x;
  a(name, lo, hi, multiple);
}
template <class A>
void visit(A& a, Is<RecipeStep> auto& x) {
  auto& [kind, first, second, value, dtype, dims, tensor] = x;
  a(kind, first, second, value, dtype, dims, tensor);
}
template <class A>
void visit(A& a, Is<Recipe> auto& x) {
  auto& [sources, steps] = x;
  a(sources, steps);
}
template <class A>
void visit(A& a, Is<WeightEntry> auto& x) {
  auto& [name, dtype, dims, recipe, constant, layout] = x;
  a(name, dtype, dims, recipe, constant, layout);
}
template <class A>
void visit(A& a, Is<PlaneEntry> auto& x) {
  auto& [name, dtype, dims, bytes_per_token] = x;
  a(name, dtype, dims, bytes_per_token);
}
template <class A>
void visit(A& a, Is<GroupEntry> auto& x) {
  auto& [name, window, block_size] = x;
  a(name, window, block_size);
}
template <class A>
void visit(A& a, Is<StateEntry> auto& x) {
  auto& [name, group, per_sequence, planes] = x;
  a(name, group, per_sequence, planes);
}
template <class A>
void visit(A& a, Is<InputEntry> auto& x) {
  auto& [name, dtype, dims] = x;
  a(name, dtype, dims);
}
template <class A>
void visit(A& a, Is<KernelEntry> auto& x) {
  auto& [name, abi, numeric_class] = x;
  a(name, abi, numeric_class);
}
template <class A>
void visit(A& a, Is<CallArg> auto& x) {
  auto& [kind, index, offset, dtype, dims] = x;
  a(kind, index, offset, dtype, dims);
}
template <class A>
void visit(A& a, Is<KernelCall> auto& x) {
  auto& [kernel, op, attrs, region, code, scratch, in, out, label] = x;
  a(kernel, op, attrs, region, code, scratch, in, out, label);
}
template <class A>
void visit(A& a, Is<Dim> auto& x) {
  auto& [axis, extent, bound] = x;
  a(axis, extent, bound);
}
template <class A>
void visit(A& a, Is<TensorType> auto& x) {
  auto& [dtype, dims] = x;
  a(dtype, dims);
}
template <class A>
void visit(A& a, Is<Type> auto& x) {
  auto& [kind, tensor, name] = x;
  a(kind, tensor, name);
}
template <class A>
void visit(A& a, Is<RegionPiece> auto& x) {
  auto& [program, op, attrs, in, out] = x;
  a(program, op, attrs, in, out);
}
template <class A>
void visit(A& a, Is<Region> auto& x) {
  auto& [inputs, values, pieces, results] = x;
  a(inputs, values, pieces, results);
}
template <class A>
void visit(A& a, Is<CodeObject> auto& x) {
  auto& [target, entry, options, hash, bytes] = x;
  a(target, entry, options, hash, bytes);
}
template <class A>
void visit(A& a, Is<GuardRange> auto& x) {
  auto& [symbol, lo, hi, multiple, pad] = x;
  a(symbol, lo, hi, multiple, pad);
}
template <class A>
void visit(A& a, Is<PlanOutput> auto& x) {
  auto& [name, arg] = x;
  a(name, arg);
}
template <class A>
void visit(A& a, Is<PlanLaunch> auto& x) {
  auto& [kernel, first, calls, seconds] = x;
  a(kernel, first, calls, seconds);
}
template <class A>
void visit(A& a, Is<Plan> auto& x) {
  auto& [function, guard, bound, arena_bytes, lower_bound, method, calls, outputs, launches,
         seconds] = x;
  a(function, guard, bound, arena_bytes, lower_bound, method, calls, outputs, launches, seconds);
}
template <class A>
void visit(A& a, Is<PlanSet> auto& x) {
  auto& [version, model, backend, symbols, inputs, groups, states, weights, kernels, regions, code,
         plans, arena_bytes, scratch_bytes, numerics_id, vocab, hidden, layers, context] = x;
  a(version, model, backend, symbols, inputs, groups, states, weights, kernels, regions, code,
    plans, arena_bytes, scratch_bytes, numerics_id, vocab, hidden, layers, context);
}

template <class E>
constexpr uint64_t enum_count() {
  if constexpr (std::same_as<E, CallArg::Kind>) return uint64_t(CallArg::Kind::kView) + 1;
  if constexpr (std::same_as<E, Type::Kind>) return uint64_t(Type::Kind::kView) + 1;
  if constexpr (std::same_as<E, RecipeStep::Kind>) return uint64_t(RecipeStep::kLastKind) + 1;
}

enum class Tag : uint8_t { kNull, kFalse, kTrue, kInt, kDouble, kString, kArray, kObject };

// Numbers take 7 bits per byte, the last byte without its top bit; signed ones are folded, so that
// small ones of either sign are short. Texts are stored once and named by their number.
class PlanWriter {
 public:
  template <class... T>
  void operator()(const T&... fields) {
    (put(fields), ...);
  }
  std::string finish() {
    std::string head;
    std::swap(head, body_);
    number(kLayout);
    number(order_.size());
    for (const std::string* text : order_) {
      number(text->size());
      body_ += *text;
    }
    return std::move(body_) + head;
  }

 private:
  void number(uint64_t v) {
    for (; v >= 0x80; v >>= 7) body_ += static_cast<char>(v | 0x80);
    body_ += static_cast<char>(v);
  }
  void put(const std::string& s) {
    auto [it, added] = ids_.try_emplace(s, ids_.size());
    if (added) order_.push_back(&it->first);
    number(it->second);
  }
  void put(bool v) { number(v); }
  template <std::integral I>
  void put(I v) {
    if constexpr (std::is_signed_v<I>) {
      auto wide = static_cast<uint64_t>(int64_t{v});
      number(wide << 1 ^ (v < 0 ? ~uint64_t{0} : 0));
    } else {
      number(v);
    }
  }
  template <class E>
  requires std::is_enum_v<E>
  void put(E v) { number(static_cast<uint64_t>(v)); }
  void put(DType v) { put(std::string(dtype_name(v))); }  // the enumeration may grow in the middle
  void put(double v) {
    char bytes[8];
    std::memcpy(bytes, &v, 8);
    body_.append(bytes, 8);
  }
  void put(const SymExpr& e) { put(e.text()); }
  // As its text; an empty one stands for an anchor.
  void put(const std::shared_ptr<const loop::Program>& program) {
    put(program ? loop::print_program(*program) : std::string());
  }
  template <class T>
  void put(const std::vector<T>& list) {
    number(list.size());
    for (const T& item : list) put(item);
  }
  template <class P, class Q>
  void put(const std::pair<P, Q>& pair) {
    put(pair.first);
    put(pair.second);
  }
  void put(const Value& v) {
    auto tag = [&](Tag t) { number(static_cast<uint64_t>(t)); };
    if (v.is_null()) return tag(Tag::kNull);
    if (v.is_bool()) return tag(v.as_bool() ? Tag::kTrue : Tag::kFalse);
    if (v.is_int()) return tag(Tag::kInt), put(v.as_int());
    if (v.is_double()) return tag(Tag::kDouble), put(v.as_double());
    if (v.is_string()) return tag(Tag::kString), put(v.as_string());
    tag(v.is_array() ? Tag::kArray : Tag::kObject);
    v.is_array() ? put(v.as_array()) : put(v.as_object());
  }
  template <class T>
  requires std::is_class_v<T>
  void put(const T& record) { visit(*this, record); }

  std::string body_;
  std::unordered_map<std::string, uint64_t> ids_;
  std::vector<const std::string*> order_;  // keys of ids_, which stay where they are
};

class PlanReader {
 public:
  explicit PlanReader(std::span<const std::byte> bytes)
      : at_(reinterpret_cast<const char*>(bytes.data())), end_(at_ + bytes.size()) {
    if (uint64_t layout = number(); layout != kLayout)
      fail(ErrorCode::kUnsupported, "its plans have layout {}, this program reads layout {}",
           layout, kLayout);
    uint64_t count = number();
    if (count > left()) bad("more texts than bytes");
    for (uint64_t i = 0; i < count; ++i) texts_.push_back(take(number()));
    exprs_.resize(texts_.size());
  }
  template <class... T>
  void operator()(T&... fields) {
    (get(fields), ...);
  }
  void finish() const {
    if (at_ != end_) bad("bytes after the end");
  }

 private:
  [[noreturn]] static void bad(std::string_view what) {
    fail(ErrorCode::kCorrupt, "plans: {}", what);
  }
  uint64_t left() const { return static_cast<uint64_t>(end_ - at_); }
  std::string_view take(uint64_t count) {
    if (count > left()) bad("they end too early");
    std::string_view out(at_, count);
    at_ += count;
    return out;
  }
  uint64_t number() {
    uint64_t v = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      auto byte = static_cast<unsigned char>(take(1)[0]);
      if (shift == 63 && byte > 1) break;
      v |= static_cast<uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return v;
    }
    bad("a number of more than 64 bits");
  }
  uint64_t below(uint64_t limit, std::string_view what) {
    uint64_t v = number();
    if (v >= limit) bad(what);
    return v;
  }
  void get(std::string& s) {
    s = texts_[below(texts_.size(), "the index of a text is out of range")];
  }
  void get(bool& v) { v = below(2, "neither true nor false") != 0; }
  template <std::integral I>
  void get(I& v) {
    uint64_t raw = number();
    if constexpr (std::is_signed_v<I>) {
      auto wide = static_cast<int64_t>(raw >> 1 ^ (~(raw & 1) + 1));
      v = static_cast<I>(wide);
      if (v != wide) bad("a number out of range");
    } else {
      v = static_cast<I>(raw);
      if (v != raw) bad("a number out of range");
    }
  }
  template <class E>
  requires std::is_enum_v<E>
  void get(E& v) { v = static_cast<E>(below(enum_count<E>(), "an unknown kind")); }
  void get(DType& v) {
    auto dtype =
        dtype_from_name(texts_[below(texts_.size(), "the index of a text is out of range")]);
    if (!dtype) bad("an unknown element type");
    v = *dtype;
  }
  void get(double& v) { std::memcpy(&v, take(8).data(), 8); }
  void get(SymExpr& e) {
    uint64_t id = below(texts_.size(), "the index of a text is out of range");
    if (!exprs_[id]) exprs_[id] = SymExpr::parse(texts_[id]);
    e = *exprs_[id];
  }
  void get(std::shared_ptr<const loop::Program>& program) {
    uint64_t id = below(texts_.size(), "the index of a text is out of range");
    if (texts_[id].empty()) return;
    std::shared_ptr<const loop::Program>& parsed = programs_[id];
    if (!parsed) parsed = std::make_shared<loop::Program>(loop::parse_program(texts_[id]));
    program = parsed;
  }
  template <class T>
  void get(std::vector<T>& list) {
    uint64_t count = number();
    if (count > left()) bad("a list longer than the rest");  // an item has at least a byte
    list.clear();
    list.reserve(std::min<uint64_t>(count, 256));
    for (uint64_t i = 0; i < count; ++i) get(list.emplace_back());
  }
  template <class P, class Q>
  void get(std::pair<P, Q>& pair) {
    get(pair.first);
    get(pair.second);
  }
  void get(Value& v) {
    if (++depth_ > kMaxDepth) bad("values are nested too deeply");
    switch (static_cast<Tag>(below(static_cast<uint64_t>(Tag::kObject) + 1, "an unknown value"))) {
      case Tag::kNull:
        v = {};
        break;
      case Tag::kFalse:
        v = false;
        break;
      case Tag::kTrue:
        v = true;
        break;
      case Tag::kInt:
        v = read<int64_t>();
        break;
      case Tag::kDouble:
        v = read<double>();
        break;
      case Tag::kString:
        v = read<std::string>();
        break;
      case Tag::kArray:
        v = read<Value::Array>();
        break;
      case Tag::kObject:
        v = read<Value::Object>();
        break;
    }
    --depth_;
  }
  template <class T>
  T read() {
    T v{};
    get(v);
    return v;
  }
  template <class T>
  requires std::is_class_v<T>
  void get(T& record) { visit(*this, record); }

  const char *at_, *end_;
  std::vector<std::string_view> texts_;
  std::vector<std::optional<SymExpr>> exprs_;  // by text, parsed when first used
  std::unordered_map<uint64_t, std::shared_ptr<const loop::Program>> programs_;  // likewise
  size_t depth_ = 0;
};

}  // namespace

std::string serialize_plans(const PlanSet& set) {
  PlanWriter writer;
  visit(writer, set);
  return writer.finish();
}

PlanSet parse_plans(std::span<const std::byte> bytes) {
  PlanReader reader(bytes);
  PlanSet set;
  try {
    visit(reader, set);
    reader.finish();
  } catch (const Error& e) {
    if (e.code() == ErrorCode::kCorrupt) throw;
    fail(ErrorCode::kCorrupt, "plans: {}", e.what());  // a text that does not parse
  }
  return set;
}

}  // namespace tokamak
