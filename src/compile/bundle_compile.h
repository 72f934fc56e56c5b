#pragma once
// Bundles at the compiler's end: writing one, and making the plans of one fit the machine it is
// opened on.
#include <filesystem>
#include <memory>

#include "compile/model_source.h"
#include "plan/bundle.h"

namespace tokamak {

struct BundleReport {
  uint64_t file_bytes = 0, weight_bytes = 0;
  size_t plans = 0;
  double compile_seconds = 0, pack_seconds = 0;
};

// Compiles, packs and writes. `producer` names this program and its version. An existing file is
// replaced as a whole or stays as it is.
BundleReport write_bundle(const OpenedModel& opened, Backend& backend,
                          const CompileOptions& options, const std::filesystem::path& out,
                          std::string_view producer);
// The same from another bundle: its graph compiled again for this backend, its weights packed anew
// where they have to be.
BundleReport rewrite_bundle(const std::filesystem::path& from, Backend& backend,
                            const CompileOptions& options, const std::filesystem::path& out,
                            std::string_view producer);

// The options a bundle was compiled with. Throws Error(kCorrupt).
CompileOptions bundle_options(const BundleModel& bundle);

// Makes the plans fit a backend. Plans that were made for another ISA, or with kernels that this
// program does not have, are compiled again from the embedded graph (said in one log line); what
// cannot be used at all throws Error(kUnsupported) with what to do. `cache` may be null.
void fit_bundle(BundleModel& bundle, const Backend& backend, const CompileCache* cache);

}  // namespace tokamak
