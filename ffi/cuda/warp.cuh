// What the threads of a warp find together.
#pragma once

#include <cuda_runtime.h>

namespace jaxrec {

__device__ __forceinline__ float WarpMax(float x) {
  for (int d = 16; d > 0; d /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, d));
  return x;
}
__device__ __forceinline__ unsigned WarpMax(unsigned x) {
#if __CUDA_ARCH__ >= 800
  return __reduce_max_sync(~0u, x);
#else
  for (int d = 16; d > 0; d /= 2) x = max(x, __shfl_xor_sync(~0u, x, d));
  return x;
#endif
}
// In a fixed order, so that results repeat to the bit.
__device__ __forceinline__ float WarpSum(float x) {
  for (int d = 16; d > 0; d /= 2) x += __shfl_xor_sync(~0u, x, d);
  return x;
}

__device__ __forceinline__ int WarpSum(int x) {
  for (int d = 16; d > 0; d /= 2) x += __shfl_xor_sync(~0u, x, d);
  return x;
}

// The sum over this lane and those before it.
__device__ __forceinline__ int WarpScan(int x) {
  const int lane = threadIdx.x % 32;
  for (int d = 1; d < 32; d *= 2) {
    const int other = __shfl_up_sync(~0u, x, d);
    if (lane >= d) x += other;
  }
  return x;
}

// Reduces 8 values over the warp: lane 4 k (k < 8) ends with that of value Reduced(lane). Half of
// the values change lanes at each step, 9 shuffles for what would be 40 one value at a time.
template <typename Combine>
__device__ __forceinline__ float ReduceEight(float (&v)[8], Combine combine) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int width = 4, d = 16; width > 0; width /= 2, d /= 2) {
    const bool upper = lane & d;
#pragma unroll
    for (int k = 0; k < width; ++k) {
      const float keep = upper ? v[k + width] : v[k], send = upper ? v[k] : v[k + width];
      v[k] = combine(keep, __shfl_xor_sync(~0u, send, d));
    }
  }
  float all = v[0];
  all = combine(all, __shfl_xor_sync(~0u, all, 2));
  return combine(all, __shfl_xor_sync(~0u, all, 1));
}
__device__ __forceinline__ int Reduced(int lane) {
  return (lane >> 2 & 1) + (lane >> 3 & 1) * 2 + (lane >> 4 & 1) * 4;
}

}  // namespace jaxrec
