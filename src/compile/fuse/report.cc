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

}  // namespace tokamak
