#include "api/resident.h"

#include <malloc.h>
#include <sys/mman.h>

#include <cstdio>
#include <fstream>
#include <string>

namespace tokamak {

void release_load_memory(bool files) {
#ifdef __GLIBC__
  malloc_trim(0);
#endif
  if (!files) return;
  // Model files are the read-only shared mappings (base/file.h). A driver may have such mappings of
  // its device, which must stay: the next access would be a bus error.
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    unsigned long begin = 0, end = 0;
    char flags[5] = {};
    if (std::sscanf(line.c_str(), "%lx-%lx %4s", &begin, &end, flags) != 3) continue;
    const size_t path = line.find('/');
    if (std::string_view(flags) == "r--s" && path != std::string::npos &&
        line.compare(path, 5, "/dev/") != 0)
      madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
  }
}

}  // namespace tokamak
