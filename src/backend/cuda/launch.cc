#include "backend/cuda/launch.h"

#include <algorithm>
#include <limits>

#include "backend/cuda/images.h"
#include "base/error.h"

namespace tokamak::cuda {
namespace {

constexpr const char* kOpImages[] = {"op_element",    "op_rows",   "op_linear",
                                     "op_linear_mma", "op_attend", "op_flash",
                                     "op_layer",      "op_pack",   "sample"};
constexpr const char* kHopperImages[] = {"decode_attention", "prefill_attention", "few_rows"};
// Loaded when a call needs them: most models do not.
constexpr const char* kRareImages[] = {"op_experts", "op_latent", "op_recurrent", "op_scan"};

}  // namespace

// Only the code for Hopper waits for earlier launches: other GPUs run that for sm_80.
KernelLibrary::KernelLibrary(const Device& device) : overlaps_(device.capability() == kHopper) {
  for (const char* name : kOpImages)
    modules_.emplace(name, std::make_unique<KernelModule>(kernel_image(name).data()));
  if (!overlaps_) return;
  for (const char* name : kHopperImages)
    modules_.emplace(name, std::make_unique<KernelModule>(kernel_image(name).data()));
}

bool KernelLibrary::has(std::string_view image, const std::string& name) const {
  auto module = modules_.find(image);
  return module != modules_.end() && module->second->has(name.c_str());
}

Handle KernelLibrary::find(std::string_view image, const std::string& name,
                           int shared_bytes) const {
  if (auto it = found_.find(name); it != found_.end() && it->second.shared_bytes >= shared_bytes)
    return it->second.function;
  auto module = modules_.find(image);
  const bool rare =
      std::find(std::begin(kRareImages), std::end(kRareImages), image) != std::end(kRareImages);
  if (module == modules_.end() && rare)
    module =
        modules_.emplace(image, std::make_unique<KernelModule>(kernel_image(image).data())).first;
  TK_CHECK(module != modules_.end(), "kernel file {}", image);
  const Handle function = module->second->function(name.c_str(), shared_bytes);
  found_[name] = {function, shared_bytes};
  return function;
}

void LaunchList::clear() {
  launches_.clear();
  call_ends_.clear();
  args_.clear();
  library_calls_.clear();
  table_ = {};
  depends_on_segments_ = false;
}

bool LaunchList::needs_table(const Table& table) {
  if (table_ == table) return false;
  table_ = table;
  table_at_ = launches_.size();
  return true;
}

bool LaunchList::overlaps_table() const {
  return std::all_of(launches_.begin() + static_cast<std::ptrdiff_t>(table_at_) + 1,
                     launches_.end(), [](const Launch& l) { return l.overlapped; });
}

void LaunchList::add_library_call(std::function<void(Handle)> call) {
  launches_.push_back({nullptr, {}, 0, 0, library_calls_.size()});
  library_calls_.push_back(std::move(call));
}

void LaunchList::append(Handle function, const Grid& grid, int threads, int shared_bytes,
                        const void* args, size_t bytes, size_t alignment) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  constexpr int64_t kMaxX = std::numeric_limits<int32_t>::max(), kMaxYZ = 65535;
  if (grid.x > kMaxX || grid.y > kMaxYZ || grid.z > kMaxYZ)
    fail(ErrorCode::kUnsupported, "a launch of {} x {} x {} blocks is too large", grid.x, grid.y,
         grid.z);
  size_t at = (args_.size() + alignment - 1) / alignment * alignment;
  args_.resize(at + bytes);
  std::memcpy(args_.data() + at, args, bytes);
  launches_.push_back({function,
                       {static_cast<unsigned>(grid.x), static_cast<unsigned>(grid.y),
                        static_cast<unsigned>(grid.z)},
                       static_cast<unsigned>(threads),
                       static_cast<unsigned>(shared_bytes),
                       at});
}

void LaunchList::run(const DeviceStream& stream, size_t from, size_t to) const {
  for (size_t i = from; i < to; ++i) {
    const Launch& l = launches_[i];
    if (!l.function) {
      library_calls_[l.args](stream.get());
      continue;
    }
    void* params[] = {const_cast<std::byte*>(args_.data() + l.args)};
    if (l.overlapped && kernels_.overlaps()) {
      LaunchAttribute overlap;
      LaunchConfig config{{l.grid[0], l.grid[1], l.grid[2]},
                          {l.threads, 1, 1},
                          l.shared_bytes,
                          stream.get(),
                          &overlap,
                          1};
      check(driver().launch_ex(&config, l.function, params, nullptr), "launching a kernel");
      continue;
    }
    check(driver().launch(l.function, l.grid[0], l.grid[1], l.grid[2], l.threads, 1, 1,
                          l.shared_bytes, stream.get(), params, nullptr),
          "launching a kernel");
  }
}

void LaunchList::run_call(const DeviceStream& stream, size_t call) const {
  run(stream, call == 0 ? 0 : call_ends_[call - 1], call_ends_[call]);
}

StepGraph::StepGraph(const LaunchList& launches, const DeviceStream& stream) {
  constexpr int kThreadLocal = 1;
  check(driver().capture_begin(stream.get(), kThreadLocal), "capturing a step");
  try {
    launches.run(stream);
  } catch (...) {
    driver().capture_end(stream.get(), &graph_);
    if (graph_) driver().graph_destroy(graph_);
    throw;
  }
  check(driver().capture_end(stream.get(), &graph_), "capturing a step");
  if (int result = driver().graph_instantiate(&exec_, graph_, 0); result != 0) {
    driver().graph_destroy(graph_);
    check(result, "making a graph of a step");
  }
}
StepGraph::~StepGraph() {
  driver().graph_exec_destroy(exec_);
  driver().graph_destroy(graph_);
}
void StepGraph::run(const DeviceStream& stream) const {
  check(driver().graph_launch(exec_, stream.get()), "launching a step");
}

}  // namespace tokamak::cuda
