// How a block of threads walks through the spheres of its tile, front to back: shared by the
// forward and the backward kernels.
//
// A block is a tile of rays, a thread a ray, a warp a rectangle of them. Candidates of the tile's
// cell are tested against the bounds of the tile, one by each thread, and those that pass wait in
// shared memory; each warp then tests 32 of them at a time against the bounds of its own rays and
// blends what is left.
#pragma once

#include "core/alpha.h"
#include "core/softmax.h"
#include "cuda/prepare.cuh"
#include "cuda/sums.cuh"

namespace jaxrec {

// Threads that a multiprocessor should hold: what their registers allow without spilling.
template <typename Tile, int kChannels, int kTracked>
constexpr int kBlocksOf = (kChannels <= 3 && kTracked == 0   ? 1024
                           : kChannels <= 8 && kTracked <= 8 ? 512
                                                             : 256) /
                          Tile::kRays;

constexpr int kQueue = 256;         // spheres that wait at a time
constexpr int kStep = 1024;         // candidates that a block looks at, at a time
constexpr int kStagedChannels = 3;  // channels that wait beside their sphere
constexpr int kTileWarps = 8;       // of 32 rays
static_assert(SmallTile::kRays == 32 * kTileWarps && RowTile::kRays == 32 * kTileWarps);

// The bounds of the tile and of each warp.
union Bound {
  Box box;
  Cone cone;
  __device__ Bound() {}
};
struct TileBounds {
  ViewState view;
  Bound tile, warps[kTileWarps];
  // Ranks of spheres that passed and have not been fetched.
  int ranks[kQueue + kStep];
  int passed[32];
};

// Spheres that wait to be drawn: as the kinds want them (parts 0 to 2), their first channels and
// ranks (part 3), and where a warp may hit them (`ball`, of central views).
struct WarpQueue {
  float4 part[4][kQueue];
  float4 ball[kQueue];
  int id[kQueue];
  float total[kQueue];  // LargestTotal, of a central view's forward pass
};
// The same for a backward pass: 1 / d and 1 / r, and the grids of the sphere's terms.
struct PullQueue : WarpQueue {
  float4 more[kQueue];
};

// The same value, of which the compiler knows nothing: what is computed from it again is not held
// in registers meanwhile.
__device__ __forceinline__ int Again(int x) {
  asm volatile("" : "+r"(x));
  return x;
}

// Which of the tile's warps of rays is the `k`th of the calling warp, if each takes kEach of them,
// one below the other.
template <typename Tile, int kEach>
__device__ __forceinline__ int WarpOf(int k) {
  constexpr int kAcross = Tile::kWidth / Tile::kWarpWidth;
  const int warp = threadIdx.x / 32;
  return kEach == 1 ? warp : (warp / kAcross * kEach + k) * kAcross + warp % kAcross;
}

// A ray of a lane; not valid: it wants nothing.
struct LaneRay {
  Ray<float> ray;
  bool valid;
};

template <typename Tile>
__device__ __forceinline__ LaneRay RayOf(const BlendCall& call, int pair, const Place& place,
                                         int warp) {
  LaneRay t = {{0, 0, 0, 0, 0, 0}, false};
  const int problem = ProblemOf(call, pair), view = ViewOf(call, pair);
  Pixel pixel;
  if (PixelOf<Tile>(call, place.x, place.y, warp, &pixel)) {
    const std::int64_t at = 3 * (std::int64_t{view} * call.height * call.width + pixel.index);
    const float* o = DataOf(call.batch, call.origins, problem) + at;
    const float* n = DataOf(call.batch, call.directions, problem) + at;
    const Ray<float> ray = {o[0], o[1], o[2], n[0], n[1], n[2]};
    const float square = ray.nx * ray.nx + ray.ny * ray.ny + ray.nz * ray.nz;
    const float finite = (ray.ox + ray.oy + ray.oz + square) * 0.0f;
    t.valid = finite == 0.0f && fabsf(square - 1.0f) <= kUnitTolerance;
    if (t.valid) t.ray = ray;
  }
  return t;
}

__device__ __forceinline__ Bundle Union(const Bundle& a, const Bundle& b) {
  Bundle all;
  for (int k = 0; k < 3; ++k) {
    all.direction[k] = {fminf(a.direction[k].low, b.direction[k].low),
                        fmaxf(a.direction[k].high, b.direction[k].high)};
    all.origin[k] = {fminf(a.origin[k].low, b.origin[k].low),
                     fmaxf(a.origin[k].high, b.origin[k].high)};
  }
  return all;
}

// The bounds that a walk needs, for the block and for each of its warps, which takes kEach warps
// of the tile's rays.
template <typename Tile, int kEach>
__device__ __forceinline__ void LoadBounds(const PairData& data, int tile, TileBounds* bounds) {
  constexpr int kWarps = kTileWarps / kEach, kWords = sizeof(ViewState) / 4;
  constexpr int kAcross = Tile::kWidth / Tile::kWarpWidth;
  const ViewState& view = data.view();
  static_assert(kWords <= 32 * kWarps);
  const int word = threadIdx.x;
  if (word < kWords)
    reinterpret_cast<unsigned*>(&bounds->view)[word] =
        reinterpret_cast<const unsigned*>(&view)[word];
  const int warp = static_cast<int>(threadIdx.x) - (32 * kWarps - 32);  // lanes of the last warp
  if (warp < 0 || warp > kWarps) return;
  const bool whole = warp == kWarps;
  Bundle bundle;
  if (whole) {
    bundle = data.tiles()[tile];
  } else {
    const Bundle* warps = data.warps() + std::int64_t{tile} * kTileWarps;
    const int first = kEach == 1 ? warp : warp / kAcross * kEach * kAcross + warp % kAcross;
    bundle = warps[first];
    for (int k = 1; k < kEach; ++k) bundle = Union(bundle, warps[first + k * kAcross]);
  }
  Bound& bound = whole ? bounds->tile : bounds->warps[warp];
  if (view.mode == kGeneral)
    bound.cone = ConeOf(view.frame, bundle);
  else
    bound.box = BoxOf(view.mode, bundle);
}

// Lets those spheres of the tile's cell wait that may touch the tile, front to back, and calls
// take(waiting, last) for up to kQueue of them at a time until no warp of the block wants more
// (take answers false). The path (path.cuh) says which pass and what waits, told how many at most
// there are from a sphere on. All threads of the block must call this together.
//
// First candidates are looked at, a few by each thread: their bits say whether they touch the tile,
// or, where a list has none, their bounds. Ranks of those that pass line up; then each thread
// fetches one sphere.
template <int kThreads, typename Path, typename Take>
__device__ __forceinline__ void WalkTile(const BlendCall& call, const Prepared& p, int pair,
                                         const PairData& data, const Place& place,
                                         TileBounds* bounds, const Path& path, Take take) {
  constexpr int kWarps = kThreads / 32, kScan = kStep / kThreads;
  const CellList list = data.lists()[place.cell];
  const Candidate* candidates = data.pool() + list.offset;
  const SphereRecord* records = data.records();
  const bool listed = list.offset >= 0, told = listed && bounds->view.crossed;
  const unsigned bits = place.bits;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  bool open = true;
  int lined = 0;  // ranks that wait to be fetched
  for (int start = 0; start < list.count; start += kStep) {
    int ranks[kScan];
    unsigned votes[kScan];
#pragma unroll
    for (int k = 0; k < kScan; ++k) {
      const int i = start + k * kThreads + threadIdx.x;
      Candidate candidate = {i, 0};
      if (i < list.count && listed) candidate = candidates[i];
      ranks[k] = candidate.rank;
      votes[k] = candidate.tiles;
    }
#pragma unroll
    for (int k = 0; k < kScan; ++k) {
      const int i = start + k * kThreads + threadIdx.x;
      const bool passes = i < list.count && (told ? (votes[k] & bits) == bits
                                                  : path.Passes(bounds->tile, records[ranks[k]]));
      votes[k] = __ballot_sync(~0u, passes);
      if (lane == 0) bounds->passed[k * kWarps + warp] = __popc(votes[k]);
    }
    __syncthreads();
    static_assert(kScan * kWarps == 32);
    const int own = bounds->passed[lane];
    const int sum = WarpScan(own);
#pragma unroll
    for (int k = 0; k < kScan; ++k) {
      const int before = __shfl_sync(~0u, sum - own, k * kWarps + warp);
      if (votes[k] >> lane & 1)
        bounds->ranks[lined + before + __popc(votes[k] & ((1u << lane) - 1))] = ranks[k];
    }
    const int remaining = list.count - start + lined;
    lined += __shfl_sync(~0u, sum, 31);
    const bool last = start + kStep >= list.count;
    __syncthreads();
    int head = 0;
    while (lined - head >= kQueue || (last && head < lined)) {
      const int waiting = min(kQueue, lined - head);
#pragma unroll 1
      for (int at = threadIdx.x; at < waiting; at += kThreads) {
        const int rank = bounds->ranks[head + at];
        const SphereRecord s = records[rank];
        const float* feature = DataOf(call.batch, call.features, ProblemOf(call, Again(pair))) +
                               std::int64_t{s.id} * call.channels;
        float staged[kStagedChannels] = {};
#pragma unroll
        for (int c = 0; c < kStagedChannels; ++c)
          if (c < call.channels) staged[c] = feature[c];
        path.Wait(at, s, rank, staged, remaining - head - at);
      }
      __syncthreads();
      head += waiting;
      if (open) open = take(waiting, last && head == lined);
      if (__syncthreads_or(open) == 0) return;
    }
    // What is left moves to the front.
    lined -= head;
    if (head > 0 && !last) {
      int left[kQueue / kThreads];
#pragma unroll
      for (int k = 0; k < kQueue / kThreads; ++k) {
        const int i = k * kThreads + threadIdx.x;
        left[k] = i < lined ? bounds->ranks[head + i] : 0;
      }
      __syncthreads();
#pragma unroll
      for (int k = 0; k < kQueue / kThreads; ++k) {
        const int i = k * kThreads + threadIdx.x;
        if (i < lined) bounds->ranks[i] = left[k];
      }
    }
  }
}

template <int kValue>
struct Constant {
  static constexpr int value = kValue;
};

// Draws what waits, the whole warp a sphere at a time: of every 32, way = start(the first) and then
// draw(entry, way) for each that may touch the warp's rays, until start says that the warp wants no
// more (way < 0). The way is a constant, one of those whose bits kWays holds. `limit` is the last
// rank that matters to the warp (or a large number). Answers whether the warp wants more.
template <int kWays, typename Path, typename Start, typename Draw>
__device__ __forceinline__ bool DrawByWarp(const Path& path, const Bound& bound, int waiting,
                                           int limit, Start start, Draw draw) {
  const int lane = threadIdx.x % 32;
  for (int begin = 0; begin < waiting; begin += 32) {
    if (path.Rank(begin) > limit) return false;
    const int way = start(begin);
    if (way < 0) return false;
    const int entry = begin + lane;
    const bool mine = entry < waiting && path.Rank(entry) <= limit && path.Near(bound, entry);
    const unsigned all = __ballot_sync(~0u, mine);
    const auto draw_all = [&](auto constant) {
      if constexpr ((kWays >> decltype(constant)::value & 1) != 0)
        if (way == constant.value)
          for (unsigned bits = all; bits != 0; bits &= bits - 1)
            draw(begin + __ffs(bits) - 1, constant);
    };
    draw_all(Constant<0>()), draw_all(Constant<1>()), draw_all(Constant<2>());
  }
  return true;
}

}  // namespace jaxrec
