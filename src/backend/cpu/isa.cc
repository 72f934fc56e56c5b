#include "backend/cpu/isa.h"

#include <cstdlib>

#include "base/error.h"

#if defined(__aarch64__)
#include <sys/auxv.h>
#endif

namespace tokamak::cpu {

#if !defined(__aarch64__)
const KernelTable* neon_table() { return nullptr; }
const KernelTable* i8mm_table() { return nullptr; }
#endif
#if !defined(__x86_64__)
const KernelTable* avx2_table() { return nullptr; }
const KernelTable* avx512_table() { return nullptr; }
#endif

namespace {

#if defined(__aarch64__)
// From the kernel's user-space ABI; spelled out because older headers lack some.
constexpr unsigned long kHwcapAsimdDp = 1ul << 20;
constexpr unsigned long kHwcap2I8mm = 1ul << 13;

bool runs(const KernelTable* table) {
  if (!table) return false;
  bool dotprod = (getauxval(AT_HWCAP) & kHwcapAsimdDp) != 0;
  bool i8mm = (getauxval(AT_HWCAP2) & kHwcap2I8mm) != 0;
  if (table == neon_table()) return dotprod;
  if (table == i8mm_table()) return dotprod && i8mm;
  return true;
}
#elif defined(__x86_64__)
bool runs(const KernelTable* table) {
  if (!table) return false;
  __builtin_cpu_init();

  bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
              __builtin_cpu_supports("f16c");
  bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                __builtin_cpu_supports("avx512vnni");
  if (table == avx2_table()) return avx2;
  if (table == avx512_table()) return avx512;
  return true;
}
#else
bool runs(const KernelTable* table) { return table != nullptr; }
#endif

}  // namespace

std::vector<const KernelTable*> available_tables() {
  std::vector<const KernelTable*> out;
  for (const KernelTable* t :
       {scalar_table(), neon_table(), i8mm_table(), avx2_table(), avx512_table()})
    if (t && runs(t)) out.push_back(t);
  return out;
}

const KernelTable* choose_table() {
  std::vector<const KernelTable*> tables = available_tables();
  const char* wanted = std::getenv("TOKAMAK_ISA");
  if (!wanted || !*wanted) return tables.back();
  std::string names;
  for (const KernelTable* t : tables) {
    if (std::string_view(wanted) == t->name) return t;
    names += names.empty() ? t->name : std::string(", ") + t->name;
  }
  fail(ErrorCode::kInvalidArgument, "TOKAMAK_ISA={}: this machine runs {}", wanted, names);
}

}  // namespace tokamak::cpu
