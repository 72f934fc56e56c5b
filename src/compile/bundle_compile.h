#pragma once
// The compiler's side of bundles: writing one, and adapting the plans of one to the machine that
// opens it.
#include <filesystem>
#include <memory>

#include "compile/cache.h"
#include "compile/open_model.h"
#include "plan/bundle.h"

namespace tokamak {

struct BundleReport {
  uint64_t file_bytes = 0, weight_bytes = 0;
  size_t plans = 0;
  double compile_seconds = 0, pack_seconds = 0;
};

// Compiles, packs and writes. `producer` names this program and its version. An existing file is
// replaced as a whole or kept.
BundleReport write_bundle(const OpenedModel& opened, Backend& backend,
                          const CompileOptions& options, const std::filesystem::path& out,
                          std::string_view producer);
// The same from another bundle: compiles its graph again for this backend and packs weights again
// where needed.
BundleReport rewrite_bundle(const std::filesystem::path& from, Backend& backend,
                            const CompileOptions& options, const std::filesystem::path& out,
                            std::string_view producer);

// The options a bundle was compiled with. Throws Error(kCorrupt).
CompileOptions bundle_options(const BundleModel& bundle);

// Adapts the plans to a backend. Plans for another ISA, or with kernels that this program does not
// have, are compiled again from the embedded graph (with one line in the log). A bundle that cannot
// be used at all throws Error(kUnsupported) that says what to do. `cache` may be null.
void fit_bundle(BundleModel& bundle, const Backend& backend, const CompileCache* cache);

}  // namespace tokamak
