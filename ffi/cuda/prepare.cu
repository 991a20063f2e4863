#include <cuda_fp16.h>

#include <cub/block/block_radix_sort.cuh>
#include <cub/device/device_radix_sort.cuh>

#include "cuda/prepare.cuh"
#include "cuda/warp.cuh"

namespace jaxrec {
namespace {

constexpr float kParallelTolerance = 2e-6f;
constexpr int kThreads = 256;
constexpr int kKeyThreads = 512;

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

// Of what is kept for the backward pass, the place of each part in one view's bytes.
PairLayout KeptLayout(std::int64_t spheres, const Coarse& coarse) {
  PairLayout at;
  Arena arena = {nullptr};
  const auto place = [&](std::size_t bytes) {
    const std::size_t begin = arena.used;
    arena.Take<char>(bytes);
    return begin;
  };
  at.pool_size = kListsPerSphere * spheres;
  at.view = place(sizeof(ViewState));
  at.warps = place(sizeof(Bundle) * coarse.tiles() * coarse.warps());
  at.tiles = place(sizeof(Bundle) * coarse.tiles());
  at.lists = place(sizeof(CellList) * coarse.cells());
  at.records = place(sizeof(SphereRecord) * spheres);
  at.pool = place(sizeof(Candidate) * at.pool_size);
  at.bytes = arena.used;
  return at;
}

void LayoutScratch(Arena* arena, std::int64_t pairs, std::int64_t spheres, Prepared* p) {
  const Coarse& coarse = p->coarse;
  p->chunks = static_cast<int>((spheres + kChunk - 1) / kChunk);
  p->sums = arena->Take<TileSums>(pairs * coarse.tiles());
  p->cell_sums = arena->Take<TileSums>(pairs * coarse.cells());
  p->lines = arena->Take<Span>(pairs * coarse.lines());
  p->intervals = arena->Take<Interval>(pairs * coarse.lines());
  p->bundles = arena->Take<Bundle>(pairs * coarse.cells());
  p->cells = arena->Take<Box>(pairs * coarse.cells());
  p->columns = arena->Take<Interval>(pairs * kMaxAxis);
  p->rows = arena->Take<Interval>(pairs * kMaxAxis);
  for (auto& keys : p->keys) keys = arena->Take<std::uint64_t>(pairs * spheres);
  for (auto& order : p->order) order = arena->Take<std::int32_t>(pairs * spheres);
  p->unsorted = arena->Take<SphereRecord>(pairs * spheres);
  p->ranges = arena->Take<TileRange>(pairs * spheres);
  p->counts = arena->Take<std::int32_t>(pairs * coarse.cells() * p->chunks);
  p->used = arena->Take<unsigned long long>(pairs);
  // Onesweep keeps a few counters for each tile of the input; this bounds them generously.
  p->sort_bytes = Align(pairs * spheres * 2 + (std::size_t{4} << 20));
  p->sort = arena->Take<char>(p->sort_bytes);
}

struct Vec {
  float x, y, z;
};
__device__ Vec Minus(Vec a, Vec b) { return {a.x - b.x, a.y - b.y, a.z - b.z}; }
__device__ float Dot(Vec a, Vec b) { return a.x * b.x + a.y * b.y + a.z * b.z; }
__device__ float Length(Vec a) { return sqrtf(Dot(a, a)); }
__device__ Vec Times(float s, Vec a) { return {s * a.x, s * a.y, s * a.z}; }
__device__ Vec Cross(Vec a, Vec b) {
  return {a.y * b.z - a.z * b.y, a.z * b.x - a.x * b.z, a.x * b.y - a.y * b.x};
}

struct RayOf {
  Vec o, n;
  bool valid;
};

__device__ __forceinline__ RayOf LoadRay(const BlendCall& call, int pair, int y, int x) {
  const int problem = ProblemOf(call, pair), view = ViewOf(call, pair);
  const std::int64_t at = 3 * ((std::int64_t{view} * call.height + y) * call.width + x);
  const float* o = DataOf(call.batch, call.origins, problem) + at;
  const float* n = DataOf(call.batch, call.directions, problem) + at;
  RayOf ray = {{o[0], o[1], o[2]}, {n[0], n[1], n[2]}, false};
  const float finite = (ray.o.x + ray.o.y + ray.o.z + ray.n.x + ray.n.y + ray.n.z) * 0.0f;
  ray.valid = finite == 0.0f && fabsf(Dot(ray.n, ray.n) - 1.0f) <= kUnitTolerance;
  return ray;
}

__device__ Vec Shuffled(Vec v, int lane) {
  return {__shfl_sync(~0u, v.x, lane), __shfl_sync(~0u, v.y, lane), __shfl_sync(~0u, v.z, lane)};
}

// A frame of the view's rays. Any would do: this one makes boxes tight. A lane loads a ray: the
// middle and those of the quadrants, of which the first valid one counts, then what lies left,
// right, above and below.
__device__ Frame FrameOf(const BlendCall& call, int pair) {
  const int lane = threadIdx.x % 32;
  const int y = lane == 0 || lane == 5 || lane == 6   ? 2
                : lane == 1 || lane == 2 || lane == 7 ? 1
                                                      : 3;
  const int x = lane == 0 || lane >= 7 ? 2 : lane == 1 || lane == 3 || lane == 5 ? 1 : 3;
  RayOf ray = {};
  if (lane < 9) ray = LoadRay(call, pair, call.height * y / 4, call.width * x / 4);
  const unsigned valid = __ballot_sync(~0u, ray.valid);
  const int middle = max(__ffs(valid & 31u) - 1, 0);
  const Vec o = Shuffled(ray.o, middle), n = Shuffled(ray.n, middle);
  const Vec sideways_n = Minus(Shuffled(ray.n, 6), Shuffled(ray.n, 5));
  const Vec sideways_o = Minus(Shuffled(ray.o, 6), Shuffled(ray.o, 5));
  const Vec down_n = Minus(Shuffled(ray.n, 8), Shuffled(ray.n, 7));
  const Vec down_o = Minus(Shuffled(ray.o, 8), Shuffled(ray.o, 7));
  Frame f = {{0, 0, 0}, {0, 0, 0}, {{1, 0, 0}, {0, 1, 0}, {0, 0, 1}}};
  if ((valid & 31u) == 0) return f;
  const Vec z_axis = Times(1.0f / Length(n), n);
  const auto across = [&](Vec v) { return Minus(v, Times(Dot(v, z_axis), z_axis)); };
  Vec x_axis = {0, 0, 0};
  if ((valid >> 5 & 3u) == 3u) {
    x_axis = across(sideways_n);
    if (!(Length(x_axis) > 1e-4f)) x_axis = across(sideways_o);
  }
  if (!(Length(x_axis) > 1e-6f)) {  // across z and the axis furthest from it
    const Vec a = {fabsf(z_axis.x), fabsf(z_axis.y), fabsf(z_axis.z)};
    x_axis = Cross(z_axis, a.x <= a.y && a.x <= a.z ? Vec{1, 0, 0}
                           : a.y <= a.z             ? Vec{0, 1, 0}
                                                    : Vec{0, 0, 1});
  }
  x_axis = across(Times(1.0f / Length(x_axis), x_axis));  // once more: the first may have cancelled
  x_axis = Times(1.0f / Length(x_axis), x_axis);
  Vec y_axis = Cross(z_axis, x_axis);
  if ((valid >> 7 & 3u) == 3u) {  // downwards, as rows go
    const float turn = Dot(down_n, y_axis), move = Dot(down_o, y_axis);
    if ((fabsf(turn) > 1e-4f ? turn : move) < 0.0f) y_axis = Times(-1.0f, y_axis);
  }
  f.base[0] = o.x, f.base[1] = o.y, f.base[2] = o.z;
  f.ray[0] = n.x, f.ray[1] = n.y, f.ray[2] = n.z;
  const Vec axes[3] = {x_axis, y_axis, z_axis};
  for (int k = 0; k < 3; ++k)
    f.axes[k][0] = axes[k].x, f.axes[k][1] = axes[k].y, f.axes[k][2] = axes[k].z;
  return f;
}

__device__ __forceinline__ Interval WarpUnion(Interval i) {
  return {WarpMin(i.low), WarpMax(i.high)};
}
__device__ __forceinline__ void Widen(Interval* to, const Interval& i) {
  to->low = fminf(to->low, i.low), to->high = fmaxf(to->high, i.high);
}
constexpr Interval kNothing = {INFINITY, -INFINITY};

// The frames of all views: a warp for each.
__global__ void __launch_bounds__(32) MakeFrames(BlendCall call, Prepared p) {
  Follow();
  const Frame frame = FrameOf(call, blockIdx.x);
  if (threadIdx.x == 0) p.Of(call, blockIdx.x).view().frame = frame;
}

__device__ __forceinline__ void Clear(Bundle* b, TileSums* s) {
  for (int k = 0; k < 3; ++k) b->direction[k] = b->origin[k] = kNothing;
  *s = {};
  s->along = s->slope[0] = s->slope[1] = kNothing;
}

// Merges what the lanes hold.
__device__ __forceinline__ void WarpMerge(Bundle* b, TileSums* s) {
  for (int k = 0; k < 3; ++k) {
    b->direction[k] = WarpUnion(b->direction[k]), b->origin[k] = WarpUnion(b->origin[k]);
    s->direction[k] = WarpSum(s->direction[k]), s->origin[k] = WarpSum(s->origin[k]);
  }
  s->along = WarpUnion(s->along);
  for (Interval& slope : s->slope) slope = WarpUnion(slope);
  for (int d = 16; d > 0; d /= 2) s->count += __shfl_xor_sync(~0u, s->count, d);
}

__device__ __forceinline__ void Merge(const Bundle& b, const TileSums& s, Bundle* to,
                                      TileSums* sum) {
  for (int k = 0; k < 3; ++k) {
    Widen(&to->direction[k], b.direction[k]), Widen(&to->origin[k], b.origin[k]);
    sum->direction[k] += s.direction[k], sum->origin[k] += s.origin[k];
  }
  Widen(&sum->along, s.along);
  for (int k = 0; k < 2; ++k) Widen(&sum->slope[k], s.slope[k]);
  sum->count += s.count;
}

// Where the values of a warp's rays stand: largest values, each low end negated, then sums.
enum SpanValue {
  kSpanDirection = 0,
  kSpanSlope = 6,
  kSpanOrigin = 10,
  kSpanSums = 16,
  kSpanAlong = 24,
  kSpanValues = 26
};

// Bounds of the rays of each tile and of its warps; sums are deviations from the frame's ray.
template <typename Tile>
__global__ void __launch_bounds__(Tile::kRays) BoundTiles(BlendCall call, Prepared p) {
  constexpr int kWarps = Tile::kRays / 32;
  __shared__ float values[kWarps][kSpanValues];
  const int pair = blockIdx.z, tile = blockIdx.y * p.coarse.tiles_x + blockIdx.x;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  Pixel pixel;
  const bool inside = PixelOf<Tile>(call, warp, &pixel);
  Follow();
  RayOf ray = {};
  if (inside) ray = LoadRay(call, pair, pixel.y, pixel.x);
  const PairData data = p.Of(call, pair);
  const Frame& frame = data.view().frame;
  const Vec o = Minus(ray.o, {frame.base[0], frame.base[1], frame.base[2]});
  const Vec d = Minus(ray.n, {frame.ray[0], frame.ray[1], frame.ray[2]});
  float n[3], t[3];
  for (int k = 0; k < 3; ++k) {
    const Vec axis = {frame.axes[k][0], frame.axes[k][1], frame.axes[k][2]};
    n[k] = Dot(axis, ray.n), t[k] = Dot(axis, o);
  }
  const float ahead = 1.0f / fmaxf(n[2], kAhead);
  float a[8] = {-n[0], n[0], -n[1], n[1], -n[2], n[2], -n[0] * ahead, n[0] * ahead};
  float b[8] = {-n[1] * ahead, n[1] * ahead, -t[0], t[0], -t[1], t[1], -t[2], t[2]};
  float sum[8] = {d.x, d.y, d.z, o.x, o.y, o.z, 1.0f, 0.0f};
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    a[k] = ray.valid ? a[k] : -INFINITY, b[k] = ray.valid ? b[k] : -INFINITY;
    sum[k] = ray.valid ? sum[k] : 0.0f;
  }
  const auto larger = [](float x, float y) { return fmaxf(x, y); };
  const float of_a = ReduceEight(a, larger), of_b = ReduceEight(b, larger);
  const float of_sum = ReduceEight(sum, [](float x, float y) { return x + y; });
  if (lane % 4 == 0) {
    const int k = Reduced(lane);
    values[warp][k] = of_a, values[warp][8 + k] = of_b, values[warp][kSpanSums + k] = of_sum;
  }
  float along = Dot(o, ray.n);
  const bool still = __all_sync(~0u, !ray.valid || along == 0.0f);
  const bool any = __any_sync(~0u, ray.valid) != 0;
  const float low = still ? 0.0f : WarpMax(ray.valid ? -along : -INFINITY);
  const float high = still ? 0.0f : WarpMax(ray.valid ? along : -INFINITY);
  if (lane == 0) {
    values[warp][kSpanAlong] = any ? low : -INFINITY;
    values[warp][kSpanAlong + 1] = any ? high : -INFINITY;
  }
  __syncthreads();
  const auto signed_value = [](int k, float value) { return k % 2 == 0 ? -value : value; };
  constexpr int kFloats = sizeof(Bundle) / sizeof(float);
  static_assert(kFloats == 12 && kWarps * kFloats <= Tile::kRays);
  if (threadIdx.x < kWarps * kFloats) {
    const int w = threadIdx.x / kFloats, k = threadIdx.x % kFloats;
    const float value = values[w][k < 6 ? k : kSpanOrigin + k - 6];
    reinterpret_cast<float*>(data.warps() + std::int64_t{tile} * kWarps)[threadIdx.x] =
        signed_value(k, value);
  }
  if (threadIdx.x >= kSpanValues) return;
  const int k = threadIdx.x;
  float all = values[0][k];
  for (int w = 1; w < kWarps; ++w)
    all = k >= kSpanSums && k < kSpanAlong ? all + values[w][k] : fmaxf(all, values[w][k]);
  float* bundle = reinterpret_cast<float*>(data.tiles() + tile);
  TileSums& sums = p.sums[std::int64_t{pair} * p.coarse.tiles() + tile];
  if (k < kSpanSlope)
    bundle[k] = signed_value(k, all);
  else if (k < kSpanOrigin)
    (k % 2 == 0 ? sums.slope[(k - kSpanSlope) / 2].low : sums.slope[(k - kSpanSlope) / 2].high) =
        signed_value(k, all);
  else if (k < kSpanSums)
    bundle[6 + k - kSpanOrigin] = signed_value(k, all);
  else if (k < kSpanSums + 3)
    sums.direction[k - kSpanSums] = all;
  else if (k < kSpanSums + 6)
    sums.origin[k - kSpanSums - 3] = all;
  else if (k == kSpanSums + 6)
    sums.count = static_cast<int>(all);
  else if (k == kSpanAlong)
    sums.along.low = -all;
  else if (k == kSpanAlong + 1)
    sums.along.high = all;
}

// Bounds of the cells, and the spans of columns and rows of tiles: a warp for each.
__global__ void __launch_bounds__(32) BoundCells(BlendCall call, Prepared p) {
  Follow();
  const Coarse& c = p.coarse;
  const int pair = blockIdx.y, index = blockIdx.x, lane = threadIdx.x;
  const bool cell = index < c.cells(), column = !cell && index < c.cells() + c.tiles_x;
  const int line = index - c.cells() - (column ? 0 : c.tiles_x);
  const int y0 = cell ? index / c.cells_x * c.side_y : column ? 0 : line;
  const int x0 = cell ? index % c.cells_x * c.side_x : column ? line : 0;
  const int height = min(cell ? c.side_y : column ? c.tiles_y : 1, c.tiles_y - y0);
  const int width = min(cell ? c.side_x : column ? 1 : c.tiles_x, c.tiles_x - x0);
  const Bundle* bundles = p.Of(call, pair).tiles();
  const TileSums* sums = p.sums + std::int64_t{pair} * c.tiles();
  Bundle b;
  TileSums s;
  Clear(&b, &s);
  for (int i = lane; i < height * width; i += 32) {
    const int at = (y0 + i / width) * c.tiles_x + x0 + i % width;
    Merge(bundles[at], sums[at], &b, &s);
  }
  WarpMerge(&b, &s);
  if (lane != 0) return;
  if (cell) {
    const std::int64_t at = std::int64_t{pair} * c.cells() + index;
    p.bundles[at] = b, p.cell_sums[at] = s;
  } else {
    const int k = column ? 0 : 1;
    p.lines[std::int64_t{pair} * c.lines() + index - c.cells()] = {b.direction[k], s.slope[k],
                                                                   b.origin[k]};
  }
}

// Bounds of the whole view, and what kind of view it is: a block for each.
__global__ void __launch_bounds__(256) BoundViews(BlendCall call, Prepared p) {
  Follow();
  __shared__ TileSums sums[32];
  __shared__ Bundle bundles[32];
  __shared__ int shared_mode, shared_measure;
  const Coarse& c = p.coarse;
  const int pair = blockIdx.x, problem = ProblemOf(call, pair), view = ViewOf(call, pair);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
  const std::int64_t cells_at = std::int64_t{pair} * c.cells();
  ViewState& stored = p.Of(call, pair).view();
  const float* footprint = DataOf(call.batch, call.footprint, problem) + 2 * view;
  const float* limits = DataOf(call.batch, call.limits, problem);
  ViewState out = {};
  if (threadIdx.x == 0) {
    out.frame = stored.frame;
    out.beam = Beam::Make(footprint[0], footprint[1]);
    out.range = {limits[0], limits[1]};
    out.gamma = limits[2], out.background_depth = limits[3];
  }
  Bundle all;
  TileSums total;
  Clear(&all, &total);
  for (int cell = threadIdx.x; cell < c.cells(); cell += blockDim.x)
    Merge(p.bundles[cells_at + cell], p.cell_sums[cells_at + cell], &all, &total);
  WarpMerge(&all, &total);
  if (lane == 0) bundles[warp] = all, sums[warp] = total;
  __syncthreads();
  if (warp == 0) {
    Clear(&all, &total);
    if (lane < warps) all = bundles[lane], total = sums[lane];
    WarpMerge(&all, &total);
  }
  if (threadIdx.x == 0) {
    const Frame& frame = out.frame;
    const float s = total.count > 0 ? 1.0f / total.count : 0.0f;
    float mean[3];  // of the origins, in the frame
    bool same = true;
    float spread = 0, lean = 0;
    for (int k = 0; k < 3; ++k) {
      out.o[k] = frame.base[k] + total.origin[k] * s;
      out.n[k] = frame.ray[k] + total.direction[k] * s;
      same = same && all.origin[k].low == 0.0f && all.origin[k].high == 0.0f;
    }
    const Vec o = {total.origin[0] * s, total.origin[1] * s, total.origin[2] * s};
    const Vec n = {out.n[0], out.n[1], out.n[2]};
    float shift = 0;
    for (int k = 0; k < 3; ++k) {
      const Vec axis = {frame.axes[k][0], frame.axes[k][1], frame.axes[k][2]};
      mean[k] = Dot(axis, o);
      const float turn = Dot(axis, n);
      if (k < 2) lean = fmaxf(lean, fabsf(turn));
      spread = fmaxf(spread, fmaxf(all.direction[k].high - turn, turn - all.direction[k].low));
      const float far = fmaxf(all.origin[k].high - mean[k], mean[k] - all.origin[k].low);
      shift += far * far;
    }
    if (total.count == 0) shift = 0, total.along = {0, 0};
    shift = sqrtf(shift);
    out.mode = kGeneral;
    if (same && out.beam.spread && out.beam.e0 == 0.0f) out.mode = kCentral;
    if (!out.beam.spread && spread <= kParallelTolerance && lean <= 1e-5f) out.mode = kParallel;
    const float middle = Dot(o, n);
    out.shift =
        out.mode == kParallel ? fmaxf(total.along.high - middle, middle - total.along.low) : shift;
    out.reach_shift = shift;
    out.box = BoxOf(out.mode, all);
    out.measure = out.mode == kParallel           ? kByOrigin
                  : all.direction[2].low > kAhead ? kBySlope
                                                  : kByDirection;
    shared_mode = out.mode, shared_measure = out.measure;
    stored = out;
    p.used[pair] = 0;
  }
  __syncthreads();
  const int mode = shared_mode, measure = shared_measure;
  for (int cell = threadIdx.x; cell < c.cells(); cell += blockDim.x)
    p.cells[cells_at + cell] = BoxOf(mode, p.bundles[cells_at + cell]);
  // Spans of columns and rows of cells, and of tiles in the space of the boxes.
  const Span* spans = p.lines + std::int64_t{pair} * c.lines();
  Interval* lines = p.intervals + std::int64_t{pair} * c.lines();
  bool crossed = true;  // spans advance and hardly overlap, so that a tile is where they cross
  float widths[2] = {}, whole[2];
  for (int k = 0; k < 2; ++k) {
    const int count = k == 0 ? c.tiles_x : c.tiles_y, first = k == 0 ? 0 : c.tiles_x;
    Interval all_of = kNothing;
    for (int i = threadIdx.x; i < count; i += blockDim.x) {
      const Interval a = Of(spans[first + i], measure);
      lines[first + i] = a;
      if (i > 0) {
        const Interval b = Of(spans[first + i - 1], measure);
        crossed = crossed && b.low <= a.low && b.high <= a.high;
      }
      crossed = crossed && a.low <= a.high;
      if (a.low <= a.high) widths[k] += a.high - a.low;
      Widen(&all_of, a);
    }
    all_of = WarpUnion(all_of), widths[k] = WarpSum(widths[k]);
    __syncthreads();
    if (lane == 0) bundles[warp].direction[0] = all_of, sums[warp].direction[0] = widths[k];
    __syncthreads();
    all_of = kNothing, widths[k] = 0;
    for (int w = 0; w < warps; ++w)
      Widen(&all_of, bundles[w].direction[0]), widths[k] += sums[w].direction[0];
    whole[k] = all_of.high - all_of.low;
    const int cells = k == 0 ? c.cells_x : c.cells_y, side = k == 0 ? c.side_x : c.side_y;
    if (threadIdx.x < cells) {
      Interval span = kNothing;
      for (int i = threadIdx.x * side; i < min((static_cast<int>(threadIdx.x) + 1) * side, count);
           ++i)
        Widen(&span, Of(spans[first + i], measure));
      (k == 0 ? p.columns : p.rows)[pair * kMaxAxis + threadIdx.x] = span;
    }
  }
  const int all_crossed = __syncthreads_and(crossed);
  if (threadIdx.x == 0)
    stored.crossed = all_crossed && widths[0] <= 2.0f * whole[0] && widths[1] <= 2.0f * whole[1];
}

// Few spheres are sorted by one block for each view: a pass over memory costs more than their keys.
constexpr int kSortThreads = 1024, kSortItems = 12;
__host__ __device__ constexpr bool SortsByBlock(int spheres) {
  return spheres <= kSortThreads * kSortItems;
}

template <int kItems>
struct BlockSort {
  using Sorter = cub::BlockRadixSort<std::uint32_t, kSortThreads, kItems, std::int32_t>;
  static constexpr int kBytes = sizeof(typename Sorter::TempStorage);
};

template <int kItems>
__global__ void __launch_bounds__(kSortThreads) SortViews(BlendCall call, Prepared p) {
  Follow();
  using Sorter = typename BlockSort<kItems>::Sorter;
  extern __shared__ float4 sort_memory[];
  __shared__ unsigned lowest, highest;
  auto& storage = *reinterpret_cast<typename Sorter::TempStorage*>(sort_memory);
  const std::int64_t base = std::int64_t{static_cast<int>(blockIdx.x)} * call.spheres;
  const std::uint32_t* in = reinterpret_cast<const std::uint32_t*>(p.keys[0]) + base;
  std::uint32_t keys[kItems];
  std::int32_t order[kItems];
  // Stable, so that ties keep the order of their indices.
#pragma unroll
  for (int k = 0; k < kItems; ++k) {
    order[k] = threadIdx.x * kItems + k;
    keys[k] = order[k] < call.spheres ? in[order[k]] : kHiddenKey;
  }
  // Only as many bits are sorted as keys that count differ in.
  if (threadIdx.x == 0) lowest = kHiddenKey, highest = 0;
  __syncthreads();
  unsigned low = kHiddenKey, high = 0;
#pragma unroll
  for (int k = 0; k < kItems; ++k)
    if (keys[k] != kHiddenKey) low = min(low, keys[k]), high = max(high, keys[k]);
  for (int d = 16; d > 0; d /= 2) {
    low = min(low, __shfl_xor_sync(~0u, low, d));
    high = max(high, __shfl_xor_sync(~0u, high, d));
  }
  if (threadIdx.x % 32 == 0 && low <= high) atomicMin(&lowest, low), atomicMax(&highest, high);
  __syncthreads();
  const unsigned hidden = lowest <= highest ? highest - lowest + 1 : 0;
#pragma unroll
  for (int k = 0; k < kItems; ++k) keys[k] = keys[k] == kHiddenKey ? hidden : keys[k] - lowest;
  Sorter(storage).SortBlockedToStriped(keys, order, 0, max(32 - __clz(hidden), 1));
#pragma unroll
  for (int k = 0; k < kItems; ++k) {
    const int rank = k * kSortThreads + threadIdx.x;
    if (rank < call.spheres) p.order[1][base + rank] = order[k];
  }
}

template <int kItems>
void SortByBlock(const BlendCall& call, const Prepared& p, const Stream& stream) {
  constexpr int kBytes = BlockSort<kItems>::kBytes;
  cudaFuncSetAttribute(SortViews<kItems>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  stream.Launch(SortViews<kItems>, call.pairs, kSortThreads, kBytes, call, p);
}

__device__ std::uint32_t Sortable(float x) {
  const std::uint32_t bits = __float_as_uint(x);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// A sphere in a view; the rule of visibility is that of the CPU, and what no ray's bound touches is
// hidden too. *below: by how much x of a hit may fall below the distance.
__device__ bool See(const BlendCall& call, const ViewState& view, int problem, std::int64_t i,
                    SphereRecord* out, float* below) {
  const float* c = DataOf(call.batch, call.centers, problem) + 3 * i;
  const float r = DataOf(call.batch, call.radii, problem)[i];
  const float opacity = DataOf(call.batch, call.opacities, problem)[i];
  const Vec center = {c[0], c[1], c[2]};
  float finite = (center.x + center.y + center.z + r + opacity) * 0.0f;
  const float* f = DataOf(call.batch, call.features, problem) + i * call.channels;
  for (int k = 0; k < call.channels; ++k) finite += f[k] * 0.0f;
  const Vec v = Minus(center, {view.o[0], view.o[1], view.o[2]});
  const float distance = Length(v);
  const Beam& beam = view.beam;
  *below = 0.0f;
  if (view.mode == kCentral) {
    const float inverse = distance > 0.0f ? 1.0f / distance : 0.0f;
    const CentralReach reach = CentralReach::Of(distance, r, beam);
    *out = {v.x * inverse,
            v.y * inverse,
            v.z * inverse,
            distance,
            r,
            opacity,
            sqrtf(reach.hit),
            static_cast<std::int32_t>(i)};
    const float closest = distance - r;
    return finite == 0.0f && r >= 0.0f && closest >= view.range.near && closest <= view.range.far &&
           Touches(view.box, CentralBall(view.frame, *out));
  }
  const bool parallel = view.mode == kParallel;
  const float e = beam.e0 + beam.e1 * (distance + view.reach_shift);
  const float reach = (r < kThinRadius * e ? fmaxf(r, kThinReach * e) : r) * 1.00001f;
  const float along = parallel ? Dot(v, {view.n[0], view.n[1], view.n[2]}) : distance;
  *out = {center.x, center.y, center.z, along, r, opacity, reach, static_cast<std::int32_t>(i)};
  if (!parallel && !(beam.spread && beam.e0 == 0.0f))
    *below = distance - sqrtf(fmaxf(distance * distance - reach * reach, 0.0f));
  const float margin = 1e-5f * (distance + r + view.shift), key = along - r;
  return finite == 0.0f && r >= 0.0f && !(key + view.shift + margin < view.range.near) &&
         !(key - view.shift - *below - margin > view.range.far) &&
         Touches(view.box, BallOf(view, *out));
}

__global__ void __launch_bounds__(kKeyThreads, 3) MakeKeys(BlendCall call, Prepared p) {
  Follow();
  const std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const int pair = blockIdx.y;
  ViewState& view = p.Of(call, pair).view();
  SphereRecord record;
  float below = 0;
  const bool has = i < call.spheres;
  const bool visible = has && See(call, view, ProblemOf(call, pair), i, &record, &below);
  if (has) {
    const std::int64_t at = std::int64_t{pair} * call.spheres + i;
    const std::uint32_t key = visible ? Sortable(record.distance - record.r) : kHiddenKey;
    if (SortsByBlock(call.spheres) || call.pairs == 1)
      reinterpret_cast<std::uint32_t*>(p.keys[0])[at] = key;
    else
      p.keys[0][at] = static_cast<std::uint64_t>(pair) << 32 | key;
    p.order[0][at] = static_cast<std::int32_t>(i);
    if (visible) p.unsorted[at] = record;
  }
  const int seen = __syncthreads_count(visible);
  const int large =
      __syncthreads_count(visible && view.mode == kCentral && record.reach > kLarge * view.beam.e1);
  if (threadIdx.x == 0 && seen > 0) atomicAdd(&view.visible, seen), atomicAdd(&view.large, large);
  if (visible && below > 0) atomicMax(&view.drop_bits, __float_as_uint(below));
}

// Which columns or rows of cells a ball may touch: a bit for each.
__device__ __forceinline__ unsigned Overlaps(const Interval* lines, int count, Interval span) {
  unsigned bits = 0;
  for (int i = 0; i < count; ++i)
    if (span.high >= lines[i].low && span.low <= lines[i].high) bits |= 1u << i;
  return bits;
}

// The first and the last line that overlap, of lines that advance: from where they would be if all
// were of one width.
__device__ __forceinline__ void Search(const Interval* lines, int count, Interval span,
                                       std::int16_t* first, std::int16_t* last) {
  const float low = lines[0].low, over_width = count / (lines[count - 1].high - low);
  const auto guess = [&](float x) {
    return static_cast<int>(fminf(fmaxf((x - low) * over_width, 0.0f), count - 1.0f));
  };
  int a = guess(span.low), b = guess(span.high);
  while (a > 0 && lines[a - 1].high >= span.low) --a;
  while (a < count && lines[a].high < span.low) ++a;
  while (b < count - 1 && lines[b + 1].low <= span.high) ++b;
  while (b >= 0 && lines[b].low > span.high) --b;
  *first = static_cast<std::int16_t>(a), *last = static_cast<std::int16_t>(b);
}

// Slopes of the directions within a ball: x is the axis of the slope. All of them if some do not
// look ahead.
__device__ __forceinline__ Interval SlopesOf(float x, float z, float radius) {
  const float square = x * x + z * z - radius * radius;
  if (!(square > 0.0f)) return {-INFINITY, INFINITY};
  const float c = sqrtf(square);  // cosine of the half-angle, times the hypotenuse
  const float low = z * c + x * radius, high = z * c - x * radius;
  Interval slopes = {low > 1e-6f ? (x * c - z * radius) / low : -INFINITY,
                     high > 1e-6f ? (x * c + z * radius) / high : INFINITY};
  slopes.low -= 1e-5f * fabsf(slopes.low) + 1e-6f,
      slopes.high += 1e-5f * fabsf(slopes.high) + 1e-6f;
  return slopes;
}

// Where a ball lies along the measure of columns (axis 0) or rows (axis 1).
__device__ __forceinline__ Interval Along(int measure, const Ball& ball, int axis) {
  const float at = axis == 0 ? ball.x : ball.y;
  return measure == kBySlope ? SlopesOf(at, ball.z, ball.radius)
                             : Interval{at - ball.radius, at + ball.radius};
}

// Calls use(cell) for the cells that a sphere touches, in the rows from `begin` to before `end`.
template <typename Use>
__device__ __forceinline__ void ForRange(const Coarse& c, const TileRange& r, int begin, int end,
                                         Use use) {
  if (r.x0 > r.x1 || r.y0 > r.y1) return;
  const int left = c.Quotient(r.x0, c.over_x), right = c.Quotient(r.x1, c.over_x);
  const int bottom = min(c.Quotient(r.y1, c.over_y), end - 1);
  for (int y = max(c.Quotient(r.y0, c.over_y), begin); y <= bottom; ++y)
    for (int x = left; x <= right; ++x) use(y * c.cells_x + x);
}
template <typename Use>
__device__ __forceinline__ void ForCells(const Coarse& c, const Box* boxes, const Ball& ball,
                                         unsigned columns, unsigned rows, Use use) {
  for (; rows != 0; rows &= rows - 1) {
    const int first = (__ffs(rows) - 1) * c.cells_x;
    for (unsigned bits = columns; bits != 0; bits &= bits - 1) {
      const int cell = first + __ffs(bits) - 1;
      if (Touches(boxes[cell], ball)) use(cell);
    }
  }
}

// Spans of columns and rows: of tiles where they cross, else of cells.
__device__ __forceinline__ void LoadLines(const Prepared& p, int pair, bool crossed,
                                          Interval* lines) {
  const Coarse& c = p.coarse;
  if (crossed) {
    for (int i = threadIdx.x; i < c.lines(); i += blockDim.x)
      lines[i] = p.intervals[std::int64_t{pair} * c.lines() + i];
  } else if (threadIdx.x < c.cells_x + c.cells_y) {
    const int i = threadIdx.x;
    lines[i] =
        i < c.cells_x ? p.columns[pair * kMaxAxis + i] : p.rows[pair * kMaxAxis + i - c.cells_x];
  }
}

// Copies a chunk's spheres in front-to-back order, 32 bytes each, and counts how many touch each
// cell.
__global__ void __launch_bounds__(kChunk, 2) Count(BlendCall call, Prepared p) {
  Follow();
  extern __shared__ int counts[];  // [cells], then the lines
  const int pair = blockIdx.y, chunk = blockIdx.x;
  const Coarse& c = p.coarse;
  const PairData data = p.Of(call, pair);
  const ViewState& view = data.view();
  Interval* lines = reinterpret_cast<Interval*>(counts + (c.cells() + 1) / 2 * 2);
  if (chunk * kChunk >= view.visible) return;
  const std::int64_t base = std::int64_t{pair} * call.spheres;
  const int rank = chunk * kChunk + threadIdx.x;
  SphereRecord s = {};
  if (rank < view.visible) s = p.unsorted[base + p.order[1][base + rank]];
  LoadLines(p, pair, view.crossed, lines);
  for (int cell = threadIdx.x; cell < c.cells(); cell += blockDim.x) counts[cell] = 0;
  __syncthreads();
  if (rank < view.visible) {
    data.records()[rank] = s;
    const Ball ball = BallOf(view, s);
    const Interval across = Along(view.measure, ball, 0), down = Along(view.measure, ball, 1);
    const auto add = [&](int cell) { atomicAdd(&counts[cell], 1); };
    if (view.crossed) {
      TileRange r;
      Search(lines, c.tiles_x, across, &r.x0, &r.x1);
      Search(lines + c.tiles_x, c.tiles_y, down, &r.y0, &r.y1);
      p.ranges[base + rank] = r;
      ForRange(c, r, 0, c.cells_y, add);
    } else {
      ForCells(c, p.cells + std::int64_t{pair} * c.cells(), ball,
               Overlaps(lines, c.cells_x, across), Overlaps(lines + c.cells_x, c.cells_y, down),
               add);
    }
  }
  __syncthreads();
  std::int32_t* out = p.counts + std::int64_t{pair} * c.cells() * p.chunks + chunk;
  for (int cell = threadIdx.x; cell < c.cells(); cell += blockDim.x)
    out[std::int64_t{cell} * p.chunks] = counts[cell];
}

// Entries of a chunk's parts that are ordered in shared memory, eight at a time: each part is
// filled up to a multiple of that.
constexpr int kStaged = 8192, kEight = 8;
constexpr int kMaxCells = kMaxAxis * kMaxAxis;
constexpr std::uint16_t kNoCell = 0xffff;

struct __align__(16) FillShared {
  std::int64_t begins[kMaxCells];  // of this chunk's part of a list, in the pool; -1: no list
  int offsets[kMaxCells + 1];      // the same among the staged entries
  int cursors[kMaxCells];
  int warps[kChunk / 32];
  TileRange ranges[kChunk];
  Interval lines[2 * kMaxAxis];
  union __align__(16) {
    std::uint32_t words[kBandCells * (kChunk / 32)];
    struct {
      __half spheres[kStaged];  // exact: below kChunk
      std::uint16_t cells[kStaged];
    } staged;
  };
};

// Bits of the columns, or rows, of tiles of a cell that a sphere's range holds.
__device__ __forceinline__ unsigned LineBits(int first, int last, int begin, int side, int shift) {
  const int low = max(first - begin, 0) >> shift, high = min(last - begin, side - 1) >> shift;
  return (2u << high) - (1u << low);
}

// One entry of a list: sphere i of the chunk, in a cell.
__device__ __forceinline__ Candidate CandidateOf(const Coarse& c, bool crossed, int chunk, int i,
                                                 int cell, const TileRange* ranges) {
  unsigned tiles = ~0u;
  if (crossed) {
    const TileRange r = ranges[i];
    const int y = c.Quotient(cell, c.over_cells);
    const int x = cell - y * c.cells_x;
    tiles = LineBits(r.x0, r.x1, x * c.side_x, c.side_x, c.shift_x) |
            LineBits(r.y0, r.y1, y * c.side_y, c.side_y, c.shift_y) << 16;
  }
  return {chunk * kChunk + i, tiles};
}

// Writes the chunk's part of each cell's list, front to back. Parts are short as a rule: their
// entries are staged in any order, and each finds its place by counting those before it. Where
// there are too many, bits say which of the chunk's spheres touch a cell, a band of rows of cells
// at a time, and keep their order.
__global__ void __launch_bounds__(kChunk, 2) Fill(BlendCall call, Prepared p) {
  Follow();
  extern __shared__ float4 fill_memory[];
  auto& shared = *reinterpret_cast<FillShared*>(fill_memory);
  const int pair = blockIdx.y, chunk = blockIdx.x;
  const Coarse& c = p.coarse;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, cells = c.cells();
  const PairData data = p.Of(call, pair);
  const ViewState& view = data.view();
  const bool crossed = view.crossed;
  if (chunk * kChunk >= view.visible) return;
  const int rank = chunk * kChunk + threadIdx.x;
  TileRange range = {0, -1, 0, -1};
  Ball ball = {};
  unsigned columns = 0, rows = 0;
  if (crossed) {
    if (rank < view.visible) range = p.ranges[std::int64_t{pair} * call.spheres + rank];
    shared.ranges[threadIdx.x] = range;
  } else {
    LoadLines(p, pair, false, shared.lines);
  }
  int length = 0;  // of the part of the thread's cell
  if (static_cast<int>(threadIdx.x) < cells) {
    const CellList list = data.lists()[threadIdx.x];
    const std::int32_t* begins =
        p.counts + (std::int64_t{pair} * cells + threadIdx.x) * p.chunks + chunk;
    const bool last = (chunk + 1) * kChunk >= view.visible;
    if (list.offset >= 0) length = (last ? list.count : begins[1]) - begins[0];
    shared.begins[threadIdx.x] = list.offset < 0 ? -1 : list.offset + begins[0];
  }
  const int room = (length + kEight - 1) / kEight * kEight;
  int sum = WarpScan(room);
  if (lane == 31) shared.warps[warp] = sum;
  __syncthreads();
  static_assert(kChunk == 32 * 32);
  const int of_warp = shared.warps[lane], up_to_warp = WarpScan(of_warp);
  const int total = __shfl_sync(~0u, up_to_warp, 31);
  const int offset = sum - room + __shfl_sync(~0u, up_to_warp - of_warp, warp);
  if (static_cast<int>(threadIdx.x) < cells) {
    shared.offsets[threadIdx.x] = shared.cursors[threadIdx.x] = offset;
    if (static_cast<int>(threadIdx.x) == cells - 1) shared.offsets[cells] = total;
    if (total <= kStaged)
      for (int i = length; i < room; ++i)
        shared.staged.spheres[offset + i] = __int2half_rn(kChunk),
                                       shared.staged.cells[offset + i] = kNoCell;
  }
  if (!crossed && rank < view.visible) {
    ball = BallOf(view, data.records()[rank]);
    columns = Overlaps(shared.lines, c.cells_x, Along(view.measure, ball, 0));
    rows = Overlaps(shared.lines + c.cells_x, c.cells_y, Along(view.measure, ball, 1));
  }
  __syncthreads();
  const Box* boxes = p.cells + std::int64_t{pair} * cells;

  if (total <= kStaged) {
    const auto stage = [&](int cell) {
      if (shared.begins[cell] < 0) return;
      const int at = atomicAdd(&shared.cursors[cell], 1);
      shared.staged.spheres[at] = __int2half_rn(threadIdx.x);
      shared.staged.cells[at] = static_cast<std::uint16_t>(cell);
    };
    if (crossed)
      ForRange(c, range, 0, c.cells_y, stage);
    else
      ForCells(c, boxes, ball, columns, rows, stage);
    __syncthreads();
    for (int i = threadIdx.x; i < total; i += kChunk) {
      const int cell = shared.staged.cells[i];
      if (cell == kNoCell) continue;
      const __half sphere = shared.staged.spheres[i];
      const __half2 both = __half2half2(sphere);
      __half2 before = __half2half2(__int2half_rn(0));
      for (int k = shared.offsets[cell]; k < shared.offsets[cell + 1]; k += kEight) {
        const float4 eight = *reinterpret_cast<const float4*>(&shared.staged.spheres[k]);
        __half2 pairs[4];
        memcpy(pairs, &eight, sizeof(eight));
#pragma unroll
        for (int j = 0; j < 4; ++j) before = __hadd2(before, __hlt2(pairs[j], both));
      }
      const int place = __half2int_rn(__low2half(before)) + __half2int_rn(__high2half(before));
      data.pool()[shared.begins[cell] + place] =
          CandidateOf(c, crossed, chunk, __half2int_rn(sphere), cell, shared.ranges);
    }
    return;
  }

  const int band = kBandCells / c.cells_x;
  for (int row = 0; row < c.cells_y; row += band) {
    const int first = row * c.cells_x, of_band = min(band * c.cells_x, cells - first);
    for (int w = threadIdx.x; w < of_band * (kChunk / 32); w += kChunk) shared.words[w] = 0;
    __syncthreads();
    const auto mark = [&](int cell) {
      atomicOr(&shared.words[(cell - first) * (kChunk / 32) + warp], 1u << lane);
    };
    if (crossed) {
      ForRange(c, range, row, row + band, mark);
    } else {
      const unsigned rows_of_band = (band < 32 ? (1u << band) - 1 : ~0u) << row;
      ForCells(c, boxes, ball, columns, rows & rows_of_band, mark);
    }
    __syncthreads();
    for (int k = warp; k < of_band; k += kChunk / 32) {
      std::uint32_t word = shared.words[k * (kChunk / 32) + lane];
      if (shared.begins[first + k] < 0) continue;
      const int before = WarpScan(__popc(word)) - __popc(word);
      Candidate* out = data.pool() + shared.begins[first + k] + before;
      for (; word != 0; word &= word - 1)
        *out++ =
            CandidateOf(c, crossed, chunk, lane * 32 + __ffs(word) - 1, first + k, shared.ranges);
    }
    __syncthreads();
  }
}

// Turns the lengths of a cell's parts into where they begin, and finds room for its list.
__global__ void __launch_bounds__(kThreads) PlaceLists(BlendCall call, Prepared p) {
  Follow();
  __shared__ int warps[kThreads / 32];
  const int pair = blockIdx.y, cell = blockIdx.x, cells = p.coarse.cells();
  std::int32_t* counts = p.counts + (std::int64_t{pair} * cells + cell) * p.chunks;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const PairData data = p.Of(call, pair);
  const int visible = data.view().visible, chunks = (visible + kChunk - 1) / kChunk;
  int total = 0;
  for (int start = 0; start < chunks; start += kThreads) {
    const int i = start + threadIdx.x;
    const int own = i < chunks ? counts[i] : 0;
    const int sum = WarpScan(own);
    if (lane == 31) warps[warp] = sum;
    __syncthreads();
    int before = total;
    for (int w = 0; w < kThreads / 32; ++w) {
      if (w < warp) before += warps[w];
      total += warps[w];
    }
    if (i < chunks) counts[i] = before + sum - own;
    __syncthreads();
  }
  if (threadIdx.x == 0) {
    const unsigned long long at = atomicAdd(&p.used[pair], static_cast<unsigned long long>(total));
    const bool fits = at + total <= static_cast<unsigned long long>(p.at.pool_size);
    data.lists()[cell] = {fits ? static_cast<std::int64_t>(at) : -1, fits ? total : visible};
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

Coarse CoarseOf(std::int64_t height, std::int64_t width, std::int64_t channels,
                std::int64_t tracked) {
  const int h = static_cast<int>(height), w = static_cast<int>(width);
  return HasRows(h, w, channels, tracked) ? Coarse::For<RowTile>(h, w)
                                          : Coarse::For<SmallTile>(h, w);
}

std::size_t BlendScratch(std::int64_t spheres, std::int64_t views, std::int64_t height,
                         std::int64_t width, std::int64_t channels, std::int64_t tracked) {
  Prepared p;
  p.coarse = CoarseOf(height, width, channels, tracked);
  // Parts are aligned once for all problems: this leaves room for that in each.
  Arena arena = {nullptr};
  LayoutScratch(&arena, views, spheres, &p);
  return arena.used;
}

std::size_t BlendKept(std::int64_t spheres, std::int64_t height, std::int64_t width,
                      std::int64_t channels, std::int64_t tracked) {
  return KeptLayout(spheres, CoarseOf(height, width, channels, tracked)).bytes;
}

const char* Restore(const BlendCall& call, Prepared* p) {
  p->coarse = CoarseOf(call.height, call.width, call.channels, call.tracked);
  p->kept = call.kept;
  p->at = KeptLayout(call.spheres, p->coarse);
  return p->at.bytes <= call.kept_bytes ? nullptr : "blend: what was kept is too small";
}

const char* Prepare(const BlendCall& call, const Stream& stream, Prepared* out) {
  if (const char* error = Restore(call, out)) return error;
  Prepared& p = *out;
  Arena arena = {static_cast<char*>(call.scratch)};
  LayoutScratch(&arena, call.pairs, call.spheres, &p);
  if (arena.used > call.scratch_bytes) return "blend: scratch is too small";
  if (call.spheres >= (std::int64_t{1} << 31) / 2) return "blend: more than 2^30 spheres";
  const Coarse& coarse = p.coarse;
  const unsigned pairs = call.pairs;
  stream.Launch(MakeFrames, pairs, 32, 0, call, p);
  const dim3 tiles = coarse.grid(pairs);
  if (coarse.tile_width == SmallTile::kWidth)
    stream.Launch(BoundTiles<SmallTile>, tiles, SmallTile::kRays, 0, call, p);
  else
    stream.Launch(BoundTiles<RowTile>, tiles, RowTile::kRays, 0, call, p);
  stream.Launch(BoundCells, dim3(coarse.cells() + coarse.lines(), pairs), 32, 0, call, p);
  stream.Launch(BoundViews, pairs, 256, 0, call, p);
  if (call.spheres > 0) {
    const unsigned blocks = (call.spheres + kKeyThreads - 1) / kKeyThreads;
    stream.Launch(MakeKeys, dim3(blocks, pairs), kKeyThreads, 0, call, p);
    if (SortsByBlock(call.spheres)) {
      if (call.spheres <= kSortThreads * 4)
        SortByBlock<4>(call, p, stream);
      else
        SortByBlock<kSortItems>(call, p, stream);
    } else {
      int bits = 32;
      while ((std::int64_t{1} << (bits - 32)) < call.pairs) ++bits;
      const std::int64_t items = std::int64_t{call.pairs} * call.spheres;
      const char* error = call.pairs == 1 ? Sort<std::uint32_t>(&p, items, 32, stream.stream)
                                          : Sort<std::uint64_t>(&p, items, bits, stream.stream);
      if (error != nullptr) return error;
    }
    const std::size_t lines = sizeof(Interval) * coarse.lines();
    const std::size_t counts = sizeof(int) * ((coarse.cells() + 1) / 2 * 2) + lines;
    stream.Launch(Count, dim3(p.chunks, pairs), kChunk, static_cast<int>(counts), call, p);
    stream.Launch(PlaceLists, dim3(p.coarse.cells(), pairs), kThreads, 0, call, p);
    constexpr int kFillBytes = sizeof(FillShared);
    cudaFuncSetAttribute(Fill, cudaFuncAttributeMaxDynamicSharedMemorySize, kFillBytes);
    stream.Launch(Fill, dim3(p.chunks, pairs), kChunk, kFillBytes, call, p);
  }
  const cudaError_t status = cudaGetLastError();
  return status == cudaSuccess ? nullptr : cudaGetErrorString(status);
}

}  // namespace jaxrec
