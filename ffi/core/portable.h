// The one place that knows whether we are compiled by nvcc, and the scalar half of the small
// vocabulary in which core/ writes its mathematics. A backend that works on several rays at a
// time supplies the same functions for its vector type.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#ifdef __CUDACC__
#define JAXREC_HD __host__ __device__ __forceinline__
#else
#define JAXREC_HD inline __attribute__((always_inline))
#endif

namespace jaxrec {

// Types that go with a number type T: the result of comparing two T.
template <typename T>
struct Lane;
template <>
struct Lane<float> {
  using Mask = bool;
};
template <typename T>
using MaskOf = typename Lane<T>::Mask;

JAXREC_HD float Select(bool mask, float yes, float no) { return mask ? yes : no; }
JAXREC_HD bool Not(bool mask) { return !mask; }
JAXREC_HD float Sqrt(float x) { return sqrtf(x); }
JAXREC_HD float Max(float a, float b) { return a > b ? a : b; }
JAXREC_HD float Min(float a, float b) { return a < b ? a : b; }
// max(1 - a b, 0) where a b is not negative.
#ifdef __CUDA_ARCH__
JAXREC_HD float Ramp(float a, float b) {
  float y;
  asm("fma.rn.ftz.sat.f32 %0, %1, %2, 0f3F800000;" : "=f"(y) : "f"(-a), "f"(b));
  return y;
}
JAXREC_HD float InverseSqrt(float x) { return rsqrtf(x); }
// Of weights: relative errors of a few 1e-7 times |x|, of which only small |x| matter.
JAXREC_HD float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
JAXREC_HD float Log2(float x) { return __log2f(x); }
#else
JAXREC_HD float Ramp(float a, float b) { return Max(1.0f - a * b, 0.0f); }
JAXREC_HD float InverseSqrt(float x) { return 1.0f / sqrtf(x); }
JAXREC_HD float Exp2(float x) { return exp2f(x); }
JAXREC_HD float Log2(float x) { return log2f(x); }
#endif

// Logarithm to the base 2 of x rounded down to a power of two; -127 for 0. x is not negative.
JAXREC_HD float FloorLog2(float x) {
  std::int32_t bits;
  memcpy(&bits, &x, sizeof(bits));
  return static_cast<float>((bits >> 23) - 127);
}

constexpr float kLog2E = 1.44269504f, kLn2 = 0.693147181f;

}  // namespace jaxrec
