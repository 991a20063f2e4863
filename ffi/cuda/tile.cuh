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

constexpr int kQueue = 256;         // spheres that wait at a time; also the threads of a block
constexpr int kScan = 4;            // candidates that a thread looks at, at a time
constexpr int kStagedChannels = 3;  // channels that wait beside their sphere
static_assert(SmallTile::kRays == kQueue && RowTile::kRays == kQueue);

// The bounds of the tile and of each warp.
union Bound {
  Box box;
  Cone cone;
  __device__ Bound() {}
};
struct TileBounds {
  ViewState view;
  Bound tile, warps[kQueue / 32];
  // Ranks of spheres that passed and have not been fetched.
  int ranks[kQueue * (kScan + 1)];
  int passed[kScan * kQueue / 32];
};

// Spheres that wait for the whole warp to draw them one after another: as the kinds want them
// (parts 0 to 2) and their first channels and ranks (part 3). Part 4 is for a backward
// pass.
struct WarpQueue {
  float4 part[5][kQueue];
  int id[kQueue];
};

// Spheres that wait for the block (a SphereRecord, channels and rank), and those that wait for each
// warp while its rays pick those that they hit: a field at a time, so that lanes which read
// different spheres meet in different banks.
constexpr int kFields = 17;
struct LaneQueue {
  float4 geometry[32];  // x, y, z and the largest s of a hit
  float field[kFields][32];
};
struct LaneQueues {
  float4 geometry[kQueue], rest[kQueue], color[kQueue];
  float bound[kQueue];
  LaneQueue warps[kQueue / 32];
};

// The same value, of which the compiler knows nothing: what is computed from it again is not held
// in registers meanwhile.
__device__ __forceinline__ int Again(int x) {
  asm volatile("" : "+r"(x));
  return x;
}

// The pixel of a thread, and whether the image has it.
template <typename Tile>
__device__ __forceinline__ bool PixelOf(const BlendCall& call, const Coarse& coarse, int tile,
                                        Pixel* pixel) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  constexpr int kAcross = Tile::kWidth / Tile::kWarpWidth;
  pixel->x = tile % coarse.tiles_x * Tile::kWidth + warp % kAcross * Tile::kWarpWidth +
             lane % Tile::kWarpWidth;
  pixel->y = tile / coarse.tiles_x * Tile::kHeight + warp / kAcross * Tile::kWarpHeight +
             lane / Tile::kWarpWidth;
  pixel->index = std::int64_t{pixel->y} * call.width + pixel->x;
  return pixel->x < call.width && pixel->y < call.height;
}

struct TileView {
  PairData data;
  Ray<float> ray;
  bool valid;
};

template <typename Tile>
__device__ __forceinline__ TileView OpenTile(const BlendCall& call, const Prepared& p, int tile,
                                             int pair) {
  TileView t = {p.Of(call, pair), {0, 0, 0, 0, 0, 0}, false};
  const int problem = pair / call.views, view = pair % call.views;
  Pixel pixel;
  if (PixelOf<Tile>(call, p.coarse, tile, &pixel)) {
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

// The bounds that a walk needs, for the block and for each warp.
__device__ __forceinline__ void LoadBounds(const TileView& t, int tile, TileBounds* bounds) {
  constexpr int kWarps = kQueue / 32, kWords = sizeof(ViewState) / 4;
  const ViewState& view = t.data.view();
  static_assert(kWords <= kQueue - 32);
  const int word = static_cast<int>(threadIdx.x) - 32;
  if (word >= 0 && word < kWords)
    reinterpret_cast<unsigned*>(&bounds->view)[word] =
        reinterpret_cast<const unsigned*>(&view)[word];
  if (threadIdx.x > kWarps) return;
  const bool whole = threadIdx.x == kWarps;
  const Bundle& bundle =
      whole ? t.data.tiles()[tile] : t.data.warps()[std::int64_t{tile} * kWarps + threadIdx.x];
  Bound& bound = whole ? bounds->tile : bounds->warps[threadIdx.x];
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
template <typename Path, typename Take>
__device__ __forceinline__ void WalkTile(const BlendCall& call, const Prepared& p, int tile,
                                         int pair, const TileView& t, TileBounds* bounds,
                                         const Path& path, Take take) {
  constexpr int kWarps = kQueue / 32, kStep = kScan * kQueue;
  const CellList list = t.data.lists()[p.coarse.CellOf(tile)];
  const Candidate* candidates = t.data.pool() + list.offset;
  const SphereRecord* records = t.data.records();
  const bool listed = list.offset >= 0, told = listed && bounds->view.crossed;
  const unsigned bits = p.coarse.BitsOf(tile);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  bool open = true;
  int lined = 0;  // ranks that wait to be fetched
  for (int start = 0; start < list.count; start += kStep) {
    int ranks[kScan];
    unsigned votes[kScan];
#pragma unroll
    for (int k = 0; k < kScan; ++k) {
      const int i = start + k * kQueue + threadIdx.x;
      Candidate candidate = {i, 0};
      if (i < list.count && listed) candidate = candidates[i];
      ranks[k] = candidate.rank;
      votes[k] = candidate.tiles;
    }
#pragma unroll
    for (int k = 0; k < kScan; ++k) {
      const int i = start + k * kQueue + threadIdx.x;
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
      const int waiting = min(kQueue, lined - head), at = threadIdx.x;
      if (at < waiting) {
        const int rank = bounds->ranks[head + at];
        const SphereRecord s = records[rank];
        const float* feature = DataOf(call.batch, call.features, Again(pair) / call.views) +
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
      const int rank =
          static_cast<int>(threadIdx.x) < lined ? bounds->ranks[head + threadIdx.x] : 0;
      __syncthreads();
      if (static_cast<int>(threadIdx.x) < lined) bounds->ranks[threadIdx.x] = rank;
    }
  }
}

// Draws what waits, the whole warp a sphere at a time: of every 32, start(the first) and then
// draw(entry) for each that may touch the warp's rays, until start says that the warp wants no
// more. `limit` is the last rank that matters to the warp (or a large number). Answers whether the
// warp wants more.
template <typename Path, typename Start, typename Draw>
__device__ __forceinline__ bool DrawByWarp(const Path& path, const Bound& bound, int waiting,
                                           int limit, Start start, Draw draw) {
  const int lane = threadIdx.x % 32;
  for (int begin = 0; begin < waiting; begin += 32) {
    if (path.Rank(begin) > limit || !start(begin)) return false;
    const int entry = begin + lane;
    const bool mine = entry < waiting && path.Rank(entry) <= limit && path.Near(bound, entry);
    for (unsigned bits = __ballot_sync(~0u, mine); bits != 0; bits &= bits - 1)
      draw(begin + __ffs(bits) - 1);
  }
  return true;
}

}  // namespace jaxrec
