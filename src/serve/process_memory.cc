#include "serve/process_memory.h"

#include <fcntl.h>
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace tokamak {
namespace {

// Large allocations, which have mappings of their own.
uint64_t mapped_heap_bytes() {
#ifdef __GLIBC__
  char* text = nullptr;
  size_t size = 0;
  FILE* stream = open_memstream(&text, &size);
  if (stream == nullptr) return 0;
  malloc_info(0, stream);
  std::fclose(stream);
  std::unique_ptr<char, void (*)(void*)> owner(text, std::free);
  std::string_view all(text, size);
  size_t at = all.rfind("<total type=\"mmap\""), from = all.find("size=\"", at);
  return from == all.npos ? 0 : std::strtoull(text + from + 6, nullptr, 10);
#else
  return 0;
#endif
}

struct Mapping {
  unsigned long begin = 0, end = 0;
  char flags[5] = {};
  std::string path;
};

// A thread's stack follows a small guard without access; arenas of the heap have a large one.
bool is_stack(const Mapping& before, const Mapping& m) {
  constexpr unsigned long kLargestGuard = 64 << 10;
  if (m.path == "[stack]") return true;
  return m.path.empty() && m.flags[1] == 'w' && before.flags[0] == '-' && before.end == m.begin &&
         before.end - before.begin <= kLargestGuard;
}

// Arenas of threads begin at multiples of their largest size.
bool is_heap(const Mapping& m) {
  constexpr unsigned long kArena = 64 << 20;
  return m.path == "[heap]" || (m.path.empty() && m.flags[1] == 'w' && m.begin % kArena == 0);
}

// Too large for an arena or a stack: the shadow memory of a sanitizer has terabytes, whose page
// table takes seconds to read.
bool is_huge(const Mapping& m) { return m.path.empty() && m.end - m.begin > 1ul << 30; }

// Which pages of a mapping are in memory. Unlike /proc/self/smaps it is read for single mappings:
// those of weights and KV blocks have many pages, and are not needed here.
class ResidentPages {
 public:
  ResidentPages() : fd_(::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC)) {}
  ~ResidentPages() {
    if (fd_ >= 0) ::close(fd_);
  }
  ResidentPages(const ResidentPages&) = delete;

  uint64_t bytes(const Mapping& m) const {
    uint64_t pages = 0;
    for (unsigned long at = m.begin / page_, end = m.end / page_; at < end;) {
      std::array<uint64_t, 4096> entries;
      size_t wanted = std::min<size_t>(entries.size(), end - at) * sizeof(uint64_t);
      ssize_t got = ::pread(fd_, entries.data(), wanted, static_cast<off_t>(at * sizeof(uint64_t)));
      if (got < static_cast<ssize_t>(sizeof(uint64_t))) break;
      size_t n = static_cast<size_t>(got) / sizeof(uint64_t);
      pages += static_cast<uint64_t>(std::count_if(entries.begin(), entries.begin() + n,
                                                   [](uint64_t e) { return e >> 63 != 0; }));
      at += n;
    }
    return pages * page_;
  }

 private:
  const int fd_;
  const uint64_t page_ = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
};

}  // namespace

ProcessMemory process_memory() {
  ProcessMemory memory;
  memory.heap = mapped_heap_bytes();
  std::ifstream maps("/proc/self/maps");
  ResidentPages resident;
  Mapping before, now;
  for (std::string line; std::getline(maps, line); before = std::move(now)) {
    int path = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx %4s %*s %*s %*s %n", &now.begin, &now.end, now.flags,
                    &path) != 3)
      continue;
    now.path = line.substr(std::min<size_t>(static_cast<size_t>(path), line.size()));
    // Model files are shared mappings: they belong to the weights.
    if (now.path.starts_with("/") && now.flags[3] == 'p') memory.program += resident.bytes(now);
    if (is_huge(now)) continue;
    if (is_heap(now))
      memory.heap += resident.bytes(now);
    else if (is_stack(before, now))
      memory.stacks += resident.bytes(now);
  }
  return memory;
}

uint64_t resident_bytes() {
  std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen("/proc/self/statm", "r"), std::fclose);
  unsigned long long size = 0, resident = 0;
  if (file == nullptr || std::fscanf(file.get(), "%llu %llu", &size, &resident) != 2) return 0;
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace tokamak
