#include <cfloat>
#include <cub/device/device_radix_sort.cuh>

#include "cuda/prepare.cuh"

namespace jaxrec {
namespace {

constexpr float kParallelTolerance = 2e-6f;
constexpr int kThreads = 256;

std::size_t Align(std::size_t bytes) { return (bytes + 255) / 256 * 256; }

// Hands out parts of the scratch; with a null base only adds up sizes.
struct Arena {
  char* base;
  std::size_t used = 0;

  template <typename T>
  T* Take(std::size_t count) {
    T* p = base == nullptr ? nullptr : reinterpret_cast<T*>(base + used);
    used += Align(count * sizeof(T));
    return p;
  }
};

Prepared Layout(Arena* arena, std::int64_t pairs, std::int64_t spheres, const Coarse& coarse) {
  Prepared p;
  p.coarse = coarse;
  p.chunks = static_cast<int>((spheres + kChunk - 1) / kChunk);
  p.tiles = arena->Take<TileCone>(pairs * p.coarse.tiles());
  p.views = arena->Take<ViewState>(pairs);
  p.cells = arena->Take<Cone>(pairs * p.coarse.cells());
  p.groups = arena->Take<Cone>(pairs * p.coarse.groups());
  for (auto& keys : p.keys) keys = arena->Take<std::uint64_t>(pairs * spheres);
  for (auto& order : p.order) order = arena->Take<std::int32_t>(pairs * spheres);
  p.unsorted = arena->Take<SphereRecord>(pairs * spheres);
  p.records = arena->Take<SphereRecord>(pairs * spheres);
  p.counts = arena->Take<std::int32_t>(pairs * p.coarse.cells() * p.chunks);
  p.words = arena->Take<std::uint32_t>(pairs * p.chunks * p.coarse.cells() * (kChunk / 32));
  p.lists = arena->Take<CellList>(pairs * p.coarse.cells());
  p.used = arena->Take<unsigned long long>(pairs);
  p.pool_size = kListsPerSphere * spheres;
  p.pool = arena->Take<std::int32_t>(pairs * p.pool_size);
  // Onesweep keeps a few counters for each tile of the input; this bounds them generously.
  p.sort_bytes = Align(pairs * spheres * 2 + (std::size_t{4} << 20));
  p.sort = arena->Take<char>(p.sort_bytes);
  return p;
}

__device__ float BlockMax(float x, float* shared) {
  for (int d = 16; d > 0; d /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, d));
  __syncthreads();
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
  __syncthreads();
  x = shared[0];
  for (int w = 1; w < blockDim.x / 32; ++w) x = fmaxf(x, shared[w]);
  return x;
}

// In a fixed order, so that results repeat to the bit.
__device__ float BlockSum(float x, float* shared) {
  for (int d = 16; d > 0; d /= 2) x += __shfl_xor_sync(~0u, x, d);
  __syncthreads();
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
  __syncthreads();
  x = shared[0];
  for (int w = 1; w < blockDim.x / 32; ++w) x += shared[w];
  return x;
}

struct Vec {
  float x, y, z;
};
__device__ Vec Minus(Vec a, Vec b) { return {a.x - b.x, a.y - b.y, a.z - b.z}; }
__device__ float Dot(Vec a, Vec b) { return a.x * b.x + a.y * b.y + a.z * b.z; }
__device__ float Length(Vec a) { return sqrtf(Dot(a, a)); }

// Mean of weighted vectors of a block, as the first one plus the mean of the deviations from it:
// exact where all are equal. `first` is the least index with a weight.
__device__ Vec BlockMean(Vec v, float weight, float total, Vec first, float* shared) {
  const Vec d = weight > 0 ? Minus(v, first) : Vec{0, 0, 0};
  const float s = 1.0f / total;
  return {first.x + BlockSum(d.x * weight, shared) * s,
          first.y + BlockSum(d.y * weight, shared) * s,
          first.z + BlockSum(d.z * weight, shared) * s};
}

// Of the thread with the least index where `has`; `any` tells whether there is one.
__device__ Vec BlockFirst(Vec v, bool has, bool* any, Vec* shared, int* index) {
  __syncthreads();
  if (threadIdx.x == 0) *index = blockDim.x;
  __syncthreads();
  if (has) atomicMin(index, static_cast<int>(threadIdx.x));
  __syncthreads();
  *any = *index < static_cast<int>(blockDim.x);
  if (static_cast<int>(threadIdx.x) == *index) *shared = v;
  __syncthreads();
  return *shared;
}

__device__ Vec Normalized(Vec n, bool* aimless) {
  const float length = Length(n);
  *aimless = !(length > 1e-3f);
  if (*aimless) return n;
  return {n.x / length, n.y / length, n.z / length};
}

__global__ void TileCones(BlendCall call, Prepared p) {
  __shared__ float shared[32];
  __shared__ Vec first_shared;
  __shared__ int index;
  const int pair = blockIdx.y, tile = blockIdx.x;
  const int problem = pair / call.views, view = pair % call.views;
  const int x = tile % p.coarse.tiles_x * p.coarse.tile_width + threadIdx.x % p.coarse.tile_width;
  const int y = tile / p.coarse.tiles_x * p.coarse.tile_height + threadIdx.x / p.coarse.tile_width;
  Vec o = {0, 0, 0}, n = {0, 0, 0};
  bool valid = x < call.width && y < call.height;
  if (valid) {
    const std::int64_t ray = 3 * ((std::int64_t{view} * call.height + y) * call.width + x);
    const float* op = DataOf(call.batch, call.origins, problem) + ray;
    const float* np = DataOf(call.batch, call.directions, problem) + ray;
    o = {op[0], op[1], op[2]}, n = {np[0], np[1], np[2]};
    const float finite = (o.x + o.y + o.z + n.x + n.y + n.z) * 0.0f;
    valid = finite == 0.0f && fabsf(Dot(n, n) - 1.0f) <= kUnitTolerance;
  }
  bool any;
  const Vec first = BlockFirst(o, valid, &any, &first_shared, &index);
  const Vec ahead = BlockFirst(n, valid, &any, &first_shared, &index);
  TileCone out = {};
  out.cone.empty = !any;
  if (any) {
    const float weight = valid ? 1.0f : 0.0f, total = BlockSum(weight, shared);
    const Vec om = BlockMean(o, weight, total, first, shared);
    bool aimless;
    const Vec nm = Normalized(BlockMean(n, weight, total, ahead, shared), &aimless);
    const Vec d = Minus(o, om);
    const float chord = BlockMax(valid ? Length(Minus(n, nm)) : 0.0f, shared);
    const float slack = BlockMax(valid ? Length(d) : 0.0f, shared);
    out.along = BlockMax(valid ? fabsf(Dot(d, nm)) : 0.0f, shared);
    out.chord = aimless ? 2.0f : chord;
    out.count = static_cast<int>(total);
    out.cone.ox = om.x, out.cone.oy = om.y, out.cone.oz = om.z;
    out.cone.nx = nm.x, out.cone.ny = nm.y, out.cone.nz = nm.z;
    out.cone.slack = slack * 1.00001f;
    out.cone.SetChord(out.chord);
  }
  if (threadIdx.x == 0) p.tiles[std::int64_t{pair} * p.coarse.tiles() + tile] = out;
}

__device__ Vec WarpSum(Vec v) {
  for (int d = 16; d > 0; d /= 2) {
    v.x += __shfl_xor_sync(~0u, v.x, d), v.y += __shfl_xor_sync(~0u, v.y, d);
    v.z += __shfl_xor_sync(~0u, v.z, d);
  }
  return v;
}

// The cones of coarse cells and of groups of them from those of their tiles: a warp each.
__global__ void MergeCones(Prepared p) {
  const Coarse& coarse = p.coarse;
  const int pair = blockIdx.y, lane = threadIdx.x;
  const bool group = blockIdx.x >= coarse.cells();
  const int index = group ? blockIdx.x - coarse.cells() : blockIdx.x;
  const int side = group ? 4 * coarse.side : coarse.side;
  const int across = group ? coarse.groups_x : coarse.cells_x;
  const int y0 = index / across * side, x0 = index % across * side;
  const int height = min(side, coarse.tiles_y - y0), width = min(side, coarse.tiles_x - x0);
  const TileCone* tiles = p.tiles + std::int64_t{pair} * coarse.tiles();
  const auto at = [&](int i) -> const TileCone& {
    return tiles[(y0 + i / width) * coarse.tiles_x + x0 + i % width];
  };
  int first = 0x7fffffff, count = 0;
  for (int i = lane; i < height * width; i += 32)
    if (!at(i).cone.empty) first = min(first, i), ++count;
  first = __reduce_min_sync(~0u, first), count = __reduce_add_sync(~0u, count);
  Cone cone = {};
  cone.empty = count == 0;
  if (count > 0) {
    const Vec base = {at(first).cone.ox, at(first).cone.oy, at(first).cone.oz};
    Vec o = {0, 0, 0}, n = {0, 0, 0};
    for (int i = lane; i < height * width; i += 32) {
      const Cone& c = at(i).cone;
      if (c.empty) continue;
      o = {o.x + c.ox - base.x, o.y + c.oy - base.y, o.z + c.oz - base.z};
      n = {n.x + c.nx, n.y + c.ny, n.z + c.nz};
    }
    o = WarpSum(o), n = WarpSum(n);
    bool aimless;
    const float s = 1.0f / count;
    n = Normalized({n.x * s, n.y * s, n.z * s}, &aimless);
    cone.ox = base.x + o.x * s, cone.oy = base.y + o.y * s, cone.oz = base.z + o.z * s;
    cone.nx = n.x, cone.ny = n.y, cone.nz = n.z;
    float chord = 0, slack = 0;
    for (int i = lane; i < height * width; i += 32) {
      const TileCone& t = at(i);
      if (t.cone.empty) continue;
      const Vec d = {t.cone.nx - n.x, t.cone.ny - n.y, t.cone.nz - n.z};
      const Vec e = {t.cone.ox - cone.ox, t.cone.oy - cone.oy, t.cone.oz - cone.oz};
      chord = fmaxf(chord, Length(d) + t.chord);  // the sum of two angles has less chord
      slack = fmaxf(slack, Length(e) + t.cone.slack);
    }
    for (int d = 16; d > 0; d /= 2) {
      chord = fmaxf(chord, __shfl_xor_sync(~0u, chord, d));
      slack = fmaxf(slack, __shfl_xor_sync(~0u, slack, d));
    }
    cone.slack = slack * 1.00001f;
    cone.SetChord(aimless ? 2.0f : chord);
  }
  if (lane == 0)
    (group ? p.groups + std::int64_t{pair} * coarse.groups()
           : p.cells + std::int64_t{pair} * coarse.cells())[index] = cone;
}

__global__ void ViewStates(BlendCall call, Prepared p) {
  __shared__ float shared[32];
  __shared__ Vec first_shared;
  __shared__ int index;
  const int pair = blockIdx.x, problem = pair / call.views, view = pair % call.views;
  const Coarse& coarse = p.coarse;
  const TileCone* tiles = p.tiles + std::int64_t{pair} * coarse.tiles();
  // The mean beam, from the tiles' means.
  Vec first = {0, 0, 0}, ahead = {0, 0, 0}, o = {0, 0, 0}, n = {0, 0, 0};
  int count = 0;
  for (int t = threadIdx.x; t < coarse.tiles(); t += blockDim.x) {
    if (tiles[t].cone.empty) continue;
    if (count == 0) {
      first = {tiles[t].cone.ox, tiles[t].cone.oy, tiles[t].cone.oz};
      ahead = {tiles[t].cone.nx, tiles[t].cone.ny, tiles[t].cone.nz};
    }
    count += tiles[t].count;
  }
  bool any;
  const bool has = count > 0;
  first = BlockFirst(first, has, &any, &first_shared, &index);
  ahead = BlockFirst(ahead, has, &any, &first_shared, &index);
  for (int t = threadIdx.x; t < coarse.tiles(); t += blockDim.x) {
    const Cone& c = tiles[t].cone;
    if (c.empty) continue;
    const float w = static_cast<float>(tiles[t].count);
    o.x += w * (c.ox - first.x), o.y += w * (c.oy - first.y), o.z += w * (c.oz - first.z);
    n.x += w * (c.nx - ahead.x), n.y += w * (c.ny - ahead.y), n.z += w * (c.nz - ahead.z);
  }
  const float s = 1.0f / fmaxf(BlockSum(static_cast<float>(count), shared), 1.0f);
  const Vec om = {first.x + BlockSum(o.x, shared) * s, first.y + BlockSum(o.y, shared) * s,
                  first.z + BlockSum(o.z, shared) * s};
  const Vec nm = {ahead.x + BlockSum(n.x, shared) * s, ahead.y + BlockSum(n.y, shared) * s,
                  ahead.z + BlockSum(n.z, shared) * s};
  float shift = 0, along = 0, spread = 0;
  for (int t = threadIdx.x; t < coarse.tiles(); t += blockDim.x) {
    const Cone& c = tiles[t].cone;
    if (c.empty) continue;
    const Vec d = {c.ox - om.x, c.oy - om.y, c.oz - om.z};
    const Vec e = {c.nx - nm.x, c.ny - nm.y, c.nz - nm.z};
    shift = fmaxf(shift, Length(d) + c.slack);
    along = fmaxf(along, fabsf(Dot(d, nm)) + tiles[t].along);
    spread = fmaxf(spread, Length(e) + tiles[t].chord);
  }
  shift = BlockMax(shift, shared), along = BlockMax(along, shared);
  spread = BlockMax(spread, shared);
  if (threadIdx.x == 0) {
    const float* footprint = DataOf(call.batch, call.footprint, problem) + 2 * view;
    const float* limits = DataOf(call.batch, call.limits, problem);
    ViewState out = {};
    out.beam = Beam::Make(footprint[0], footprint[1]);
    out.parallel = !out.beam.spread && spread <= kParallelTolerance;
    out.point = out.beam.spread && footprint[0] == 0.0f;
    out.o[0] = om.x, out.o[1] = om.y, out.o[2] = om.z;
    out.n[0] = nm.x, out.n[1] = nm.y, out.n[2] = nm.z;
    out.shift = out.parallel ? along : shift;
    out.reach_shift = shift;
    out.range = {limits[0], limits[1]};
    out.gamma = limits[2], out.background_depth = limits[3];
    p.views[pair] = out;
    p.used[pair] = 0;
  }
}

__device__ std::uint32_t Sortable(float x) {
  const std::uint32_t bits = __float_as_uint(x);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

struct Seen {
  float key, reach;
  bool visible;
};

// Key and reach of a sphere in a view; the same rule as on the CPU.
__device__ Seen See(const BlendCall& call, const ViewState& view, int problem, std::int64_t i,
                    float* below) {
  const float* c = DataOf(call.batch, call.centers, problem) + 3 * i;
  const float r = DataOf(call.batch, call.radii, problem)[i];
  const float opacity = DataOf(call.batch, call.opacities, problem)[i];
  const Vec v = {c[0] - view.o[0], c[1] - view.o[1], c[2] - view.o[2]};
  const float distance = Length(v);
  const float along = Dot(v, {view.n[0], view.n[1], view.n[2]});
  const Beam& beam = view.beam;
  const float e = beam.e0 + beam.e1 * (distance + view.reach_shift);
  Seen seen;
  seen.reach = (r < kThinRadius * e ? fmaxf(r, kThinReach * e) : r) * 1.00001f;
  seen.key = (view.parallel ? along : distance) - r;
  *below = view.parallel || view.point
               ? 0.0f
               : distance - sqrtf(fmaxf(distance * distance - seen.reach * seen.reach, 0.0f));
  const float margin = 1e-5f * (distance + r + view.shift);
  float finite = (c[0] + c[1] + c[2] + r + opacity) * 0.0f;
  const float* f = DataOf(call.batch, call.features, problem) + i * call.channels;
  for (int k = 0; k < call.channels; ++k) finite += f[k] * 0.0f;
  seen.visible = finite == 0.0f && r >= 0.0f &&
                 !(seen.key + view.shift + margin < view.range.near) &&
                 !(seen.key - view.shift - *below - margin > view.range.far);
  return seen;
}

__global__ void MakeKeys(BlendCall call, Prepared p) {
  const std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const int pair = blockIdx.y;
  if (i >= call.spheres) return;
  ViewState& view = p.views[pair];
  float below;
  const Seen seen = See(call, view, pair / call.views, i, &below);
  const std::int64_t at = std::int64_t{pair} * call.spheres + i;
  const std::uint32_t key = seen.visible ? Sortable(seen.key) : kHiddenKey;
  if (call.pairs == 1)
    reinterpret_cast<std::uint32_t*>(p.keys[0])[at] = key;
  else
    p.keys[0][at] = static_cast<std::uint64_t>(pair) << 32 | key;
  p.order[0][at] = static_cast<std::int32_t>(i);
  if (seen.visible) {
    const int problem = pair / call.views;
    const float* c = DataOf(call.batch, call.centers, problem) + 3 * i;
    p.unsorted[at] = {c[0],
                      c[1],
                      c[2],
                      DataOf(call.batch, call.radii, problem)[i],
                      DataOf(call.batch, call.opacities, problem)[i],
                      seen.key,
                      seen.reach,
                      static_cast<std::int32_t>(i)};
  }
  const unsigned seen_lanes = __ballot_sync(__activemask(), seen.visible);
  if (seen.visible) {
    if (__ffs(seen_lanes) - 1 == threadIdx.x % 32) atomicAdd(&view.visible, __popc(seen_lanes));
    if (below > 0) atomicMax(&view.drop_bits, __float_as_uint(below));
  }
}

// Copies spheres in front-to-back order: 32 bytes each, one sector.
__global__ void Gather(BlendCall call, Prepared p) {
  const std::int64_t rank = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const int pair = blockIdx.y;
  if (rank >= p.views[pair].visible) return;
  const std::int64_t base = std::int64_t{pair} * call.spheres;
  p.records[base + rank] = p.unsorted[base + p.order[1][base + rank]];
}

// Which of a chunk's spheres touch which cell: a bit for each sphere in p.words [chunk, cell, 32],
// and how many in p.counts.
__global__ void __launch_bounds__(kChunk) Bin(BlendCall call, Prepared p) {
  extern __shared__ std::uint32_t words[];  // [cells, kChunk / 32]
  const int pair = blockIdx.y, chunk = blockIdx.x;
  const Coarse& coarse = p.coarse;
  const int cells = coarse.cells(), warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const ViewState& view = p.views[pair];
  const std::int64_t counts_at = (std::int64_t{pair} * cells) * p.chunks + chunk;
  if (chunk * kChunk >= view.visible) {
    for (int c = threadIdx.x; c < cells; c += blockDim.x)
      p.counts[counts_at + std::int64_t{c} * p.chunks] = 0;
    return;
  }
  for (int w = threadIdx.x; w < cells * (kChunk / 32); w += blockDim.x) words[w] = 0;
  __syncthreads();
  const int rank = chunk * kChunk + threadIdx.x;
  const bool has = rank < view.visible;
  SphereRecord s = {};
  if (has) s = p.records[std::int64_t{pair} * call.spheres + rank];
  const Cone* groups = p.groups + std::int64_t{pair} * coarse.groups();
  const Cone* cones = p.cells + std::int64_t{pair} * cells;
  for (int g = 0; g < coarse.groups(); ++g) {
    const bool touches = has && !groups[g].empty && Touches(groups[g], s.x, s.y, s.z, s.reach);
    unsigned bits = __ballot_sync(~0u, touches);
    if (bits == 0) continue;
    // The few spheres that pass are tested two at a time, a lane for each of 16 cells.
    const int y = g / coarse.groups_x * 4 + lane % 16 / 4, x = g % coarse.groups_x * 4 + lane % 4;
    const bool inside = y < coarse.cells_y && x < coarse.cells_x;
    const int c = y * coarse.cells_x + x;
    Cone cone = {};
    cone.empty = true;
    if (inside) cone = cones[c];
    while (bits != 0) {
      const int first = __ffs(bits) - 1;
      bits &= bits - 1;
      const int second = bits != 0 ? __ffs(bits) - 1 : -1;
      bits &= bits - 1;
      const int source = lane < 16 ? first : second;
      const int from = source < 0 ? 0 : source;
      const float sx = __shfl_sync(~0u, s.x, from), sy = __shfl_sync(~0u, s.y, from);
      const float sz = __shfl_sync(~0u, s.z, from), reach = __shfl_sync(~0u, s.reach, from);
      if (source >= 0 && !cone.empty && Touches(cone, sx, sy, sz, reach))
        atomicOr(&words[c * (kChunk / 32) + warp], 1u << source);
    }
  }
  __syncthreads();
  std::uint32_t* out = p.words + (std::int64_t{pair} * p.chunks + chunk) * cells * (kChunk / 32);
  for (int c = warp; c < cells; c += kChunk / 32) {
    const std::uint32_t word = words[c * (kChunk / 32) + lane];
    out[c * (kChunk / 32) + lane] = word;
    const int total = __reduce_add_sync(~0u, __popc(word));
    if (lane == 0) p.counts[counts_at + std::int64_t{c} * p.chunks] = total;
  }
}

// Writes the lists from the bits.
__global__ void __launch_bounds__(kChunk) Fill(BlendCall call, Prepared p) {
  const int pair = blockIdx.y, chunk = blockIdx.x;
  const int cells = p.coarse.cells(), warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (chunk * kChunk >= p.views[pair].visible) return;
  const std::uint32_t* words =
      p.words + (std::int64_t{pair} * p.chunks + chunk) * cells * (kChunk / 32);
  for (int c = warp; c < cells; c += kChunk / 32) {
    std::uint32_t word = words[c * (kChunk / 32) + lane];
    if (__ballot_sync(~0u, word != 0) == 0) continue;
    int before = __popc(word);  // inclusive scan over the words
    for (int d = 1; d < 32; d *= 2) {
      const int other = __shfl_up_sync(~0u, before, d);
      if (lane >= d) before += other;
    }
    const CellList& list = p.lists[std::int64_t{pair} * cells + c];
    if (list.offset < 0) continue;
    std::int32_t* out = p.pool + std::int64_t{pair} * p.pool_size + list.offset +
                        p.counts[(std::int64_t{pair} * cells + c) * p.chunks + chunk] + before -
                        __popc(word);
    for (; word != 0; word &= word - 1) *out++ = chunk * kChunk + lane * 32 + __ffs(word) - 1;
  }
}

// Turns the lengths of a cell's parts into where they begin, and finds room for its list.
__global__ void PlaceLists(BlendCall call, Prepared p) {
  __shared__ int warps[kThreads / 32];
  const int pair = blockIdx.y, cell = blockIdx.x, cells = p.coarse.cells();
  std::int32_t* counts = p.counts + (std::int64_t{pair} * cells + cell) * p.chunks;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int total = 0;
  for (int start = 0; start < p.chunks; start += kThreads) {
    const int i = start + threadIdx.x;
    const int own = i < p.chunks ? counts[i] : 0;
    int sum = own;
    for (int d = 1; d < 32; d *= 2) {
      const int other = __shfl_up_sync(~0u, sum, d);
      if (lane >= d) sum += other;
    }
    if (lane == 31) warps[warp] = sum;
    __syncthreads();
    int before = total;
    for (int w = 0; w < kThreads / 32; ++w) {
      if (w < warp) before += warps[w];
      total += warps[w];
    }
    if (i < p.chunks) counts[i] = before + sum - own;
    __syncthreads();
  }
  if (threadIdx.x == 0) {
    const unsigned long long at = atomicAdd(&p.used[pair], static_cast<unsigned long long>(total));
    const bool fits = at + total <= static_cast<unsigned long long>(p.pool_size);
    p.lists[std::int64_t{pair} * cells + cell] = {fits ? static_cast<std::int64_t>(at) : -1,
                                                  fits ? total : p.views[pair].visible};
  }
}

// Double buffers: the sort needs no room for copies. Which of them holds the result depends on the
// number of bits alone.
template <typename Key>
const char* Sort(Prepared* p, std::int64_t items, int bits, cudaStream_t stream) {
  cub::DoubleBuffer<Key> keys(reinterpret_cast<Key*>(p->keys[0]),
                              reinterpret_cast<Key*>(p->keys[1]));
  cub::DoubleBuffer<std::int32_t> order(p->order[0], p->order[1]);
  std::size_t needed = 0;
  cub::DeviceRadixSort::SortPairs(nullptr, needed, keys, order, items, 0, bits, stream);
  if (needed > p->sort_bytes) return "blend: scratch of the sort is too small";
  std::size_t given = p->sort_bytes;
  cub::DeviceRadixSort::SortPairs(p->sort, given, keys, order, items, 0, bits, stream);
  p->order[1] = order.Current();
  return nullptr;
}

}  // namespace

std::size_t BlendScratch(std::int64_t spheres, std::int64_t views, std::int64_t height,
                         std::int64_t width) {
  const int h = static_cast<int>(height), w = static_cast<int>(width);
  Arena small = {nullptr}, large = {nullptr};
  Layout(&small, views, spheres, Coarse::For<SmallTile>(h, w));
  Layout(&large, views, spheres, Coarse::For<LargeTile>(h, w));
  // Parts are aligned once for all problems: this leaves room for that in each.
  return small.used > large.used ? small.used : large.used;
}

const char* Prepare(const BlendCall& call, const Coarse& coarse, cudaStream_t stream,
                    Prepared* out) {
  Arena arena = {static_cast<char*>(call.scratch)};
  Prepared p = Layout(&arena, call.pairs, call.spheres, coarse);
  if (arena.used > call.scratch_bytes) return "blend: scratch is too small";
  if (call.spheres >= (std::int64_t{1} << 31) / 2) return "blend: more than 2^30 spheres";
  const unsigned pairs = call.pairs;
  TileCones<<<dim3(p.coarse.tiles(), pairs), p.coarse.tile_width * p.coarse.tile_height, 0,
              stream>>>(call, p);
  ViewStates<<<pairs, 1024, 0, stream>>>(call, p);
  MergeCones<<<dim3(p.coarse.cells() + p.coarse.groups(), pairs), 32, 0, stream>>>(p);
  const unsigned blocks = (call.spheres + kThreads - 1) / kThreads;
  if (call.spheres > 0) {
    MakeKeys<<<dim3(blocks, pairs), kThreads, 0, stream>>>(call, p);
    int bits = 32;
    while ((std::int64_t{1} << (bits - 32)) < call.pairs) ++bits;
    const std::int64_t items = std::int64_t{call.pairs} * call.spheres;
    const char* error = call.pairs == 1 ? Sort<std::uint32_t>(&p, items, 32, stream)
                                        : Sort<std::uint64_t>(&p, items, bits, stream);
    if (error != nullptr) return error;
    Gather<<<dim3(blocks, pairs), kThreads, 0, stream>>>(call, p);
    const std::size_t bytes = sizeof(std::uint32_t) * p.coarse.cells() * (kChunk / 32);
    Bin<<<dim3(p.chunks, pairs), kChunk, bytes, stream>>>(call, p);
    PlaceLists<<<dim3(p.coarse.cells(), pairs), kThreads, 0, stream>>>(call, p);
    Fill<<<dim3(p.chunks, pairs), kChunk, 0, stream>>>(call, p);
  }
  *out = p;
  const cudaError_t status = cudaGetLastError();
  return status == cudaSuccess ? nullptr : cudaGetErrorString(status);
}

}  // namespace jaxrec
