#pragma once
// The values of a template during rendering. Strings are shared and count against the render's
// budget while they live; containers belong to the render's heap and are freed with it (so cycles
// do not leak).
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "base/value.h"

namespace tokamak::jinja {

class Val;
class Interp;
struct MacroNode;
struct Scope;

// A template error; the interpreter adds the line.
struct TemplateError {
  std::string message;
};
[[noreturn]] void raise(std::string message);

struct Text {
  std::string bytes;
  size_t chars = 0;  // code points; == bytes.size() for ASCII
  size_t* budget = nullptr;
  bool markup = false;  // marked `safe`: plain text added to it is escaped, as in jinja2
  Text(std::string text, size_t* budget, bool markup = false);
  ~Text();
  Text(const Text&) = delete;
  Text& operator=(const Text&) = delete;
  bool ascii() const { return chars == bytes.size(); }
};
using TextPtr = std::shared_ptr<const Text>;

struct List;
struct Dict;
struct Namespace;
struct Callable;
struct LoopState;

enum class Kind : uint8_t {
  kUndefined,
  kNone,
  kBool,
  kInt,
  kFloat,
  kString,
  kList,
  kTuple,
  kDict,
  kNamespace,
  kCallable,
  kLoop,
};

class Val {
 public:
  Val() = default;  // undefined
  static Val none() { return Val(Kind::kNone); }
  // name: of the variable, or of the attribute missing in `owner`; for messages.
  static Val undefined(TextPtr name, Kind owner = Kind::kUndefined) {
    Val v;
    v.i_ = static_cast<int64_t>(owner);
    v.text_ = std::move(name);
    return v;
  }
  static Val boolean(bool b) {
    Val v(Kind::kBool);
    v.i_ = b;
    return v;
  }
  static Val integer(int64_t i) {
    Val v(Kind::kInt);
    v.i_ = i;
    return v;
  }
  static Val real(double d) {
    Val v(Kind::kFloat);
    v.d_ = d;
    return v;
  }
  static Val string(TextPtr text) {
    Val v(Kind::kString);
    v.text_ = std::move(text);
    return v;
  }
  static Val list(List* l, bool tuple = false) {
    Val v(tuple ? Kind::kTuple : Kind::kList);
    v.list_ = l;
    return v;
  }
  static Val dict(Dict* d) {
    Val v(Kind::kDict);
    v.dict_ = d;
    return v;
  }
  static Val space(Namespace* n) {
    Val v(Kind::kNamespace);
    v.space_ = n;
    return v;
  }
  static Val callable(Callable* c) {
    Val v(Kind::kCallable);
    v.callable_ = c;
    return v;
  }
  static Val loop(LoopState* l) {
    Val v(Kind::kLoop);
    v.loop_ = l;
    return v;
  }

  Kind kind() const { return kind_; }
  bool is_undefined() const { return kind_ == Kind::kUndefined; }
  bool is_none() const { return kind_ == Kind::kNone; }
  bool is_bool() const { return kind_ == Kind::kBool; }
  bool is_int() const { return kind_ == Kind::kInt; }
  bool is_float() const { return kind_ == Kind::kFloat; }
  bool is_number() const { return is_bool() || is_int() || is_float(); }
  bool is_integral() const { return is_bool() || is_int(); }
  bool is_string() const { return kind_ == Kind::kString; }
  bool is_list() const { return kind_ == Kind::kList; }
  bool is_tuple() const { return kind_ == Kind::kTuple; }
  bool is_sequence() const { return is_list() || is_tuple(); }
  bool is_plain_list() const;      // a real list, not a range, view or generator
  bool is_plain_sequence() const;  // a real list or tuple
  bool is_generator() const;
  bool is_dict() const { return kind_ == Kind::kDict; }

  int64_t as_int() const { return i_; }  // of int and bool
  double as_double() const { return is_float() ? d_ : static_cast<double>(i_); }
  const std::string& str() const { return text_->bytes; }
  const TextPtr& text() const { return text_; }  // of strings; the name of undefined, or null
  List* items() const { return list_; }
  Dict* dict() const { return dict_; }
  Namespace* space() const { return space_; }
  Callable* callable() const { return callable_; }
  LoopState* loop() const { return loop_; }

 private:
  explicit Val(Kind k) : kind_(k) {}
  Kind kind_ = Kind::kUndefined;
  union {
    int64_t i_ = 0;
    double d_;
    List* list_;
    Dict* dict_;
    Namespace* space_;
    Callable* callable_;
    LoopState* loop_;
  };
  TextPtr text_;
};

// The kinds of Python sequences. A generator yields its values once, counts as true and cannot be
// printed as data; views and ranges are not lists either.
enum class Flavor : uint8_t { kPlain, kRange, kGenerator, kKeys, kValues, kItems, kGroup };

struct List {
  std::vector<Val> values;
  Flavor flavor = Flavor::kPlain;
  bool consumed = false;                  // generators
  int64_t start = 0, stop = 0, step = 1;  // ranges
};

// Keeps insertion order. Keys are anything Python can hash.
struct Dict {
  std::vector<std::pair<Val, Val>> members;
  std::unordered_map<std::string_view, size_t> index;  // string keys, once there are many
  const Val* find(std::string_view key) const;
  const Val* find(const Val& key) const;
  void set(const Val& key, Val value);
  bool erase(const Val& key);

 private:
  size_t place(const Val& key) const;
  void reindex();
};

struct Namespace {
  std::vector<std::pair<std::string, Val>> members;
  Val* find(std::string_view name);
  void set(std::string_view name, Val value);
};

struct Args {
  std::vector<Val> pos;
  std::vector<std::pair<std::string, Val>> named;
  const Val* keyword(std::string_view name) const;
  // Argument `index`, or by name; nullptr when absent.
  const Val* get(size_t index, std::string_view name) const;
};

struct Callable {
  std::string name;
  std::function<Val(Interp&, Args&)> call;
};

struct LoopState {
  const std::vector<Val>* values = nullptr;
  size_t index0 = 0;
  int depth0 = 0;
  bool has_changed = false;
  std::vector<Val> last_changed;
  std::function<Val(Interp&, Args&)> recurse;
};

// Owns all values created by a render; enforces the memory limit.
class Heap {
 public:
  explicit Heap(size_t limit) : limit_(limit) {}
  Val string(std::string text, bool markup = false);
  Val list(std::vector<Val> values, bool tuple = false);
  Val flavored(std::vector<Val> values, Flavor flavor);  // kGroup: a tuple
  Dict* dict();
  Namespace* space();
  LoopState* loop();
  Val callable(std::string name, std::function<Val(Interp&, Args&)> call);
  void charge(size_t bytes);            // containers: freed at the end
  void check_room(size_t bytes) const;  // call before creating a string of that size

 private:
  size_t limit_;
  size_t used_ = 0;  // containers, and strings alive
  std::deque<List> lists_;
  std::deque<Dict> dicts_;
  std::deque<Namespace> spaces_;
  std::deque<LoopState> loops_;
  std::deque<Callable> callables_;
};

// Counts against the step limit of the render that runs on this thread, if any.
void spend_steps(size_t steps);

// Python's rules.
bool truthy(const Val& v);
bool equal(const Val& a, const Val& b, int depth = 0);
int compare(const Val& a, const Val& b, int depth = 0);  // <0, 0, >0; raises when not comparable
const char* type_name(const Val& v);                     // "str", "dict", ...
std::string to_str(const Val& v);                        // str(v)
void append_str(std::string& out, const Val& v);
void append_repr(std::string& out, const Val& v, int depth = 0);
std::string float_repr(double d);
bool is_printable(char32_t c);             // printed unchanged by repr
std::string ascii_only(std::string text);  // other characters as \x, \u and \U
[[noreturn]] void raise_undefined(const Val& v);

struct JsonStyle {
  bool ascii = false;
  std::string indent;           // of one level
  bool newline_indent = false;  // indent was given (0 also adds newlines)
  std::string item_separator = ", ", key_separator = ": ";
  bool sort_keys = false;
};
void append_json(std::string& out, const Val& v, const JsonStyle& style, int depth = 0);

Val from_value(Heap& heap, const Value& v, int depth = 0);

}  // namespace tokamak::jinja
