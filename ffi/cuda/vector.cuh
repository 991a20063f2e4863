// Vectors of three floats.
#pragma once

#include <cuda_runtime.h>

namespace jaxrec {

struct Vec {
  float x, y, z;
};
__device__ __forceinline__ Vec Minus(Vec a, Vec b) { return {a.x - b.x, a.y - b.y, a.z - b.z}; }
__device__ __forceinline__ float Dot(Vec a, Vec b) { return a.x * b.x + a.y * b.y + a.z * b.z; }
__device__ __forceinline__ float Length(Vec a) { return sqrtf(Dot(a, a)); }
__device__ __forceinline__ Vec Times(float s, Vec a) { return {s * a.x, s * a.y, s * a.z}; }
__device__ __forceinline__ Vec Cross(Vec a, Vec b) {
  return {a.y * b.z - a.z * b.y, a.z * b.x - a.x * b.z, a.x * b.y - a.y * b.x};
}

}  // namespace jaxrec
