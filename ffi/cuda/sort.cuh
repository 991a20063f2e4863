// Sorting by a block, in shared memory.
#pragma once

#include <cstdint>

#include "cuda/warp.cuh"

namespace jaxrec {

constexpr int kBins = 2048;

template <int kMost>
struct SortMemory {
  std::uint64_t keys[kMost];
  int begins[kBins + 1];  // of the bins, among the keys
  int cursors[kBins];
  // Where it may be read four at a time: not beside what is written meanwhile.
  alignas(16) int sums[32];
  unsigned low[2], high[2];  // of the lower halves of the keys, and of the upper ones
};

// Calls emit(rank, key) for each of up to kMost different keys; all threads of the block must call
// this together. `emit` may write to where the keys are.
//
// Keys are put into bins of equal width, which hold one or two each if they are spread evenly, and
// each key is compared with those of its own bin. Bins part the upper halves of the keys, or, if
// these are all the same, the lower ones. Equal upper halves beside others cost a comparison each.
template <int kThreads, int kMost, typename Emit>
__device__ __forceinline__ void SortBlock(const std::uint64_t* keys, int count,
                                          SortMemory<kMost>* memory, Emit emit) {
  constexpr int kEach = kMost / kThreads, kBinsEach = kBins / kThreads;
  static_assert(kEach * kThreads == kMost && kBinsEach * kThreads == kBins);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  std::uint64_t own[kEach];
  unsigned low[2] = {~0u, ~0u}, high[2] = {0, 0};  // of the halves
  const auto for_own = [&](auto use) {
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
      if (k * kThreads >= count) break;
      const int i = k * kThreads + threadIdx.x;
      if (i < count) use(own[k], i);
    }
  };
  for_own([&](std::uint64_t& key, int i) { key = keys[i]; });
  for_own([&](std::uint64_t key, int) {
    for (int half = 0; half < 2; ++half) {
      const auto part = static_cast<unsigned>(key >> 32 * half);
      low[half] = min(low[half], part), high[half] = max(high[half], part);
    }
  });
  if (threadIdx.x < 2) memory->low[threadIdx.x] = ~0u, memory->high[threadIdx.x] = 0;
  for (int i = threadIdx.x; i < kBins; i += kThreads) memory->cursors[i] = 0;
  __syncthreads();
  for (int half = 0; half < 2; ++half) {
    const unsigned least = ~WarpMax(~low[half]), most = WarpMax(high[half]);
    if (lane == 0) atomicMin(&memory->low[half], least), atomicMax(&memory->high[half], most);
  }
  __syncthreads();
  const int half = memory->low[1] < memory->high[1] ? 1 : 0;
  const unsigned least = memory->low[half];
  // Rounding moves bins as a whole: they keep the order of the keys.
  const float over_width = (kBins - 0.5f) / (static_cast<float>(memory->high[half] - least) + 1.0f);
  const auto bin_of = [&](std::uint64_t key) {
    const auto at = static_cast<float>(static_cast<unsigned>(key >> 32 * half) - least);
    return min(static_cast<int>(at * over_width), kBins - 1);
  };
  for_own([&](std::uint64_t key, int) { atomicAdd(&memory->cursors[bin_of(key)], 1); });
  __syncthreads();
  int held[kBinsEach], all = 0;
#pragma unroll
  for (int k = 0; k < kBinsEach; ++k) all += held[k] = memory->cursors[threadIdx.x * kBinsEach + k];
  const int up_to = WarpScan(all);
  if (lane == 31) memory->sums[warp] = up_to;
  __syncthreads();
  int begin = up_to - all;
  for (int w = 0; w < warp; ++w) begin += memory->sums[w];
#pragma unroll
  for (int k = 0; k < kBinsEach; ++k) {
    const int bin = threadIdx.x * kBinsEach + k;
    memory->begins[bin] = memory->cursors[bin] = begin;
    begin += held[k];
  }
  if (threadIdx.x == kThreads - 1) memory->begins[kBins] = begin;
  __syncthreads();
  for_own([&](std::uint64_t key, int) {
    memory->keys[atomicAdd(&memory->cursors[bin_of(key)], 1)] = key;
  });
  __syncthreads();
  for_own([&](std::uint64_t key, int) {
    const int bin = bin_of(key), first = memory->begins[bin], last = memory->begins[bin + 1];
    int rank = first;
    for (int k = first; k < last; ++k) rank += memory->keys[k] < key;
    emit(rank, key);
  });
  __syncthreads();
}

}  // namespace jaxrec
