#include <fmt/ranges.h>

#include <algorithm>

#include "compile/explain/explain.h"

namespace tokamak {
namespace {

std::string amount(double v, const char* unit) {
  static constexpr const char* kPrefixes[] = {"", "k", "M", "G", "T"};
  size_t p = 0;
  while (v >= 999.5 && p < 4) v /= 1e3, ++p;
  return p == 0 ? fmt::format("{:.0f} {}", v, unit)
                : fmt::format("{:.3g} {}{}", v, kPrefixes[p], unit);
}
std::string micros(double us) {
  return us >= 1e4   ? fmt::format("{:.1f} ms", us / 1e3)
         : us >= 100 ? fmt::format("{:.0f} us", us)
         : us >= 1   ? fmt::format("{:.1f} us", us)
                     : fmt::format("{:.2f} us", us);
}
double num(const Value& v, std::string_view key) { return v.get_double(key, 0); }

// "rms_norm, quantize, linear x3": equal neighbours are grouped.
std::string op_list(const Value& ops) {
  std::vector<std::pair<std::string, int>> runs;
  for (const Value& op : ops.as_array()) {
    std::string name = op.as_string();
    if (runs.empty() || runs.back().first != name)
      runs.emplace_back(name, 1);
    else
      ++runs.back().second;
  }
  std::vector<std::string> texts;
  for (const auto& [name, n] : runs)
    texts.push_back(n == 1 ? name : fmt::format("{} x{}", name, n));
  return fmt::format("{}", fmt::join(texts, ", "));
}

// Wraps a long line with an indent.
std::string wrapped(const std::string& text, size_t indent) {
  constexpr size_t kWidth = 108;
  std::string out, line(indent, ' ');
  auto trim = [&line] { line.erase(line.find_last_not_of(' ') + 1); };
  for (size_t at = 0; at < text.size();) {
    size_t end = std::min(text.find(' ', at), text.size());
    if (line.size() > indent && line.size() + end - at > kWidth) {
      trim();
      out += line + "\n";
      line.assign(indent + 2, ' ');
    }
    line += text.substr(at, end - at) + " ";
    at = end + 1;
  }
  trim();
  return out + line + "\n";
}

std::string header(const Value& r) {
  const Value& s = r.at("shape");
  std::string guard;
  for (const Value& g : r.at("plan").at("guard").as_array())
    guard += fmt::format(
        ", {} {}-{}{}", g.at("symbol").as_string(), g.at("lo").as_int(), g.at("hi").as_int(),
        g.at("multiple").as_int() > 1 ? fmt::format(" by {}", g.at("multiple").as_int()) : "");
  std::string warnings;
  for (const Value& w : r.at("warnings").as_array()) warnings += "warning: " + w.as_string() + "\n";
  return fmt::format(
      "{}  {}  B={} T={} S={} R={}\nbackend {} ({}), {}, plan {} of {}{}; machine {}\n{}",
      r.at("model").as_string(), r.at("function").as_string(), s.at("B").as_int(),
      s.at("T").as_int(), s.at("S").as_int(), s.at("R").as_int(), r.at("backend").as_string(),
      r.at("isa").as_string(), r.at("mode").as_string(), r.at("plan").at("index").as_int() + 1,
      r.at("plan").at("plans").as_int(), guard, r.at("machine").at("name").as_string(), warnings);
}

std::string pass_lines(const Value& r) {
  const Value::Array& passes = r.at("passes").as_array();
  if (passes.empty()) return "";
  std::string out = fmt::format("\nPASSES\n  {:<8} {:<22} {:>9} {:>15}  {}\n", "function", "pass",
                                "time", "nodes", "rules fired");
  for (const Value& p : passes) {
    std::vector<std::pair<int64_t, std::string>> rules;
    for (const auto& [name, n] : p.at("rules").as_object()) rules.emplace_back(n.as_int(), name);
    std::sort(rules.rbegin(), rules.rend());
    std::string fired = p.at("skipped").as_bool() ? "off" : "";
    for (size_t i = 0; i < rules.size() && i < 4; ++i)
      fired += fmt::format("{}{} {}", i ? ", " : "", rules[i].second, rules[i].first);
    if (rules.size() > 4) fired += fmt::format(", {} more", rules.size() - 4);
    out += fmt::format("  {:<8} {:<22} {:>6.1f} ms {:>6} -> {:>5}  {}\n",
                       p.at("function").as_string(), p.at("name").as_string(), num(p, "ms"),
                       p.at("nodes_before").as_int(), p.at("nodes_after").as_int(), fired);
    for (const auto& [reason, n] : p.at("refused").as_object())
      out += fmt::format("  {:<8} {:<22} {} left: {}\n", "", "", n.as_int(), reason);
  }
  return out;
}

std::string arena_text(const Value& k) {
  const Value::Array& arena = k.at("arena").as_array();
  if (arena.empty()) return "-";
  return fmt::format("{}+{}", arena[0].at("offset").as_int(), arena[0].at("bytes").as_int()) +
         (arena.size() > 1 ? fmt::format(" (+{})", arena.size() - 1) : "");
}

// The kernels that lost to what runs.
std::string loser_lines(const Value& line) {
  std::string out;
  for (const Value& l : line.at("losers").as_array())
    out += wrapped(fmt::format("not {}: {}, {} predicted against {}", l.at("kernel").as_string(),
                               l.at("reason").as_string(), micros(num(l, "predicted_us")),
                               micros(num(line, "predicted_us"))),
                   16);
  return out;
}

std::string kernel_lines(const Value& r) {
  const Value& t = r.at("totals");
  bool run = t.has("measured_us"), counted = t.has("counted_bytes");
  std::string out =
      fmt::format("\nKERNELS  {} calls of {} kinds; {} moved ({} weights), {}; bound {}{}\n",
                  t.at("calls").as_int(), t.at("kinds").as_int(), amount(num(t, "bytes"), "B"),
                  amount(num(t, "weight_bytes"), "B"), amount(num(t, "flops"), "op"),
                  micros(num(t, "bound_us")),
                  run ? fmt::format(", measured {} (median of {} steps)",
                                    micros(num(t, "measured_us")), t.at("measured_steps").as_int())
                      : "");
  out += fmt::format("  {:>5} {:<7} {:<22} {:>9} {:>9} {:>9} {:>8} {:<8}{}{} {:<18} {}\n", "calls",
                     "layers", "kernel", "bytes", "weights", "ops", "bound", "by",
                     counted ? fmt::format("{:>11}", "counted") : "",
                     run ? fmt::format("{:>10}", "measured") : "", "arena offset+size", "name");
  for (const Value& k : r.at("kernels").as_array()) {
    std::string more;
    if (counted) {
      const Value& c = k.at("counted_bytes");
      more +=
          fmt::format("{:>11}", c.is_null()                        ? "-"
                                : c.as_double() == num(k, "bytes") ? "equal"
                                                                   : amount(c.as_double(), "B"));
    }
    if (run)
      more += fmt::format("{:>10}", k.has("measured_us") ? micros(num(k, "measured_us")) : "-");
    std::string layers = k.at("layers").as_string();
    out += fmt::format("  {:>5} {:<7} {:<22} {:>9} {:>9} {:>9} {:>8} {:<8}{} {:<18} {}\n",
                       k.at("calls").as_int(), layers.empty() ? "-" : layers,
                       k.at("kernel").as_string(), amount(num(k, "bytes"), "B"),
                       amount(num(k, "weight_bytes"), "B"), amount(num(k, "flops"), "op"),
                       micros(num(k, "bound_us")), k.at("bound").as_string(), more, arena_text(k),
                       k.at("name").as_string());
    out += loser_lines(k);
    if (!k.at("fused").as_bool()) continue;
    out += wrapped("= " + op_list(k.at("ops")), 16);
    std::string saved =
        k.has("saved_us") ? fmt::format(" (saves {})", micros(num(k, "saved_us"))) : "";
    out += wrapped("why: " + k.at("why").as_string() + saved, 16);
  }
  if (counted && !t.at("counted_bytes").is_null())
    out += fmt::format("  counted {:.0f} bytes, predicted {:.0f}: {}\n", num(t, "counted_bytes"),
                       num(t, "bytes"), t.at("counted_equal").as_bool() ? "equal" : "not equal");
  else if (counted)
    out += "  calls of more than 3 Gop are not counted (-): use a smaller --shape\n";
  return out;
}

std::string tuned_lines(const Value& r) {
  const Value* tuned = r.find("tuned");
  if (!tuned) return {};
  std::string out = fmt::format("\nmeasured  {} alternatives; a step {:.0f} -> {:.0f} us\n",
                                tuned->at("trials").as_int(), tuned->at("before_us").as_double(),
                                tuned->at("after_us").as_double());
  for (const Value& change : tuned->at("changes").as_array())
    out += fmt::format("  {}\n", change.as_string());
  return out;
}

std::string op_by_op_lines(const Value& r) {
  const Value::Array& lines = r.at("op_by_op").as_array();
  if (lines.empty()) return "";
  std::string out = "\nOP BY OP  regions that this plan does not run as one call\n";
  for (const Value& l : lines)
    out += fmt::format("  {:>5} {}\n", l.at("count").as_int(), l.at("name").as_string()) +
           loser_lines(l);
  return out;
}

std::string launch_lines(const Value& r) {
  const Value::Array& launches = r.at("launches").as_array();
  if (launches.empty()) return "";
  const std::string calls = micros(num(r, "calls_us"));
  std::string out = fmt::format(
      "\nLAUNCHES  a step runs in the first that takes it, else call by call ({} predicted)\n",
      calls);
  for (const Value& l : launches) {
    const std::string kernel = l.at("kernel").as_string(), reason = l.at("reason").as_string();
    const std::string time = num(l, "predicted_us") > 0 ? micros(num(l, "predicted_us")) : "";
    if (reason.empty())
      out += wrapped(fmt::format("{:<24} {:>9} predicted, calls {}-{}: {}", kernel, time,
                                 l.at("first_call").as_int(),
                                 l.at("first_call").as_int() + l.at("calls").as_int() - 1,
                                 l.at("steps").as_string()),
                     2);
    else
      out += wrapped(fmt::format("not {}: {}{}", kernel, reason,
                                 time.empty() ? "" : ", " + time + " predicted"),
                     2);
  }
  return out;
}

std::string not_fused_lines(const Value& r) {
  std::string out;
  const Value& f = r.at("fusion");
  if (!f.is_null())
    out += fmt::format(
        "\nFUSION  {} -> {} calls, {} -> {} and {} -> {} predicted over the planner's shapes; {} "
        "candidates, {} states{}\n",
        f.at("calls_before").as_int(), f.at("calls_after").as_int(), micros(num(f, "us_before")),
        micros(num(f, "us_after")), amount(num(f, "bytes_before"), "B"),
        amount(num(f, "bytes_after"), "B"), f.at("candidates").as_int(), f.at("states").as_int(),
        f.at("exact").as_bool() ? "" : ", not exact");
  const Value::Array& lines = r.at("not_fused").as_array();
  if (lines.empty()) return out;
  out += fmt::format("\nNOT FUSED\n  {:>5} {:<7} {:<13} {:>9} {:>9}  {}\n", "edges", "layers",
                     "reason", "lost", "bytes", "edge");
  for (const Value& n : lines) {
    std::string layers = n.at("layers").as_string();
    out += fmt::format("  {:>5} {:<7} {:<13} {:>9} {:>9}  {} -> {}\n", n.at("count").as_int(),
                       layers.empty() ? "-" : layers, n.at("reason").as_string(),
                       num(n, "saving_us") > 0 ? micros(num(n, "saving_us")) : "-",
                       amount(num(n, "bytes"), "B"), n.at("producer").as_string(),
                       n.at("consumer").as_string());
    out += wrapped(n.at("detail").as_string(), 16);
  }
  return out;
}

std::string memory_lines(const Value& r) {
  const Value& m = r.at("memory");
  return fmt::format(
      "\nMEMORY  arena {} bytes in {} values; lower bound {}; gap {:.2f} %; placed "
      "by "
      "{}\n        largest arena of all plans {}; scratch {}; weights {}\n",
      m.at("peak").as_int(), m.at("values").size(), m.at("lower_bound").as_int(),
      num(m, "gap") * 100,
      m.at("method").as_string().empty() ? "an unknown method" : m.at("method").as_string(),
      amount(num(m, "all_plans_peak"), "B"), amount(num(m, "scratch"), "B"),
      amount(num(m, "weights"), "B"));
}

}  // namespace

std::string explain_text(const Value& report) {
  return header(report) + pass_lines(report) + kernel_lines(report) + tuned_lines(report) +
         op_by_op_lines(report) + launch_lines(report) + not_fused_lines(report) +
         memory_lines(report);
}

}  // namespace tokamak
