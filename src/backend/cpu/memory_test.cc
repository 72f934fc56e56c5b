#include "backend/cpu/memory.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <vector>

namespace tokamak::cpu {
namespace {

// The ledger counts bytes(); what lies before the buffer must cost nothing, also with huge pages.
TEST(Buffer, ItsLeadIsNeverResident) {
  constexpr uint64_t kPage = 4096;
  for (uint64_t lead = kPage; lead < kHugePage; lead += kHugePage / 5 / kPage * kPage) {
    Buffer buffer(3 * kHugePage, lead);
    std::memset(buffer.data(), 1, buffer.bytes());
    std::vector<unsigned char> pages(lead / kPage);
    ASSERT_EQ(mincore(buffer.data() - lead, lead, pages.data()), 0);
    EXPECT_EQ(std::count_if(pages.begin(), pages.end(), [](unsigned char p) { return p & 1; }), 0)
        << lead;
  }
}

TEST(Buffer, CountsWhatIsNotTouched) {
  constexpr uint64_t kPage = 4096;
  Buffer small(100 * kPage), none;
  EXPECT_EQ(small.untouched(), 100 * kPage);
  for (uint64_t page : {0, 7, 99}) small.data()[page * kPage] = 1;
  EXPECT_EQ(small.untouched(), 97 * kPage);
  EXPECT_EQ(none.untouched(), 0u);
  Buffer large(40 << 20, 3 * kPage);  // more pages than are asked for at once
  EXPECT_EQ(large.untouched(), large.bytes());
  std::memset(large.data(), 1, large.bytes());
  EXPECT_EQ(large.untouched(), 0u);
}

}  // namespace
}  // namespace tokamak::cpu
