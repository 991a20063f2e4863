// The front-to-back order of the spheres that a view sees.
//
// A sample sort. Keys of a regular sample, which differ as they end with the sphere's index, split
// the spheres into buckets of a thousand. A pass puts each sphere's key into its bucket, in any
// order; then a block sorts a bucket in shared memory. What does not fit a bucket's room is found
// again by whoever sorts it, and a bucket that does not fit shared memory is sorted in runs, which
// are merged: no order of keys is wrong, only slower.
#include "cuda/prepare.cuh"
#include "cuda/see.cuh"
#include "cuda/sort.cuh"
#include "cuda/warp.cuh"

namespace jaxrec {
namespace {

constexpr int kKeyThreads = 512, kKeysEach = 4;
constexpr int kManyKeys = kKeyThreads * 512;  // from here on a thread takes kKeysEach
constexpr int kSortThreads = 512;
constexpr int kRun = 5632;  // keys that a block sorts in shared memory

// Records and keys of what the view sees, the keys in their buckets: a thread takes kEach spheres.
template <int kEach, typename Motion>
__global__ void __launch_bounds__(kKeyThreads, 2) MakeKeys(BlendCall call, Prepared p) {
  Follow();
  // Splitters as a tree, the children of node i at 2 i and 2 i + 1: the first steps of a search
  // read few words, which lie side by side.
  __shared__ std::uint64_t tree[Buckets::kMost];
  __shared__ int places[Buckets::kMost];  // how many keys of the block go where, then the first's
  __shared__ int all_seen, all_large;
  __shared__ ViewState view;
  const int pair = blockIdx.y, problem = ProblemOf(call, pair);
  const int buckets = p.buckets.count, room = p.buckets.room;
  const std::int64_t base = std::int64_t{pair} * call.spheres;
  const std::int64_t first = std::int64_t{pair} * buckets;
  ViewState& stored = p.Of(call, pair).view();
  // All loads are on their way at once.
  const int start = blockIdx.x * kEach * kKeyThreads + threadIdx.x;
  ValuesOf<Motion> spheres[kEach];
#pragma unroll
  for (int k = 0; k < kEach; ++k)
    spheres[k] =
        ValuesOf<Motion>::Load(call, problem, min(start + k * kKeyThreads, call.spheres - 1));
  TimeSpan span = {};
  if constexpr (Motion::kMoves) span = SpanOf(call, pair);
  constexpr int kWords = sizeof(ViewState) / 4;
  static_assert(kWords <= kKeyThreads);
  if (threadIdx.x < kWords)
    reinterpret_cast<unsigned*>(&view)[threadIdx.x] =
        reinterpret_cast<const unsigned*>(&stored)[threadIdx.x];
  for (int i = threadIdx.x; i < buckets; i += kKeyThreads) {
    places[i] = 0;
    if (i == 0) continue;
    const int depth = 31 - __clz(i), across = i - (1 << depth);
    tree[i] = p.splitters[first + (2 * across + 1) * (buckets >> depth + 1) - 1];
  }
  if (threadIdx.x == 0) all_seen = all_large = 0;
  __syncthreads();
  std::uint32_t keys[kEach];        // upper halves
  int bucket[kEach], place[kEach];  // no bucket: hidden
  int seen = 0, large = 0;
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    const int i = start + k * kKeyThreads;
    SphereRecord record;
    float below = 0;
    bucket[k] = -1;
    if (i >= call.spheres || !See(view, spheres[k], span, i, &record, &below)) continue;
    p.unsorted[base + i] = record;
    const std::uint64_t key = KeyOf(record);
    int node = 1;
    while (node < buckets) node = 2 * node + (tree[node] <= key ? 1 : 0);
    keys[k] = static_cast<std::uint32_t>(key >> 32);
    bucket[k] = node - buckets;
    place[k] = atomicAdd(&places[bucket[k]], 1);
    ++seen;
    if (view.mode == kCentral && record.reach > kLarge * view.beam.e1) ++large;
    if (below > 0) atomicMax(&stored.drop_bits, __float_as_uint(below));
  }
  seen = WarpSum(seen), large = WarpSum(large);
  if (threadIdx.x % 32 == 0) atomicAdd(&all_seen, seen), atomicAdd(&all_large, large);
  __syncthreads();
  for (int i = threadIdx.x; i < buckets; i += kKeyThreads)
    if (places[i] > 0) places[i] = atomicAdd(&p.held[(first + i) * Buckets::kApart], places[i]);
  if (threadIdx.x == 0 && all_seen > 0)
    atomicAdd(&stored.visible, all_seen), atomicAdd(&stored.large, all_large);
  __syncthreads();
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    if (bucket[k] < 0) continue;
    const int i = start + k * kKeyThreads;
    const std::uint64_t key = static_cast<std::uint64_t>(keys[k]) << 32 | static_cast<unsigned>(i);
    const int at = places[bucket[k]] + place[k];
    if (at < room)
      p.stored[(first + bucket[k]) * room + at] = key;
    else
      p.spill[base + atomicAdd(&p.spilled[pair], 1)] = key;
  }
}

// How many of sorted keys are smaller.
__device__ __forceinline__ int CountBelow(const std::uint64_t* keys, int count, std::uint64_t key) {
  int low = 0;
  while (low < count) {
    const int middle = (low + count) / 2;
    if (keys[middle] < key)
      low = middle + 1;
    else
      count = middle;
  }
  return low;
}

// Sorts a bucket with one block.
__global__ void __launch_bounds__(kSortThreads, 2) SortBuckets(BlendCall call, Prepared p) {
  Follow();
  extern __shared__ float4 sort_memory[];
  auto& memory = *reinterpret_cast<SortMemory<kRun>*>(sort_memory);
  __shared__ int sums[kSortThreads / 32], cursor;
  const int pair = blockIdx.y, bucket = blockIdx.x, buckets = p.buckets.count;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, room = p.buckets.room;
  const std::int64_t first = std::int64_t{pair} * buckets;
  const int count = p.held[(first + bucket) * Buckets::kApart];
  int before = 0;  // keys in the buckets before
  for (int i = threadIdx.x; i < bucket; i += kSortThreads)
    before += p.held[(first + i) * Buckets::kApart];
  before = WarpSum(before);
  if (lane == 0) sums[warp] = before;
  if (threadIdx.x == 0) cursor = min(count, room);
  __syncthreads();
  before = 0;
  for (int w = 0; w < kSortThreads / 32; ++w) before += sums[w];
  const std::int64_t base = std::int64_t{pair} * call.spheres;
  std::int32_t* order = p.order + base + before;
  const std::uint64_t* stored = p.stored + (first + bucket) * room;
  const auto put = [&](int rank, std::uint64_t key) {
    order[rank] = static_cast<std::int32_t>(key);
  };
  if (count <= min(room, kRun)) {
    SortBlock<kSortThreads>(stored, count, &memory, put);
    return;
  }

  // All of it, where ranges will be: with what found no room.
  auto* all = reinterpret_cast<std::uint64_t*>(p.ranges) + base + before;
  for (int i = threadIdx.x; i < min(count, room); i += kSortThreads) all[i] = stored[i];
  const std::uint64_t least = bucket == 0 ? 0 : p.splitters[first + bucket - 1];
  const std::uint64_t next =
      bucket == buckets - 1 ? ~std::uint64_t{0} : p.splitters[first + bucket];
  for (int i = threadIdx.x; count > room && i < p.spilled[pair]; i += kSortThreads) {
    const std::uint64_t key = p.spill[base + i];
    if (least <= key && key < next) all[atomicAdd(&cursor, 1)] = key;
  }
  __syncthreads();
  if (count <= kRun) {
    SortBlock<kSortThreads>(all, count, &memory, put);
    return;
  }
  for (int start = 0; start < count; start += kRun)
    SortBlock<kSortThreads>(all + start, min(kRun, count - start), &memory,
                            [&](int rank, std::uint64_t key) { all[start + rank] = key; });
  for (int i = threadIdx.x; i < count; i += kSortThreads) {
    int rank = 0;
    for (int start = 0; start < count; start += kRun)
      rank += CountBelow(all + start, min(kRun, count - start), all[i]);
    put(rank, all[i]);
  }
}

template <typename Motion>
void LaunchKeys(const BlendCall& call, const Prepared& p, const Stream& stream) {
  const int each = call.spheres < kManyKeys ? 1 : kKeysEach;
  const unsigned blocks = (call.spheres + kKeyThreads * each - 1) / (kKeyThreads * each);
  stream.Launch(each == 1 ? MakeKeys<1, Motion> : MakeKeys<kKeysEach, Motion>,
                dim3(blocks, call.pairs), kKeyThreads, 0, call, p);
}

}  // namespace

void SortSpheres(const BlendCall& call, const Prepared& p, const Stream& stream) {
  call.moves ? LaunchKeys<Linear>(call, p, stream) : LaunchKeys<Still>(call, p, stream);
  constexpr int kBytes = sizeof(SortMemory<kRun>);
  static_assert(kBytes <= 63 * 1024);  // of 64 KB that the smallest multiprocessors have
  cudaFuncSetAttribute(SortBuckets, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  stream.Launch(SortBuckets, dim3(p.buckets.count, call.pairs), kSortThreads, kBytes, call, p);
}

}  // namespace jaxrec
