// tokamak debug pack: the memory planner's solver on an instance from a file.
#include <cmath>

#include "apps/debug.h"
#include "apps/terminal.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "compile/planner/pack_csv.h"

namespace tokamak {
namespace {

struct PackFlags {
  std::string instance;
  uint64_t capacity = 0, seed = 1;
  double time_limit = 60;
  unsigned threads = 1;
  bool json = false;
};

void print_json(const PackFlags& f, const PackInstance& in, const PackResult& r) {
  Value out = Value::object(), offsets = Value::object();
  for (size_t i = 0; i < in.ids.size(); ++i)  // ids are unique: no search for the key
    offsets.as_object().emplace_back(in.ids[i], r.offsets[i]);
  out.set("buffers", in.ids.size());
  if (f.capacity > 0) {
    out.set("capacity", f.capacity);
    out.set("fits", r.peak <= f.capacity);
  }
  out.set("peak", r.peak);
  out.set("lower_bound", r.lower_bound);
  out.set("gap", r.gap());
  out.set("method", r.method);
  out.set("nodes", r.nodes);
  out.set("seconds", r.seconds);
  out.set("offsets", std::move(offsets));
  fmt::print("{}\n", dump_json(out));
}

void print_text(const PackInstance& in, const PackResult& r) {
  fmt::print("peak         {}\nlower_bound  {}\ngap          {:.2f} %\nmethod       {}\n", r.peak,
             r.lower_bound, r.gap() * 100, r.method);
  fmt::print("seconds      {:.3f}\noffsets\n", r.seconds);
  for (size_t i = 0; i < in.ids.size(); ++i)
    fmt::print("  {:>8} {:>12}\n", in.ids[i], r.offsets[i]);
}

void debug_pack(const PackFlags& f) {
  if (std::isnan(f.time_limit)) fail(ErrorCode::kInvalidArgument, "--time-limit: not a number");
  bool piped = f.instance == "-";
  PackInstance in = reading([&] {
    return parse_pack_csv(read_text_file(piped ? "/dev/stdin" : f.instance),
                          piped ? "standard input" : f.instance);
  });
  std::atomic<bool> cancel = false;
  PackResult r;
  {
    InterruptScope interrupt([&] { cancel = true; });
    PackOptions options;
    options.capacity = f.capacity;
    options.time_limit = f.time_limit;
    options.threads = f.threads;
    options.seed = f.seed;
    options.cancel = &cancel;
    r = pack(in.buffers, options);
  }
  if (f.json)
    print_json(f, in, r);
  else
    print_text(in, r);
  if (f.capacity == 0 || r.peak <= f.capacity) return;
  if (r.lower_bound > f.capacity)
    fail(ErrorCode::kOutOfRange, "{} cannot fit into {}: every packing takes at least {}",
         f.instance, f.capacity, r.lower_bound);
  fail(ErrorCode::kOutOfRange,
       "{}: no packing into {} was found in {:.1f} s; the best one takes {}", f.instance,
       f.capacity, r.seconds, r.peak);
}

}  // namespace

void add_debug_pack(CLI::App& debug) {
  auto flags = std::make_shared<PackFlags>();
  CLI::App* tool = debug.add_subcommand("pack", "pack buffers with lifetimes into memory");
  tool->add_option("INSTANCE", flags->instance,
                   "CSV with the columns id,lower,upper,size (alive in [lower, upper)); - is "
                   "standard input")
      ->required();
  tool->add_option(
          "--capacity", flags->capacity,
          "stop at the first packing that fits, exit with 1 if there is none (default: search "
          "for the lowest peak)")
      ->check(CLI::Range(uint64_t{1}, uint64_t{1} << 62));
  tool->add_option("--time-limit", flags->time_limit, "seconds to search")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  tool->add_option("--threads", flags->threads, "1 or 2")
      ->check(CLI::Range(1u, 2u))
      ->capture_default_str();
  tool->add_option("--seed", flags->seed, "seed of the search")->capture_default_str();
  tool->add_flag("--json", flags->json, "print one JSON object");
  tool->footer(
      "Ctrl-C stops with the best packing so far.\nExample: tokamak debug pack A.csv --capacity "
      "1048576 --json");
  tool->callback([flags] { debug_pack(*flags); });
}

}  // namespace tokamak
