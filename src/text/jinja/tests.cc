// The tests for `is`.
#include <algorithm>

#include "text/jinja/filters.h"
#include "text/unicode.h"

namespace tokamak::jinja {
namespace {

const Val& argument(const Args& args) {
  if (args.pos.empty()) raise("the test needs an argument");
  return args.pos[0];
}

template <bool (Val::*Is)() const>
bool kind_test(Interp&, const Val& v, Args&) {
  return (v.*Is)();
}

bool defined(Interp&, const Val& v, Args&) { return !v.is_undefined(); }
bool is_true(Interp&, const Val& v, Args&) { return v.is_bool() && v.as_int() != 0; }
bool is_false(Interp&, const Val& v, Args&) { return v.is_bool() && v.as_int() == 0; }
bool iterable(Interp&, const Val& v, Args&) {
  return v.is_string() || v.is_sequence() || v.is_dict() || v.is_undefined();
}
bool sequence(Interp&, const Val& v, Args&) {
  return v.is_string() || v.is_plain_sequence() || v.is_dict() || v.is_undefined() ||
         (v.is_list() && v.items()->flavor == Flavor::kRange);
}
bool callable(Interp&, const Val& v, Args&) {  // undefined has a __call__, which raises
  return v.kind() == Kind::kCallable || v.kind() == Kind::kLoop || v.is_undefined();
}
bool eq(Interp&, const Val& v, Args& a) { return equal(v, argument(a)); }
bool ne(Interp&, const Val& v, Args& a) { return !equal(v, argument(a)); }
bool lt(Interp&, const Val& v, Args& a) { return compare(v, argument(a)) < 0; }
bool le(Interp&, const Val& v, Args& a) { return compare(v, argument(a)) <= 0; }
bool gt(Interp&, const Val& v, Args& a) { return compare(v, argument(a)) > 0; }
bool ge(Interp&, const Val& v, Args& a) { return compare(v, argument(a)) >= 0; }
bool in(Interp& i, const Val& v, Args& a) { return i.contains(argument(a), v); }

int64_t remainder(Interp& i, const Val& v, int64_t by) {
  if (!v.is_integral()) {
    const Val r = i.binary(Op::kMod, v, Val::integer(by));
    return r.as_double() == 0 ? 0 : r.as_double() == 1 ? 1 : 2;
  }
  return i.binary(Op::kMod, v, Val::integer(by)).as_int();
}
bool odd(Interp& i, const Val& v, Args&) { return remainder(i, v, 2) == 1; }
bool even(Interp& i, const Val& v, Args&) { return remainder(i, v, 2) == 0; }
bool divisible_by(Interp& i, const Val& v, Args& a) {
  return remainder(i, v, int_arg(argument(a), "divisibleby")) == 0;
}

bool same_as(Interp&, const Val& v, Args& a) {
  const Val& other = argument(a);
  return v.kind() == other.kind() && equal(v, other) &&
         (!v.is_sequence() || v.items() == other.items()) &&
         (!v.is_dict() || v.dict() == other.dict());
}

bool all_case(const Val& v, bool upper) {
  const std::string text = to_str(v);
  bool cased = false;
  for (size_t pos = 0; pos < text.size();) {
    const Utf8Char c = utf8_decode(text, pos);
    pos += c.length;
    if (is_upper(c.cp) ? !upper : is_lower(c.cp) && upper) return false;
    cased = cased || is_upper(c.cp) || is_lower(c.cp);
  }
  return cased;
}
bool is_lower_case(Interp&, const Val& v, Args&) { return all_case(v, false); }
bool is_upper_case(Interp&, const Val& v, Args&) { return all_case(v, true); }
bool filter_exists(Interp&, const Val& v, Args&) { return v.is_string() && find_filter(v.str()); }
bool test_exists(Interp&, const Val& v, Args&) { return v.is_string() && find_test(v.str()); }
bool escaped(Interp&, const Val& v, Args&) { return v.is_string() && v.text()->markup; }

}  // namespace

TestFn find_test(std::string_view name) {
  static const std::unordered_map<std::string_view, TestFn> table = {
      {"defined", defined},
      {"undefined", kind_test<&Val::is_undefined>},
      {"none", kind_test<&Val::is_none>},
      {"boolean", kind_test<&Val::is_bool>},
      {"integer", kind_test<&Val::is_int>},
      {"float", kind_test<&Val::is_float>},
      {"number", kind_test<&Val::is_number>},
      {"string", kind_test<&Val::is_string>},
      {"mapping", kind_test<&Val::is_dict>},
      {"iterable", iterable},
      {"sequence", sequence},
      {"callable", callable},
      {"true", is_true},
      {"false", is_false},
      {"eq", eq},
      {"==", eq},
      {"equalto", eq},
      {"ne", ne},
      {"!=", ne},
      {"lt", lt},
      {"<", lt},
      {"lessthan", lt},
      {"le", le},
      {"<=", le},
      {"gt", gt},
      {">", gt},
      {"greaterthan", gt},
      {"ge", ge},
      {">=", ge},
      {"in", in},
      {"odd", odd},
      {"even", even},
      {"divisibleby", divisible_by},
      {"sameas", same_as},
      {"lower", is_lower_case},
      {"upper", is_upper_case},
      {"filter", filter_exists},
      {"test", test_exists},
      {"escaped", escaped}};
  const auto found = table.find(name);
  return found == table.end() ? nullptr : found->second;
}

}  // namespace tokamak::jinja
