#include "backend/cpu/peak.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#if defined(__aarch64__)
#include <arm_neon.h>
#elif defined(__x86_64__)
#include <immintrin.h>
#endif

namespace tokamak::cpu {
namespace {

template <class F>
double seconds_on_all(int threads, F&& work) {
  auto start = std::chrono::steady_clock::now();
  std::vector<std::thread> pool;
  for (int t = 0; t < threads; ++t) pool.emplace_back([&, t] { work(t); });
  for (std::thread& t : pool) t.join();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Sixteen independent chains in registers hide the latency of one; OP sees each as x##N.
#define TK_CHAINS(OP) \
  OP(0)               \
  OP(1) OP(2) OP(3) OP(4) OP(5) OP(6) OP(7) OP(8) OP(9) OP(10) OP(11) OP(12) OP(13) OP(14) OP(15)
constexpr double kChains = 16;
constexpr int kRounds = 400000;  // about a millisecond: some tries are not interrupted
constexpr int kTries = 40;

// Each returns a value that depends on all of its work, so that nothing is optimised away.
struct Probe {
  float (*run)(int rounds, float start) = nullptr;
  double operations = 0;  // of one round
};

#if defined(__aarch64__)
float f32_neon(int rounds, float start) {
  float32x4_t scale = vdupq_n_f32(0.999f), shift = vdupq_n_f32(0.001f);
#define TK_START(n) float32x4_t x##n = vdupq_n_f32(start + n);
#define TK_STEP(n) x##n = vfmaq_f32(x##n, shift, scale);
#define TK_SUM(n) shift = vaddq_f32(shift, x##n);
  TK_CHAINS(TK_START)
  for (int r = 0; r < rounds; ++r) {
    TK_CHAINS(TK_STEP)
  }
  TK_CHAINS(TK_SUM)
  return vaddvq_f32(shift);
#undef TK_START
#undef TK_STEP
#undef TK_SUM
}

// Operands are loaded again in each round, as in a kernel: Neoverse-V1 takes only two of these
// instructions a cycle, instead of four, while both operands are registers that stay as they are.
template <class Vector>
Vector loaded(const Vector* from) {
  Vector v;
  asm volatile("ldr %q0, [%1]" : "=w"(v) : "r"(from), "m"(*from));
  return v;
}

#define TK_I8_PROBE(name, feature, type_of_step)                                           \
  __attribute__((target("arch=armv8.2-a+" feature))) float name(int rounds, float start) { \
    int8x16_t x = vdupq_n_s8(static_cast<int8_t>(start + 3)), y = vdupq_n_s8(5);           \
    TK_CHAINS(TK_START)                                                                    \
    for (int r = 0; r < rounds; ++r) {                                                     \
      int8x16_t a = loaded(&x), b = loaded(&y);                                            \
      TK_CHAINS(type_of_step)                                                              \
    }                                                                                      \
    int32x4_t sum = vdupq_n_s32(0);                                                        \
    TK_CHAINS(TK_SUM)                                                                      \
    return static_cast<float>(vaddvq_s32(sum));                                            \
  }
#define TK_START(n) int32x4_t x##n = vdupq_n_s32(n);
#define TK_SUM(n) sum = vaddq_s32(sum, x##n);
#define TK_DOT(n) x##n = vdotq_s32(x##n, a, b);
#define TK_MMLA(n) x##n = vmmlaq_s32(x##n, a, b);
TK_I8_PROBE(i8_dot, "dotprod", TK_DOT)
TK_I8_PROBE(i8_mmla, "i8mm", TK_MMLA)
#undef TK_START
#undef TK_SUM
#undef TK_DOT
#undef TK_MMLA
#undef TK_I8_PROBE

__attribute__((target("arch=armv8.2-a+bf16"))) float bf16_mmla(int rounds, float start) {
  float32x4_t sum = vdupq_n_f32(0);
  uint16x8_t x = vdupq_n_u16(static_cast<uint16_t>(0x3f80 + start)), y = vdupq_n_u16(0x3a83);
#define TK_START(n) float32x4_t x##n = vdupq_n_f32(n);
#define TK_STEP(n) x##n = vbfmmlaq_f32(x##n, a, b);
#define TK_SUM(n) sum = vaddq_f32(sum, x##n);
  TK_CHAINS(TK_START)
  for (int r = 0; r < rounds; ++r) {
    bfloat16x8_t a = vreinterpretq_bf16_u16(loaded(&x)), b = vreinterpretq_bf16_u16(loaded(&y));
    TK_CHAINS(TK_STEP)
  }
  TK_CHAINS(TK_SUM)
  return vaddvq_f32(sum);
#undef TK_START
#undef TK_STEP
#undef TK_SUM
}

Probe f32_probe(std::string_view) { return {f32_neon, kChains * 4 * 2}; }
Probe bf16_probe(std::string_view level) {
  return level == "bf16" ? Probe{bf16_mmla, kChains * 16 * 2} : Probe{};
}
Probe i8_probe(std::string_view level) {
  if (level == "i8mm" || level == "bf16") return {i8_mmla, kChains * 32 * 2};
  return level == "neon" ? Probe{i8_dot, kChains * 16 * 2} : Probe{};
}
#elif defined(__x86_64__)
__attribute__((target("avx512f"))) float f32_avx512(int rounds, float start) {
  __m512 scale = _mm512_set1_ps(0.999f), shift = _mm512_set1_ps(0.001f);
#define TK_START(n) __m512 x##n = _mm512_set1_ps(start + n);
#define TK_STEP(n) x##n = _mm512_fmadd_ps(shift, scale, x##n);
#define TK_SUM(n) shift = _mm512_add_ps(shift, x##n);
  TK_CHAINS(TK_START)
  for (int r = 0; r < rounds; ++r) {
    TK_CHAINS(TK_STEP)
  }
  TK_CHAINS(TK_SUM)
  float lanes[16];  // gcc 12 warns of its own _mm512_reduce_add_ps
  _mm512_storeu_ps(lanes, shift);
  return lanes[0] + lanes[15];
#undef TK_START
#undef TK_STEP
#undef TK_SUM
}

__attribute__((target("avx2,fma"))) float f32_avx2(int rounds, float start) {
  __m256 scale = _mm256_set1_ps(0.999f), shift = _mm256_set1_ps(0.001f);
#define TK_START(n) __m256 x##n = _mm256_set1_ps(start + n);
#define TK_STEP(n) x##n = _mm256_fmadd_ps(shift, scale, x##n);
#define TK_SUM(n) shift = _mm256_add_ps(shift, x##n);
  TK_CHAINS(TK_START)
  for (int r = 0; r < rounds; ++r) {
    TK_CHAINS(TK_STEP)
  }
  TK_CHAINS(TK_SUM)
  return _mm256_cvtss_f32(shift);
#undef TK_START
#undef TK_STEP
#undef TK_SUM
}

__attribute__((target("avx512f,avx512vnni"))) float i8_vnni(int rounds, float start) {
  __m512i a = _mm512_set1_epi8(static_cast<char>(start + 3)), b = _mm512_set1_epi8(5);
#define TK_START(n) __m512i x##n = _mm512_set1_epi32(n);
// In place: with the intrinsic gcc 12 copies each sum, and half of the peak is measured.
#define TK_STEP(n) asm("vpdpbusd %2, %1, %0" : "+v"(x##n) : "v"(a), "v"(b));
#define TK_SUM(n) sum = _mm512_add_epi32(sum, x##n);
  TK_CHAINS(TK_START)
  for (int r = 0; r < rounds; ++r) {
    TK_CHAINS(TK_STEP)
  }
  __m512i sum = _mm512_setzero_si512();
  TK_CHAINS(TK_SUM)
  int lanes[16];
  _mm512_storeu_si512(lanes, sum);
  return static_cast<float>(lanes[0] + lanes[15]);
#undef TK_START
#undef TK_STEP
#undef TK_SUM
}

__attribute__((target("avx2,avxvnni"))) float i8_avxvnni(int rounds, float start) {
  __m256i a = _mm256_set1_epi8(static_cast<char>(start + 3)), b = _mm256_set1_epi8(5);
#define TK_START(n) __m256i x##n = _mm256_set1_epi32(n);
#define TK_STEP(n) asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(x##n) : "x"(a), "x"(b));
#define TK_SUM(n) sum = _mm256_add_epi32(sum, x##n);
  TK_CHAINS(TK_START)
  for (int r = 0; r < rounds; ++r) {
    TK_CHAINS(TK_STEP)
  }
  __m256i sum = _mm256_setzero_si256();
  TK_CHAINS(TK_SUM)
  return static_cast<float>(_mm256_extract_epi32(sum, 0));
#undef TK_START
#undef TK_STEP
#undef TK_SUM
}

// A product of unsigned and signed bytes, summed in pairs to 16 and then to 32 bits.
__attribute__((target("avx2"))) float i8_avx2(int rounds, float start) {
  __m256i a = _mm256_set1_epi8(static_cast<char>(start + 3)), b = _mm256_set1_epi8(5),
          ones = _mm256_set1_epi16(1);
#define TK_START(n) __m256i x##n = _mm256_set1_epi32(n);
#define TK_STEP(n)         \
  x##n = _mm256_add_epi32( \
      x##n, _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_xor_si256(a, x##n), b), ones));
#define TK_SUM(n) sum = _mm256_add_epi32(sum, x##n);
  TK_CHAINS(TK_START)
  for (int r = 0; r < rounds; ++r) {
    TK_CHAINS(TK_STEP)
  }
  __m256i sum = _mm256_setzero_si256();
  TK_CHAINS(TK_SUM)
  return static_cast<float>(_mm256_extract_epi32(sum, 0));
#undef TK_START
#undef TK_STEP
#undef TK_SUM
}

struct alignas(64) TileShapes {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16};
};

// Four sums of 16 x 16 over 64 values of k. The tiles hold zeros: the time is the same.
float i8_amx(int rounds, float) {
  TileShapes config;
  asm volatile("ldtilecfg %0" : : "m"(config));
  for (int r = 0; r < rounds / 4; ++r)
    asm volatile(
        "tdpbssd %%tmm5, %%tmm4, %%tmm0\n\ttdpbssd %%tmm5, %%tmm4, %%tmm1\n\t"
        "tdpbssd %%tmm5, %%tmm4, %%tmm2\n\ttdpbssd %%tmm5, %%tmm4, %%tmm3" ::
            : "memory");
  asm volatile("tilerelease");
  return 0;
}

// The same of bf16 over 32 values of k.
float bf16_amx(int rounds, float) {
  TileShapes config;
  asm volatile("ldtilecfg %0" : : "m"(config));
  for (int r = 0; r < rounds / 4; ++r)
    asm volatile(
        "tdpbf16ps %%tmm5, %%tmm4, %%tmm0\n\ttdpbf16ps %%tmm5, %%tmm4, %%tmm1\n\t"
        "tdpbf16ps %%tmm5, %%tmm4, %%tmm2\n\ttdpbf16ps %%tmm5, %%tmm4, %%tmm3" ::
            : "memory");
  asm volatile("tilerelease");
  return 0;
}

Probe f32_probe(std::string_view level) {
  if (level == "avx512" || level == "amx") return {f32_avx512, kChains * 16 * 2};
  bool has = level == "avx2" || level == "avxvnni";
  return has ? Probe{f32_avx2, kChains * 8 * 2} : Probe{};
}
Probe bf16_probe(std::string_view level) {
  return level == "amx" ? Probe{bf16_amx, 16.0 * 16 * 32 * 2} : Probe{};
}
Probe i8_probe(std::string_view level) {
  if (level == "amx")
    return {i8_amx, 16.0 * 16 * 64 * 2};  // four products in a fourth of the rounds
  if (level == "avx512") return {i8_vnni, kChains * 64 * 2};
  if (level == "avxvnni") return {i8_avxvnni, kChains * 32 * 2};
  return level == "avx2" ? Probe{i8_avx2, kChains * 32 * 2} : Probe{};
}
#else
Probe f32_probe(std::string_view) { return {}; }
Probe i8_probe(std::string_view) { return {}; }
Probe bf16_probe(std::string_view) { return {}; }
#endif

double measure_peak(Probe probe, int threads) {
  if (!probe.run) return 0;
  std::vector<float> results(static_cast<size_t>(threads));
  double best = 0;
  for (int i = 0; i < kTries; ++i) {
    double s = seconds_on_all(threads, [&](int t) {
      results[static_cast<size_t>(t)] = probe.run(kRounds, static_cast<float>(t));
    });
    best = std::max(best, probe.operations * kRounds * threads / s);
  }
  volatile float keep = results[0];
  (void)keep;
  return best;
}

}  // namespace

ArithmeticPeak arithmetic_peak(std::string_view level, int threads) {
  return {measure_peak(f32_probe(level), threads), measure_peak(i8_probe(level), threads),
          measure_peak(bf16_probe(level), threads)};
}

}  // namespace tokamak::cpu
