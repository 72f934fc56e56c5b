#include "text/jinja/value.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "text/unicode.h"

namespace tokamak::jinja {
namespace {
constexpr int kMaxNesting = 300;  // nesting of values; deeper recursion would be unsafe
constexpr size_t kIndexFrom = 12;
bool set_like(Flavor f) { return f == Flavor::kKeys || f == Flavor::kItems; }
const char* flavor_name(Flavor flavor) {
  static constexpr const char* kNames[] = {"list",        "range",      "generator", "dict_keys",
                                           "dict_values", "dict_items", "tuple"};
  return kNames[static_cast<size_t>(flavor)];
}
const char* kind_name(Kind kind) {
  static constexpr const char* kNames[] = {"Undefined", "NoneType",  "bool",     "int",
                                           "float",     "str",       "list",     "tuple",
                                           "dict",      "Namespace", "function", "LoopContext"};
  return kNames[static_cast<size_t>(kind)];
}
}  // namespace

void raise(std::string message) { throw TemplateError{std::move(message)}; }

void raise_undefined(const Val& v) {
  if (!v.text()) raise("a value is undefined");
  const auto owner = static_cast<Kind>(v.as_int());
  if (owner == Kind::kUndefined) raise("'" + v.text()->bytes + "' is undefined");
  raise("'" + std::string(kind_name(owner)) + " object' has no attribute '" + v.text()->bytes +
        "'");
}

Text::Text(std::string text, size_t* b, bool m) : bytes(std::move(text)), budget(b), markup(m) {
  chars = utf8_length(bytes);
  if (budget) *budget += bytes.size() + sizeof(Text);
}
Text::~Text() {
  if (budget) *budget -= bytes.size() + sizeof(Text);
}

void Heap::check_room(size_t bytes) const {
  if (bytes > limit_ || used_ > limit_ - bytes)
    raise("the template uses more than " + std::to_string(limit_ >> 20) + " MiB");
}
void Heap::charge(size_t bytes) {
  check_room(bytes);
  used_ += bytes;
}
Val Heap::string(std::string text, bool markup) {
  check_room(text.size() + sizeof(Text));
  return Val::string(std::make_shared<const Text>(std::move(text), &used_, markup));
}
Val Heap::list(std::vector<Val> values, bool tuple) {
  charge(sizeof(List) + values.size() * sizeof(Val));
  return Val::list(&lists_.emplace_back(List{std::move(values)}), tuple);
}
Val Heap::flavored(std::vector<Val> values, Flavor flavor) {
  const Val v = list(std::move(values), flavor == Flavor::kGroup);
  v.items()->flavor = flavor;
  return v;
}

bool Val::is_plain_list() const { return is_list() && list_->flavor == Flavor::kPlain; }
bool Val::is_plain_sequence() const { return is_tuple() || is_plain_list(); }
bool Val::is_generator() const { return is_list() && list_->flavor == Flavor::kGenerator; }
Dict* Heap::dict() {
  charge(sizeof(Dict) + 64);
  return &dicts_.emplace_back();
}
Namespace* Heap::space() {
  charge(sizeof(Namespace) + 64);
  return &spaces_.emplace_back();
}
LoopState* Heap::loop() {
  charge(sizeof(LoopState) + 32);
  return &loops_.emplace_back();
}
Val Heap::callable(std::string name, std::function<Val(Interp&, Args&)> call) {
  charge(sizeof(Callable) + 64);
  return Val::callable(&callables_.emplace_back(Callable{std::move(name), std::move(call)}));
}

const Val* Dict::find(std::string_view key) const {
  if (!index.empty()) {
    const auto found = index.find(key);
    return found == index.end() ? nullptr : &members[found->second].second;
  }
  for (const auto& [k, v] : members)
    if (k.is_string() && k.str() == key) return &v;
  return nullptr;
}
size_t Dict::place(const Val& key) const {
  if (key.is_string() && !index.empty()) {
    const auto found = index.find(key.str());
    return found == index.end() ? members.size() : found->second;
  }
  if ((key.is_list() && !key.is_generator() && key.items()->flavor != Flavor::kRange) ||
      key.is_dict())
    raise(std::string("unhashable type: '") + type_name(key) + "'");
  size_t i = 0;
  while (i < members.size() && !equal(members[i].first, key)) ++i;
  spend_steps(i / 4);
  return i;
}
const Val* Dict::find(const Val& key) const {
  const size_t i = place(key);
  return i < members.size() ? &members[i].second : nullptr;
}
void Dict::set(const Val& key, Val value) {
  const size_t i = place(key);
  if (i < members.size()) {
    members[i].second = std::move(value);
    return;
  }
  members.emplace_back(key, std::move(value));
  if (!index.empty()) {
    if (key.is_string()) index.emplace(members.back().first.str(), members.size() - 1);
  } else if (members.size() == kIndexFrom) {
    reindex();
  }
}
bool Dict::erase(const Val& key) {
  const size_t i = place(key);
  if (i >= members.size()) return false;
  members.erase(members.begin() + static_cast<ptrdiff_t>(i));
  index.clear();
  if (members.size() >= kIndexFrom) reindex();
  return true;
}
void Dict::reindex() {
  spend_steps(members.size() * 4);
  index.clear();
  for (size_t i = 0; i < members.size(); ++i)
    if (members[i].first.is_string()) index.emplace(members[i].first.str(), i);
}

Val* Namespace::find(std::string_view name) {
  for (auto& [k, v] : members)
    if (k == name) return &v;
  return nullptr;
}
void Namespace::set(std::string_view name, Val value) {
  spend_steps(members.size() / 8);
  if (Val* v = find(name)) {
    *v = std::move(value);
  } else {
    members.emplace_back(std::string(name), std::move(value));
  }
}

const Val* Args::keyword(std::string_view name) const {
  for (const auto& [k, v] : named)
    if (k == name) return &v;
  return nullptr;
}
const Val* Args::get(size_t i, std::string_view name) const {
  return i < pos.size() ? &pos[i] : keyword(name);
}

bool truthy(const Val& v) {
  switch (v.kind()) {
    case Kind::kUndefined:
    case Kind::kNone:
      return false;
    case Kind::kBool:
    case Kind::kInt:
      return v.as_int() != 0;
    case Kind::kFloat:
      return v.as_double() != 0;
    case Kind::kString:
      return !v.str().empty();
    case Kind::kList:
    case Kind::kTuple:
      return v.is_generator() || !v.items()->values.empty();
    case Kind::kDict:
      return !v.dict()->members.empty();
    default:
      return true;
  }
}

bool equal(const Val& a, const Val& b, int depth) {
  if (depth > kMaxNesting) raise("values are nested too deeply");
  if (a.is_number() && b.is_number()) {
    if (a.is_float() || b.is_float()) return a.as_double() == b.as_double();
    return a.as_int() == b.as_int();
  }
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Kind::kUndefined:
    case Kind::kNone:
      return true;
    case Kind::kString:
      spend_steps(std::min(a.str().size(), b.str().size()) / 64);
      return a.str() == b.str();
    case Kind::kList:
    case Kind::kTuple: {
      const Flavor f = a.items()->flavor, g = b.items()->flavor;
      if (a.items() == b.items()) return true;
      if (a.is_list() && f != g && !(set_like(f) && set_like(g))) return false;
      if (f == Flavor::kGenerator || f == Flavor::kValues) return false;
      const auto &x = a.items()->values, &y = b.items()->values;
      if (x.size() != y.size()) return false;
      spend_steps(x.size() + 1);
      if (set_like(f)) {  // views compare as sets
        for (const Val& v : x)
          if (std::none_of(y.begin(), y.end(),
                           [&](const Val& w) { return equal(v, w, depth + 1); }))
            return false;
        return true;
      }
      for (size_t i = 0; i < x.size(); ++i)
        if (!equal(x[i], y[i], depth + 1)) return false;
      return true;
    }
    case Kind::kDict: {
      if (a.dict()->members.size() != b.dict()->members.size()) return false;
      spend_steps(a.dict()->members.size() + 1);
      for (const auto& [k, v] : a.dict()->members) {
        const Val* other = b.dict()->find(k);
        if (!other || !equal(v, *other, depth + 1)) return false;
      }
      return true;
    }
    case Kind::kNamespace:
      return a.space() == b.space();
    case Kind::kCallable:
      return a.callable() == b.callable();
    default:
      return a.loop() == b.loop();
  }
}

int compare(const Val& a, const Val& b, int depth) {
  if (depth > kMaxNesting) raise("values are nested too deeply");
  if (a.is_undefined()) raise_undefined(a);
  if (b.is_undefined()) raise_undefined(b);
  if (a.is_number() && b.is_number()) {
    if (a.is_float() || b.is_float()) {
      const double x = a.as_double(), y = b.as_double();
      return x < y ? -1 : x > y ? 1 : 0;
    }
    return a.as_int() < b.as_int() ? -1 : a.as_int() > b.as_int() ? 1 : 0;
  }
  if (a.is_string() && b.is_string()) {
    const int c = a.str().compare(b.str());
    return c < 0 ? -1 : c > 0 ? 1 : 0;
  }
  if (a.is_plain_sequence() && b.is_plain_sequence() && a.kind() == b.kind()) {
    const auto &x = a.items()->values, &y = b.items()->values;
    spend_steps(x.size() + 1);
    for (size_t i = 0; i < x.size() && i < y.size(); ++i)
      if (!equal(x[i], y[i])) return compare(x[i], y[i], depth + 1);
    return x.size() < y.size() ? -1 : x.size() > y.size() ? 1 : 0;
  }
  raise(std::string("'") + type_name(a) + "' and '" + type_name(b) + "' cannot be ordered");
}

const char* type_name(const Val& v) {
  return v.is_list() ? flavor_name(v.items()->flavor) : kind_name(v.kind());
}

Val from_value(Heap& heap, const Value& v, int depth) {
  if (depth > kMaxNesting) raise("the context is nested too deeply");
  if (v.is_null()) return Val::none();
  if (v.is_bool()) return Val::boolean(v.as_bool());
  if (v.is_int()) return Val::integer(v.as_int());
  if (v.is_double()) return Val::real(v.as_double());
  if (v.is_string())
    return heap.string(utf8_is_valid(v.as_string()) ? v.as_string() : utf8_lossy(v.as_string()));
  if (v.is_array()) {
    std::vector<Val> values;
    values.reserve(v.size());
    for (const Value& item : v.as_array()) values.push_back(from_value(heap, item, depth + 1));
    return heap.list(std::move(values));
  }
  Dict* dict = heap.dict();
  heap.charge(v.size() * 2 * sizeof(Val));
  for (const auto& [key, item] : v.as_object())
    dict->set(heap.string(utf8_is_valid(key) ? key : utf8_lossy(key)),
              from_value(heap, item, depth + 1));
  return Val::dict(dict);
}

}  // namespace tokamak::jinja
