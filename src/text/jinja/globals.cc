// Functions that every template can call.
#include <ctime>

#include "text/jinja/interp.h"

namespace tokamak::jinja {
namespace {

constexpr int64_t kMaxRange = 100000;  // as in jinja2's sandbox

Val range(Interp& i, Args& args) {
  if (args.pos.empty() || args.pos.size() > 3) raise("range takes one to three arguments");
  int64_t start = 0, stop = 0, step = 1;
  if (args.pos.size() == 1) {
    stop = int_arg(args.pos[0], "range");
  } else {
    start = int_arg(args.pos[0], "range");
    stop = int_arg(args.pos[1], "range");
    if (args.pos.size() == 3) step = int_arg(args.pos[2], "range");
  }
  if (step == 0) raise("range() arg 3 must not be zero");
  std::vector<Val> out;
  for (int64_t v = start; step > 0 ? v < stop : v > stop;) {
    if (static_cast<int64_t>(out.size()) >= kMaxRange) raise("range is too big");
    out.push_back(Val::integer(v));
    if (__builtin_add_overflow(v, step, &v)) break;
  }
  i.spend(out.size() / 8);
  const Val list = i.heap().flavored(std::move(out), Flavor::kRange);
  list.items()->start = start;
  list.items()->stop = stop;
  list.items()->step = step;
  return list;
}

Val make_namespace(Interp& i, Args& args) {
  Namespace* space = i.heap().space();
  for (const Val& v : args.pos) {
    if (!v.is_dict()) raise("namespace() takes a mapping");
    for (const auto& [key, item] : v.dict()->members) space->set(to_str(key), item);
  }
  for (const auto& [name, v] : args.named) space->set(name, v);
  i.heap().charge(space->members.size() * 2 * sizeof(Val));
  return Val::space(space);
}

Val make_dict(Interp& i, Args& args) {
  Dict* dict = i.heap().dict();
  for (const Val& v : args.pos) {
    if (v.is_dict()) {
      for (const auto& [key, item] : v.dict()->members) dict->set(key, item);
      continue;
    }
    for (const Val& pair : i.iterate(v)) {
      const std::vector<Val> both = i.iterate(pair);
      if (both.size() != 2) raise("dict() needs pairs");
      dict->set(both[0], both[1]);
    }
  }
  for (const auto& [name, v] : args.named) dict->set(i.str(name), v);
  i.heap().charge(dict->members.size() * 2 * sizeof(Val));
  return Val::dict(dict);
}

Val raise_exception(Interp&, Args& args) {
  const Val* message = args.get(0, "message");
  raise(message ? to_str(*message) : "raise_exception");
}

Val strftime_now(Interp& i, Args& args) {
  const Val* format = args.get(0, "format");
  if (!format) raise("strftime_now needs a format");
  const TemplateTime now = i.limits().now ? *i.limits().now : TemplateTime::now();
  return i.str(strftime_text(now, str_arg(*format, "the time format")));
}

Val joiner(Interp& i, Args& args) {
  const Val* separator = args.get(0, "sep");
  const Val text = separator ? *separator : i.str(", ");
  auto used = std::make_shared<bool>(false);
  return i.heap().callable("joiner", [text, used](Interp& interp, Args&) {
    return std::exchange(*used, true) ? text : interp.str("");
  });
}

Val cycler(Interp& i, Args& args) {
  if (args.pos.empty()) raise("at least one item has to be provided");
  const std::vector<Val> items = args.pos;
  Namespace* space = i.heap().space();
  auto at = std::make_shared<size_t>(0);
  space->set("current", items[0]);
  space->set("next", i.heap().callable("next", [items, at, space](Interp&, Args&) {
    const Val out = items[*at];
    *at = (*at + 1) % items.size();
    space->set("current", items[*at]);
    return out;
  }));
  space->set("reset", i.heap().callable("reset", [items, at, space](Interp&, Args&) {
    *at = 0;
    space->set("current", items[0]);
    return Val::none();
  }));
  return Val::space(space);
}

}  // namespace

void add_globals(Interp& i, const std::function<void(std::string_view, Val)>& add) {
  using Fn = Val (*)(Interp&, Args&);
  static constexpr std::pair<const char*, Fn> kFunctions[] = {
      {"range", range},   {"namespace", make_namespace},        {"dict", make_dict},
      {"joiner", joiner}, {"raise_exception", raise_exception}, {"strftime_now", strftime_now},
      {"cycler", cycler}};
  for (const auto& [name, fn] : kFunctions) add(name, i.heap().callable(name, fn));
}

}  // namespace tokamak::jinja
