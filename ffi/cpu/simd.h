// Several rays at a time: the vector half of core/portable.h's vocabulary. Included only by
// tiles.cc, which is compiled once for each instruction set, with everything inlined: no function
// that was compiled for one machine may be linked into code that runs on another.
#pragma once

#include <cstdint>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "core/portable.h"

namespace jaxrec {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#else
constexpr int kLanes = 8;
#endif

typedef float FloatLanes __attribute__((vector_size(4 * kLanes), aligned(4 * kLanes)));
typedef std::int32_t IntLanes __attribute__((vector_size(4 * kLanes), aligned(4 * kLanes)));

template <>
struct Lane<FloatLanes> {
  using Mask = IntLanes;
};

JAXREC_HD FloatLanes Splat(float x) { return FloatLanes{} + x; }
JAXREC_HD FloatLanes Select(IntLanes mask, FloatLanes yes, FloatLanes no) {
  return mask ? yes : no;
}
JAXREC_HD IntLanes Select(IntLanes mask, IntLanes yes, IntLanes no) { return mask ? yes : no; }
JAXREC_HD IntLanes Not(IntLanes mask) { return ~mask; }
JAXREC_HD FloatLanes Max(FloatLanes a, FloatLanes b) { return a > b ? a : b; }
JAXREC_HD FloatLanes Ramp(FloatLanes a, float b) { return Max(1.0f - a * b, FloatLanes{}); }
JAXREC_HD FloatLanes Min(FloatLanes a, FloatLanes b) { return a < b ? a : b; }

JAXREC_HD FloatLanes Sqrt(FloatLanes x) {
#if defined(__AVX512F__)
  return _mm512_sqrt_ps(x);
#elif defined(__AVX2__)
  return _mm256_sqrt_ps(x);
#else
  FloatLanes y;
  for (int i = 0; i < kLanes; ++i) y[i] = __builtin_sqrtf(x[i]);
  return y;
#endif
}

// One bit for each lane whose mask is set.
JAXREC_HD std::uint32_t Bits(IntLanes mask) {
#if defined(__AVX512F__)
  return _mm512_cmplt_epi32_mask(reinterpret_cast<__m512i>(mask), _mm512_setzero_si512());
#elif defined(__AVX2__)
  return static_cast<std::uint32_t>(_mm256_movemask_ps(reinterpret_cast<__m256>(mask)));
#else
  std::uint32_t bits = 0;
  for (int i = 0; i < kLanes; ++i) bits |= static_cast<std::uint32_t>(mask[i] & 1) << i;
  return bits;
#endif
}
JAXREC_HD bool Any(IntLanes mask) { return Bits(mask) != 0; }

JAXREC_HD FloatLanes Load(const float* p) {
  FloatLanes x;
  __builtin_memcpy(&x, p, sizeof(x));
  return x;
}

JAXREC_HD float Sum(FloatLanes x) {
  // Pairwise: the order of additions is fixed by the lane count alone.
  float lanes[kLanes];
  __builtin_memcpy(lanes, &x, sizeof(x));
  for (int width = kLanes / 2; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  return lanes[0];
}

// 2^x to 1.5 units in the last place for |x| < 126; 0 below, finite above. Range reduction to
// |r| <= 1/2 and the minimax polynomial of e^r in r ln(2) (Cody and Waite 1980, chapter 6).
JAXREC_HD FloatLanes Exp2(FloatLanes x) {
  const FloatLanes low = Splat(-126.0f), high = Splat(127.0f);
  const FloatLanes clamped = Max(Min(x, high), low);
  const float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  const FloatLanes shifted = clamped + kRound;
  const FloatLanes r = (clamped - (shifted - kRound)) * kLn2;
  FloatLanes p = Splat(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  const IntLanes power = (reinterpret_cast<IntLanes>(shifted) - 0x4B400000) << 23;
  const FloatLanes y = reinterpret_cast<FloatLanes>(reinterpret_cast<IntLanes>(p) + power);
  return Select(x < low, FloatLanes{}, y);
}

// Logarithm to the base 2 of a positive normal number to about 2 units in the last place.
JAXREC_HD FloatLanes Log2(FloatLanes x) {
  IntLanes bits = reinterpret_cast<IntLanes>(x);
  const IntLanes exponent = ((bits - 0x3f3504f3) >> 23);  // so that the rest lies about 1
  bits = bits - (exponent << 23);
  const FloatLanes f = reinterpret_cast<FloatLanes>(bits) - 1.0f;
  const FloatLanes n = __builtin_convertvector(exponent, FloatLanes);
  // log(1 + f) = 2 atanh(t), t = f / (2 + f).
  const FloatLanes t = f / (2.0f + f), t2 = t * t;
  FloatLanes p = Splat(0.2222222f);
  p = p * t2 + 0.2857143f;
  p = p * t2 + 0.4f;
  p = p * t2 + 0.66666667f;
  return n + kLog2E * (2.0f * t + t * t2 * p);
}

JAXREC_HD FloatLanes FloorLog2(FloatLanes x) {
  const IntLanes exponent = (reinterpret_cast<IntLanes>(x) >> 23) - 127;
  return __builtin_convertvector(exponent, FloatLanes);
}

}  // namespace jaxrec
