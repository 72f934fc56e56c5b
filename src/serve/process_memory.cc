#include "serve/process_memory.h"

#include <malloc.h>
#include <unistd.h>

#include <algorithm>
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

}  // namespace

ProcessMemory process_memory() {
  ProcessMemory memory;
  memory.heap = mapped_heap_bytes();
  std::ifstream maps("/proc/self/smaps");
  Mapping before, now;
  for (std::string line; std::getline(maps, line);) {
    Mapping next;
    int path = 0;
    unsigned long kib = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx %4s %*s %*s %*s %n", &next.begin, &next.end, next.flags,
                    &path) == 3) {
      next.path = line.substr(std::min<size_t>(static_cast<size_t>(path), line.size()));
      before = std::exchange(now, std::move(next));
    } else if (std::sscanf(line.c_str(), "Rss: %lu kB", &kib) == 1) {
      // Model files are shared mappings: they belong to the weights.
      if (now.path.starts_with("/") && now.flags[3] == 'p') memory.program += kib << 10;
      if (is_heap(now))
        memory.heap += kib << 10;
      else if (is_stack(before, now))
        memory.stacks += kib << 10;
    }
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
