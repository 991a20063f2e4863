// How a block of threads walks through the spheres of its tile, front to back: shared by the
// forward and the backward kernels.
//
// A block is a tile of rays, a thread a ray, a warp 8 x 4 of them. Candidates of the tile's cell
// are tested against the tile's cone, one by each thread, and those that pass wait in
// shared memory; each warp then tests 32 of them at a time against the cone of its own rays and
// blends what is left.
#pragma once

#include "core/alpha.h"
#include "core/softmax.h"
#include "cuda/prepare.cuh"

namespace jaxrec {

// Few channels live in registers; many are a loop over local memory.
template <int kChannels>
constexpr int kUnrollOf = kChannels <= 19 ? kChannels : 1;

// Threads that a multiprocessor should hold: what their registers allow without spilling.
template <typename Tile, int kChannels, int kTracked>
constexpr int kBlocksOf = (kChannels <= 3 && kTracked == 0   ? 1024
                           : kChannels <= 8 && kTracked <= 8 ? 512
                                                             : 256) /
                          Tile::kRays;

template <typename Tile>
struct TileShared {
  static constexpr int kQueue = Tile::kRays + 256;  // a batch and what may wait before it
  float4 geometry[kQueue];                          // x, y, z, r
  float4 rest[kQueue];                              // opacity, key, reach, id
  int rank[kQueue];
  int passed[Tile::kRays / 32];
};

struct TileView {
  const ViewState* view;
  Ray<float> ray;
  bool inside, valid;
  std::int64_t pixel;  // within the view
  int x, y;
  Cone warp;  // of the warp's rays
};

__device__ __forceinline__ float WarpSum(float x) {
  for (int d = 16; d > 0; d /= 2) x += __shfl_xor_sync(~0u, x, d);
  return x;
}
__device__ __forceinline__ float WarpMax(float x) {
  for (int d = 16; d > 0; d /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, d));
  return x;
}

template <typename Tile>
__device__ __forceinline__ TileView OpenTile(const BlendCall& call, const Prepared& p, int tile,
                                             int pair) {
  TileView t;
  t.view = p.views + pair;
  const int problem = pair / call.views, view = pair % call.views;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  constexpr int kAcross = Tile::kWidth / 8;
  t.x = tile % p.coarse.tiles_x * Tile::kWidth + warp % kAcross * 8 + lane % 8;
  t.y = tile / p.coarse.tiles_x * Tile::kHeight + warp / kAcross * 4 + lane / 8;
  t.inside = t.x < call.width && t.y < call.height;
  t.pixel = std::int64_t{t.y} * call.width + t.x;
  t.ray = {0, 0, 0, 0, 0, 0};
  t.valid = false;
  if (t.inside) {
    const std::int64_t at = 3 * (std::int64_t{view} * call.height * call.width + t.pixel);
    const float* o = DataOf(call.batch, call.origins, problem) + at;
    const float* n = DataOf(call.batch, call.directions, problem) + at;
    const Ray<float> ray = {o[0], o[1], o[2], n[0], n[1], n[2]};
    const float square = ray.nx * ray.nx + ray.ny * ray.ny + ray.nz * ray.nz;
    const float finite = (ray.ox + ray.oy + ray.oz + square) * 0.0f;
    t.valid = finite == 0.0f && fabsf(square - 1.0f) <= kUnitTolerance;
    if (t.valid) t.ray = ray;
  }
  const unsigned valid = __ballot_sync(~0u, t.valid);
  Cone& c = t.warp;
  c.empty = valid == 0;
  if (c.empty) return t;
  const int first = __ffs(valid) - 1;
  const float fx = __shfl_sync(~0u, t.ray.ox, first), fy = __shfl_sync(~0u, t.ray.oy, first);
  const float fz = __shfl_sync(~0u, t.ray.oz, first);
  const float s = 1.0f / __popc(valid);
  c.ox = fx + WarpSum(t.valid ? t.ray.ox - fx : 0.0f) * s;
  c.oy = fy + WarpSum(t.valid ? t.ray.oy - fy : 0.0f) * s;
  c.oz = fz + WarpSum(t.valid ? t.ray.oz - fz : 0.0f) * s;
  c.nx = WarpSum(t.ray.nx) * s, c.ny = WarpSum(t.ray.ny) * s, c.nz = WarpSum(t.ray.nz) * s;
  const float length = sqrtf(c.nx * c.nx + c.ny * c.ny + c.nz * c.nz);
  const bool aimless = !(length > 1e-3f);
  if (!aimless) c.nx /= length, c.ny /= length, c.nz /= length;
  const float dx = t.ray.nx - c.nx, dy = t.ray.ny - c.ny, dz = t.ray.nz - c.nz;
  const float sx = t.ray.ox - c.ox, sy = t.ray.oy - c.oy, sz = t.ray.oz - c.oz;
  const float chord = WarpMax(t.valid ? dx * dx + dy * dy + dz * dz : 0.0f);
  c.slack = sqrtf(WarpMax(t.valid ? sx * sx + sy * sy + sz * sz : 0.0f)) * 1.00001f;
  c.SetChord(aimless ? 2.0f : sqrtf(chord));
  return t;
}

// Calls draw(entry, remaining) for each sphere that the warp's rays may touch, in front-to-back
// order and for the whole warp at once, until it answers false: `remaining` bounds how many are
// still to come. All threads of the block must call this together. `limit` is the last rank that
// matters to the warp (or a large number).
template <typename Tile, typename Draw>
__device__ __forceinline__ void WalkTile(const BlendCall& call, const Prepared& p, int tile,
                                         int pair, const TileView& t, int limit,
                                         TileShared<Tile>* shared, Draw draw) {
  if (call.spheres == 0) return;
  const int cell = p.coarse.CellOf(tile);
  const CellList list = p.lists[std::int64_t{pair} * p.coarse.cells() + cell];
  const std::int32_t* ranks = p.pool + std::int64_t{pair} * p.pool_size + list.offset;
  const SphereRecord* records = p.records + std::int64_t{pair} * call.spheres;
  const Cone& cone = p.tiles[std::int64_t{pair} * p.coarse.tiles() + tile].cone;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  bool open = !t.warp.empty;
  int queued = 0;
  if (cone.empty) return;
  // A batch is fetched while the one before it is blended.
  SphereRecord next;
  int next_rank = 0;
  const auto fetch = [&](int start) {
    const int i = start + threadIdx.x;
    if (i >= list.count) return;
    next_rank = list.offset < 0 ? i : ranks[i];
    next = records[next_rank];
  };
  fetch(0);
  for (int start = 0; start < list.count; start += Tile::kRays) {
    const SphereRecord s = next;
    const int rank = next_rank;
    const bool pass =
        start + static_cast<int>(threadIdx.x) < list.count && Touches(cone, s.x, s.y, s.z, s.reach);
    fetch(start + Tile::kRays);
    const unsigned votes = __ballot_sync(~0u, pass);
    if (lane == 0) shared->passed[warp] = __popc(votes);
    __syncthreads();  // also: all warps are done with what was taken from the queue
    int at = queued + __popc(votes & ((1u << lane) - 1));
    int total = 0;
    for (int w = 0; w < Tile::kRays / 32; ++w) {
      if (w < warp) at += shared->passed[w];
      total += shared->passed[w];
    }
    if (pass) {
      shared->geometry[at] = {s.x, s.y, s.z, s.r};
      shared->rest[at] = {s.opacity, s.key, s.reach, __int_as_float(s.id)};
      shared->rank[at] = rank;
    }
    queued += total;
    const bool last = start + Tile::kRays >= list.count;
    if (queued <= TileShared<Tile>::kQueue - Tile::kRays && !last) {
      __syncthreads();
      continue;
    }
    __syncthreads();
    for (int begin = 0; open && begin < queued; begin += 32) {
      const int entry = begin + lane;
      bool mine = false;
      if (entry < queued) {
        const float4 g = shared->geometry[entry];
        mine =
            shared->rank[entry] <= limit && Touches(t.warp, g.x, g.y, g.z, shared->rest[entry].z);
      }
      for (unsigned bits = __ballot_sync(~0u, mine); bits != 0; bits &= bits - 1) {
        const int k = begin + __ffs(bits) - 1;
        if (!draw(k, list.count - start + queued - k)) {
          open = false;
          break;
        }
      }
      if (begin + 31 < queued && shared->rank[begin + 31] > limit) open = false;
    }
    queued = 0;
    if (__syncthreads_or(open) == 0) return;
  }
}

__device__ __forceinline__ float FieldAt(const BlendCall& call, const PixelField& field, int pair,
                                         const TileView& t, int c) {
  const int problem = pair / call.views, view = pair % call.views;
  return DataOf(call.batch, field.base,
                problem)[view * field.v + t.y * field.y + t.x * field.x + c * field.c];
}

}  // namespace jaxrec
