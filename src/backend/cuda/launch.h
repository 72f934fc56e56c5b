#pragma once
// Launches of one plan at one shape: what a step does on the device, ready to be replayed.
#include <cstddef>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "backend/cuda/driver.h"

namespace tokamak::cuda {

// The op kernels, loaded. Owned by an executable.
class KernelLibrary {
 public:
  // Loads the images that most models use; throws when the program or the driver lacks one. Those
  // for one kind of GPU are left out on others.
  explicit KernelLibrary(const Device& device);
  bool has(std::string_view image, const std::string& name) const;
  bool overlaps() const { return overlaps_; }  // launches may start before earlier ones are done
  // Throws Error(kUnsupported) naming the kernel.
  // shared_bytes: the dynamic shared memory of the launch.
  Handle find(std::string_view image, const std::string& name, int shared_bytes = 0) const;

 private:
  mutable std::map<std::string, std::unique_ptr<KernelModule>, std::less<>> modules_;
  struct Found {
    Handle function;
    int shared_bytes;  // that it may use
  };
  mutable std::map<std::string, Found, std::less<>> found_;
  bool overlaps_;
};

struct Grid {
  int64_t x = 1, y = 1, z = 1;
};

class LaunchList {
 public:
  explicit LaunchList(const KernelLibrary& kernels) : kernels_(kernels) {}
  void clear();
  // Appends a launch; `args` is what the kernel takes. Grids with an empty side are left out.
  template <class Args>
  void add(std::string_view image, const std::string& kernel, const Grid& grid, int threads,
           const Args& args, int shared_bytes = 0) {
    static_assert(std::is_trivially_copyable_v<Args>);
    append(kernels_.find(image, kernel, shared_bytes), grid, threads, shared_bytes, &args,
           sizeof args, alignof(Args));
  }
  // A kernel that waits for earlier launches itself (wait_for_earlier() of ops/simt.cuh), so that
  // its start overlaps with their end.
  template <class Args>
  void add_overlapped(std::string_view image, const std::string& kernel, const Grid& grid,
                      int threads, const Args& args, int shared_bytes = 0) {
    const size_t before = launches_.size();
    add(image, kernel, grid, threads, args, shared_bytes);
    if (launches_.size() > before) launches_.back().overlapped = true;
  }
  // Work of a library, which puts it on the stream itself.
  void add_library_call(std::function<void(Handle stream)> call);
  void next_call() { call_ends_.push_back(launches_.size()); }  // ends the launches of a call
  void run(const DeviceStream& stream) const { run(stream, 0, launches_.size()); }
  void run_call(const DeviceStream& stream, size_t call) const;
  size_t size() const { return launches_.size(); }

  // What a table of decode attention is made for. The list has one at a time.
  struct Table {
    const int32_t* lengths = nullptr;
    int64_t batch = 0, kv_heads = 0;
    bool operator==(const Table&) const = default;
  };
  // Whether there is none for this yet: then the next launch has to make it.
  bool needs_table(const Table& table);
  // Whether a launch that overlaps with those before might do so with the one that makes the table.
  bool overlaps_table() const;
  // The launches are only for steps with StepView::segments as it is now.
  void depend_on_segments() { depends_on_segments_ = true; }
  bool depends_on_segments() const { return depends_on_segments_; }

 private:
  struct Launch {
    Handle function;
    unsigned grid[3];
    unsigned threads, shared_bytes;
    size_t args;  // offset in args_; for a library call, its index
    bool overlapped = false;
  };
  void append(Handle function, const Grid& grid, int threads, int shared_bytes, const void* args,
              size_t bytes, size_t alignment);
  void run(const DeviceStream& stream, size_t from, size_t to) const;

  const KernelLibrary& kernels_;
  std::vector<Launch> launches_;
  std::vector<size_t> call_ends_;
  std::vector<std::byte> args_;
  std::vector<std::function<void(Handle)>> library_calls_;
  Table table_;
  size_t table_at_ = 0;  // the launch that makes it
  bool depends_on_segments_ = false;
};

// A captured LaunchList.
class StepGraph {
 public:
  StepGraph(const LaunchList& launches, const DeviceStream& stream);
  ~StepGraph();
  StepGraph(const StepGraph&) = delete;
  StepGraph& operator=(const StepGraph&) = delete;
  void run(const DeviceStream& stream) const;

 private:
  Handle graph_ = nullptr, exec_ = nullptr;
};

}  // namespace tokamak::cuda
