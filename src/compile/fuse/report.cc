#include "compile/fuse/report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace tokamak {

void merge_reports(FusionReport& into, FusionReport from) {
  into.machine = from.machine;
  for (auto& [name, shapes] : from.shapes) into.shapes[name] = std::move(shapes);
  for (auto& [name, total] : from.totals) into.totals[name] = total;
  std::erase_if(into.regions,
                [&](const FusedRegion& r) { return from.totals.contains(r.function); });
  std::erase_if(into.not_fused,
                [&](const NotFused& n) { return from.totals.contains(n.function); });
  for (FusedRegion& r : from.regions) into.regions.push_back(std::move(r));
  for (NotFused& n : from.not_fused) into.not_fused.push_back(std::move(n));
}

std::string fusion_report_text(const FusionReport& report) {
  std::string out;
  for (const auto& [name, t] : report.totals) {
    out += fmt::format(
        "{}: {} -> {} calls, {:.1f} -> {:.1f} us, {:.0f} -> {:.0f} bytes predicted on {} ({} "
        "candidates, {} states{})\n",
        name, t.calls_before, t.calls_after, t.seconds_before * 1e6, t.seconds_after * 1e6,
        t.bytes_before, t.bytes_after, report.machine, t.candidates, t.states,
        t.exact ? "" : ", not exact");
    for (const FusedRegion& r : report.regions)
      if (r.function == name)
        out += fmt::format("  fused {} [{}]: {}; {:.2f} -> {:.2f} us\n", r.id, r.kernel, r.why,
                           r.unfused_seconds * 1e6, r.seconds * 1e6);
    for (const NotFused& n : report.not_fused)
      if (n.function == name)
        out += fmt::format("  apart {} -> {}: {}, {}; {:.2f} us lost\n", n.producer, n.consumer,
                           n.reason, n.detail, n.saving * 1e6);
  }
  return out;
}

Value fusion_report_value(const FusionReport& report) {
  Value regions = Value::array(), edges = Value::array(), totals = Value::object(),
        shapes = Value::object();
  for (const FusedRegion& r : report.regions) {
    Value ops = Value::array();
    for (const std::string& op : r.ops) ops.push(op);
    regions.push(Value::Object{{"function", r.function},
                               {"id", r.id},
                               {"body", r.body},
                               {"kernel", r.kernel},
                               {"ops", std::move(ops)},
                               {"why", r.why},
                               {"bytes", r.bytes},
                               {"unfused_bytes", r.unfused_bytes},
                               {"flops", r.flops},
                               {"seconds", r.seconds},
                               {"unfused_seconds", r.unfused_seconds},
                               {"saved", r.saved()}});
  }
  for (const NotFused& n : report.not_fused)
    edges.push(Value::Object{{"function", n.function},
                             {"producer", n.producer},
                             {"consumer", n.consumer},
                             {"reason", n.reason},
                             {"detail", n.detail},
                             {"saving", n.saving},
                             {"bytes", n.bytes}});
  for (const auto& [name, t] : report.totals)
    totals.set(name, Value::Object{{"seconds_before", t.seconds_before},
                                   {"seconds_after", t.seconds_after},
                                   {"bytes_before", t.bytes_before},
                                   {"bytes_after", t.bytes_after},
                                   {"calls_before", static_cast<int64_t>(t.calls_before)},
                                   {"calls_after", static_cast<int64_t>(t.calls_after)},
                                   {"candidates", static_cast<int64_t>(t.candidates)},
                                   {"states", static_cast<int64_t>(t.states)},
                                   {"exact", t.exact}});
  for (const auto& [name, list] : report.shapes) {
    Value points = Value::array();
    for (const auto& values : list) {
      Value point = Value::object();
      for (const auto& [symbol, v] : values) point.set(symbol, v);
      points.push(std::move(point));
    }
    shapes.set(name, std::move(points));
  }
  return Value::Object{{"machine", report.machine},
                       {"shapes", std::move(shapes)},
                       {"totals", std::move(totals)},
                       {"regions", std::move(regions)},
                       {"not_fused", std::move(edges)}};
}

}  // namespace tokamak
