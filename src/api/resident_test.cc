#include "api/resident.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <string>

namespace tokamak {
namespace {

// Whether this process has the page of an address in its page table.
bool page_is_mapped(const void* address) {
  int fd = open("/proc/self/pagemap", O_RDONLY);
  uint64_t entry = 0;
  const auto page = static_cast<off_t>(reinterpret_cast<uintptr_t>(address) / 4096 * 8);
  const bool read = fd >= 0 && pread(fd, &entry, sizeof entry, page) == sizeof entry;
  if (fd >= 0) close(fd);
  EXPECT_TRUE(read);
  return entry >> 63 != 0;
}

// One page of a file, mapped like a model file and touched.
const void* map_page(const char* path, bool make) {
  int fd = open(path, make ? O_RDWR | O_CREAT : O_RDWR, 0600);
  EXPECT_TRUE(!make || ftruncate(fd, 4096) == 0);
  void* page = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (page == MAP_FAILED) return nullptr;
  *static_cast<volatile char*>(page) = 1;
  EXPECT_EQ(mprotect(page, 4096, PROT_READ), 0);
  return page;
}

// A driver's mapping of its device does not survive it: reading from it is a bus error.
TEST(ReleaseLoadMemory, DropsPagesOfFilesAndLeavesThoseOfDevices) {
  if (sysconf(_SC_PAGESIZE) != 4096) GTEST_SKIP() << "pages of another size";
  const std::string path = ::testing::TempDir() + "resident_test_page";
  const void *file = map_page(path.c_str(), true), *device = map_page("/dev/zero", false);
  ASSERT_TRUE(file && device);
  ASSERT_TRUE(page_is_mapped(file) && page_is_mapped(device));
  release_load_memory(true);
  EXPECT_FALSE(page_is_mapped(file));
  EXPECT_TRUE(page_is_mapped(device));
  munmap(const_cast<void*>(file), 4096);
  munmap(const_cast<void*>(device), 4096);
  unlink(path.c_str());
}

}  // namespace
}  // namespace tokamak
