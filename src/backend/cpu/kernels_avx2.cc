// x86-64 with AVX2, FMA and F16C. A vector of weights is 8 rows x 4 values of k; the four values of
// an activation row are broadcast to all lanes. Compiled once more with AVX-VNNI
// (kernels_avxvnni.cc): vpdpbusd takes unsigned weights and has sums of 32 bits.
#include "backend/cpu/simd_avx2.h"

#include "backend/cpu/vec_kernels.inc"

#include "backend/cpu/qpanel_shape.h"

namespace {

template <int F>
using Panel = PanelShape<F>;

// Bits `to` and up of the values of vector i, out of a plane whose bytes hold those of several
// vectors: those of the low half, then of the high half.
template <int bits, int to>
TK_INLINE void add_bits(const uint8_t* plane, int i, __m256i& lo, __m256i& hi) {
  constexpr int vectors = 4 / bits;
  __m256i h = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(plane) + i / vectors);
  __m256i mask = _mm256_set1_epi8(((1 << bits) - 1) << to);
  h = _mm256_srl_epi16(h, _mm_cvtsi32_si128(i % vectors * 2 * bits));
  __m256i second = to >= bits ? _mm256_slli_epi16(h, to >= bits ? to - bits : 0)
                              : _mm256_srli_epi16(h, to >= bits ? 0 : bits - to);
  lo = _mm256_or_si256(lo, _mm256_and_si256(_mm256_slli_epi16(h, to), mask));
  hi = _mm256_or_si256(hi, _mm256_and_si256(second, mask));
}

// Values are signed: vpmaddubsw takes their absolute values and the activations with their signs,
// for vpdpbusd they have 128 added.
template <int F>
constexpr bool kSigned = Panel<F>::bytes8 || F == kFIQ4_NL || F == kFIQ4_XS;
#if defined(__AVXVNNI__)
constexpr bool kVnni = true;
#else
constexpr bool kVnni = false;
#endif
// What the values are too large by: mxfp4 has 16 added.
template <int F>
constexpr int kOffset = kSigned<F>     ? kVnni ? 128 : 0
                        : F == kFMXFP4 ? 16
                                       : Panel<F>::offset;

// Vector i (0..7) of the low bits: the values of k < 16 (lo) and of k >= 16 (hi).
template <int F>
TK_INLINE void load_values(const uint8_t* low, int i, __m256i& lo, __m256i& hi) {
  using P = Panel<F>;
  const auto* p = reinterpret_cast<const __m256i*>(low);
  if (P::bytes8) {
    lo = _mm256_loadu_si256(p + i);
    hi = _mm256_loadu_si256(p + i + 8);
    return;
  }
  lo = hi = _mm256_setzero_si256();
  if (P::low) {
    __m256i v = _mm256_loadu_si256(p + i), nibble = _mm256_set1_epi8(15);
    lo = _mm256_and_si256(v, nibble);
    hi = _mm256_and_si256(_mm256_srli_epi16(v, 4), nibble);
  }
  if (P::table) {
    __m128i values = _mm_load_si128(reinterpret_cast<const __m128i*>(kTable<F>));
    __m256i table = _mm256_add_epi8(_mm256_broadcastsi128_si256(values),
                                    _mm256_set1_epi8(static_cast<char>(kOffset<F>)));
    lo = _mm256_shuffle_epi8(table, lo);
    hi = _mm256_shuffle_epi8(table, hi);
  }
  if (P::pairs) add_bits<2, P::pair_bit>(low + P::low, i, lo, hi);
  if (P::singles) add_bits<1, P::single_bit>(low + P::low + P::pairs, i, lo, hi);
}

// Products of 8 rows x 4 k with 4 activation values as pairs of 16 bits. The sums of two fit: 2 *
// 63 * 127 for unsigned values, 2 * 128 * 127 for signed ones.
template <int F>
TK_INLINE __m256i pair_products(__m256i w, __m256i x) {
  if (kSigned<F>) return _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w));
  return _mm256_maddubs_epi16(w, x);
}
TK_INLINE __m256i broadcast4(const int8_t* q) {
  int32_t v;
  memcpy(&v, q, 4);
  return _mm256_set1_epi32(v);
}

// The integer sum of 8 rows over 16 values of k. For values below 32 four pairs of products fit 16
// bits.
template <int F>
TK_INLINE __m256i half_dot(const __m256i* w, const int8_t* q) {
#if defined(__AVXVNNI__)
  __m256i dots = _mm256_setzero_si256();
  for (int g = 0; g < 4; ++g) dots = _mm256_dpbusd_avx_epi32(dots, w[g], broadcast4(q + 4 * g));
  return dots;
#else
  __m256i ones = _mm256_set1_epi16(1), p[4];
  for (int g = 0; g < 4; ++g) p[g] = pair_products<F>(w[g], broadcast4(q + 4 * g));
  if (kSigned<F> || F == kFQ6_K) {
    for (int g = 0; g < 4; ++g) p[g] = _mm256_madd_epi16(p[g], ones);
    return _mm256_add_epi32(_mm256_add_epi32(p[0], p[1]), _mm256_add_epi32(p[2], p[3]));
  }
  __m256i sum = _mm256_add_epi16(_mm256_add_epi16(p[0], p[1]), _mm256_add_epi16(p[2], p[3]));
  return _mm256_madd_epi16(sum, ones);
#endif
}

struct Scales {
  __m256 d[2], m[2];
  __m256i s0[2], s1[2], less[2];  // less: the minimums of both halves as 16-bit numbers
};
TK_INLINE __m128i load8(const uint8_t* p) {
  return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
}
// Half of 2^(e - 127), for 8 rows; the two smallest are subnormal.
TK_INLINE __m256 half_powers(const uint8_t* p) {
  __m256i e = _mm256_cvtepu8_epi32(load8(p)), least = _mm256_set1_epi32(0x00200000);
  __m256i v = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
  v = _mm256_max_epi32(_mm256_max_epi32(v, least), _mm256_slli_epi32(e, 22));
  return _mm256_castsi256_ps(v);
}

template <int F>
TK_INLINE Scales load_scales(const uint8_t* super, const uint8_t* block) {
  using P = Panel<F>;
  Scales s;
  V d, m;
  if (P::exponents)
    d = {{half_powers(super), half_powers(super + 8)}};
  else
    d = vload_f16(reinterpret_cast<const uint16_t*>(super));
  m = P::head == 64 ? vload_f16(reinterpret_cast<const uint16_t*>(super + 32)) : d;
  __m256 minus = _mm256_set1_ps(-0.0f);
  for (int i = 0; i < 2; ++i) {
    s.d[i] = d.r[i];
    s.m[i] = m.r[i];
    s.s0[i] = s.s1[i] = s.less[i] = _mm256_setzero_si256();
    if (P::zeros) {
      __m256 zero = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(load8(super + 32 + 8 * i)));
      s.m[i] = _mm256_xor_ps(minus, _mm256_mul_ps(s.d[i], zero));
    }
    const uint8_t *first = block + 8 * i, *second = first + 16;
    if (P::scaled_minimums) {
      __m256 sc = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(load8(first)));
      __m256 mn = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(load8(second)));
      s.d[i] = _mm256_mul_ps(s.d[i], sc);
      s.m[i] = _mm256_xor_ps(minus, _mm256_mul_ps(s.m[i], mn));
    } else if (P::half_minimums) {
      __m256i a = _mm256_cvtepu8_epi32(load8(first)), b = _mm256_cvtepu8_epi32(load8(second));
      __m256i nibble = _mm256_set1_epi32(15);
      s.m[i] = _mm256_xor_ps(minus, s.m[i]);
      s.s0[i] = _mm256_and_si256(a, nibble);
      s.s1[i] = _mm256_and_si256(b, nibble);
      s.less[i] =
          _mm256_or_si256(_mm256_srli_epi32(a, 4), _mm256_slli_epi32(_mm256_srli_epi32(b, 4), 16));
    } else if (P::halves) {
      s.s0[i] = _mm256_cvtepi8_epi32(load8(first));
      s.s1[i] = _mm256_cvtepi8_epi32(load8(second));
    } else if (P::scales) {
      s.d[i] = _mm256_mul_ps(s.d[i], _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(load8(first))));
    }
  }
  return s;
}

// columns: activation rows that are multiplied; tile: activation rows that X holds.
template <int F, int columns, int tile, class X>
TK_INLINE void qdot(const uint8_t* panel, const X* x, int64_t blocks, float* out) {
  using P = Panel<F>;
  __m256 acc[2][columns];
  for (int r = 0; r < 2; ++r)
    for (int c = 0; c < columns; ++c) acc[r][c] = _mm256_setzero_ps();
  for (int64_t b = 0; b < blocks; b += P::blocks, panel += P::bytes) {
    for (int sub = 0; sub < P::blocks; ++sub, ++x) {
      const uint8_t* block = panel + P::head + sub * P::block_bytes;
      Scales s = load_scales<F>(panel, block);
      const float *scale = reinterpret_cast<const float*>(x), *sum = scale + tile;
      const auto* isum = reinterpret_cast<const int32_t*>(sum + tile);
      for (int r = 0; r < 2; ++r) {
        __m256i lo[4], hi[4];
#pragma GCC unroll 4
        for (int g = 0; g < 4; ++g) load_values<F>(block + P::scales, g * 2 + r, lo[g], hi[g]);
#pragma GCC unroll 4
        for (int c = 0; c < columns; ++c) {
          __m256i a = half_dot<F>(lo, x->q + c * 32), h = half_dot<F>(hi, x->q + c * 32 + 16);
          int32_t sum0 = kOffset<F> * isum[c], sum1 = kOffset<F> * isum[tile + c];
          __m256i dot;
          if (P::halves) {
            a = _mm256_sub_epi32(a, _mm256_set1_epi32(sum0));
            h = _mm256_sub_epi32(h, _mm256_set1_epi32(sum1));
            dot = _mm256_add_epi32(_mm256_mullo_epi32(a, s.s0[r]), _mm256_mullo_epi32(h, s.s1[r]));
          } else {
            dot = _mm256_add_epi32(a, h);
            if (kOffset<F> != 0) dot = _mm256_sub_epi32(dot, _mm256_set1_epi32(sum0 + sum1));
          }
          __m256 both = _mm256_mul_ps(s.d[r], _mm256_set1_ps(scale[c]));
          acc[r][c] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), both, acc[r][c]);
          if (P::minimum) acc[r][c] = _mm256_fmadd_ps(s.m[r], _mm256_set1_ps(sum[c]), acc[r][c]);
          if (P::half_minimums) {
            __m256i sums = _mm256_set1_epi32((isum[c] & 0xffff) | isum[tile + c] * 65536);
            __m256 less = _mm256_cvtepi32_ps(_mm256_madd_epi16(s.less[r], sums));
            both = _mm256_mul_ps(s.m[r], _mm256_set1_ps(scale[c]));
            acc[r][c] = _mm256_fmadd_ps(less, both, acc[r][c]);
          }
        }
      }
    }
  }
  for (int c = 0; c < columns; ++c)
    for (int r = 0; r < 2; ++r) _mm256_storeu_ps(out + c * kPanel + 8 * r, acc[r][c]);
}

template <int F>
void qdot1(const uint8_t* panel, const XBlock1* x, int64_t blocks, float* out) {
  qdot<F, 1, 1>(panel, x, blocks, out);
}
template <int F>
void qdot4(const uint8_t* panel, const XBlock4* x, int64_t blocks, int rows, float* out) {
  if (rows == 2) return qdot<F, 2, 4>(panel, x, blocks, out);
  if (rows == 3) return qdot<F, 3, 4>(panel, x, blocks, out);
  qdot<F, 4, 4>(panel, x, blocks, out);
}

template <int F>
void fill_q(tokamak::cpu::KernelTable& t) {
  if constexpr (F < tokamak::cpu::kQFormats) {
    t.qdot1[F] = qdot1<F>;
    t.qdot4[F] = qdot4<F>;
    fill_q<F + 1>(t);
  }
}

}  // namespace

namespace tokamak::cpu {

#if defined(__AVXVNNI__)
const KernelTable* avxvnni_table() {
#else
const KernelTable* avx2_table() {
#endif
  static const KernelTable table = [] {
    KernelTable t{};
    t.name = kVnni ? "avxvnni" : "avx2";
    t.style = {4, 32, kVnni ? 0x80 : 0, 0, false};
    fill_vector_kernels<false>(t);
    fill_q<0>(t);
    return t;
  }();
  return &table;
}

}  // namespace tokamak::cpu
