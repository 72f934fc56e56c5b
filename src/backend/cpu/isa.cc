#include "backend/cpu/isa.h"

#include <sys/utsname.h>

#include <cstdlib>
#include <fstream>

#include "base/error.h"

#if defined(__aarch64__)
#include <sys/auxv.h>
#elif defined(__x86_64__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace tokamak::cpu {

#if defined(__x86_64__)
namespace {

// The matrix unit's registers are larger than what the kernel saves for every thread: a process has
// to ask once. Constants of the kernel's user-space ABI, spelled out because older headers lack
// them: ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA.
bool may_use_tiles() {
  static const bool granted =
      __builtin_cpu_supports("amx-tile") && __builtin_cpu_supports("amx-int8") &&
      __builtin_cpu_supports("amx-bf16") && ::syscall(SYS_arch_prctl, 0x1023, 18) == 0;
  return granted;
}

}  // namespace
#endif

// A level's table function is itself compiled for that level: it is called only where the level
// runs.
std::vector<const KernelTable*> available_tables() {
  std::vector<const KernelTable*> out = {scalar_table()};
#if defined(__aarch64__)
  // Bits of the kernel's user-space ABI, spelled out because older headers lack some.
  bool dotprod = (getauxval(AT_HWCAP) & 1ul << 20) != 0;
  bool fhm = (getauxval(AT_HWCAP) & 1ul << 23) != 0;  // products of halves added to f32
  bool i8mm = (getauxval(AT_HWCAP2) & 1ul << 13) != 0 && fhm;
  if (dotprod) out.push_back(neon_table());
  bool bf16 = (getauxval(AT_HWCAP2) & 1ul << 14) != 0;
  if (dotprod && i8mm) out.push_back(i8mm_table());
  if (dotprod && i8mm && bf16) out.push_back(bf16_table());
#elif defined(__x86_64__)
  __builtin_cpu_init();
  bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
              __builtin_cpu_supports("f16c");
  bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                __builtin_cpu_supports("avx512vnni");
  if (avx2) out.push_back(avx2_table());
  if (avx2 && __builtin_cpu_supports("avxvnni")) out.push_back(avxvnni_table());
  if (avx512) out.push_back(avx512_table());
  if (avx512 && may_use_tiles()) out.push_back(amx_table());
#endif
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
  fail(ErrorCode::kInvalidArgument, "TOKAMAK_ISA={}: use one of {}, which this machine runs",
       wanted, names);
}

std::string processor_name() {
  utsname name{};
  std::string machine = ::uname(&name) == 0 ? name.machine : "unknown", implementer;
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    size_t colon = line.find(": ");
    if (colon == std::string::npos) continue;
    std::string value = line.substr(colon + 2);
    if (line.starts_with("model name")) return value;
    if (line.starts_with("CPU implementer")) implementer = value;
    if (line.starts_with("CPU part"))
      return fmt::format("{}, implementer {}, part {}", machine, implementer, value);
  }
  return machine;
}

std::string measured_on(int threads) {
  return fmt::format("{}, {}, {} threads", processor_name(), choose_table()->name, threads);
}

}  // namespace tokamak::cpu
