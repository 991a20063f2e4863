// Bounds of rays: of warps, tiles, coarse cells, and whole views; and what kind of views they are.
#include "cuda/prepare.cuh"
#include "cuda/see.cuh"
#include "cuda/sort.cuh"
#include "cuda/vector.cuh"
#include "cuda/warp.cuh"

namespace jaxrec {
namespace {

constexpr float kParallelTolerance = 2e-6f;
constexpr int kViewThreads = 1024;
static_assert(kSpanValues <= kViewThreads / 32);

struct RayOf {
  Vec o, n;
  bool valid;
};

// Of a view.
struct RayArrays {
  const float *origins, *directions;

  static __device__ __forceinline__ RayArrays Of(const BlendCall& call, int pair) {
    const int problem = ProblemOf(call, pair);
    const std::int64_t at = std::int64_t{3} * ViewOf(call, pair) * call.height * call.width;
    return {DataOf(call.batch, call.origins, problem) + at,
            DataOf(call.batch, call.directions, problem) + at};
  }
  __device__ __forceinline__ RayOf Load(std::int64_t pixel) const {
    const float *o = origins + 3 * pixel, *n = directions + 3 * pixel;
    RayOf ray = {{o[0], o[1], o[2]}, {n[0], n[1], n[2]}, false};
    const float finite = (ray.o.x + ray.o.y + ray.o.z + ray.n.x + ray.n.y + ray.n.z) * 0.0f;
    ray.valid = finite == 0.0f && fabsf(Dot(ray.n, ray.n) - 1.0f) <= kUnitTolerance;
    return ray;
  }
};

__device__ __forceinline__ Vec Shuffled(Vec v, int lane) {
  return {__shfl_sync(~0u, v.x, lane), __shfl_sync(~0u, v.y, lane), __shfl_sync(~0u, v.z, lane)};
}

// A frame of the view's rays. Any would do: this one makes boxes tight. A lane loads a ray: the
// middle and those of the quadrants, of which the first valid one counts, then what lies left,
// right, above and below.
__device__ __forceinline__ Frame FrameOf(const BlendCall& call, const RayArrays& rays) {
  const int lane = threadIdx.x % 32;
  const int y = lane == 0 || lane == 5 || lane == 6   ? 2
                : lane == 1 || lane == 2 || lane == 7 ? 1
                                                      : 3;
  const int x = lane == 0 || lane >= 7 ? 2 : lane == 1 || lane == 3 || lane == 5 ? 1 : 3;
  RayOf ray = {};
  if (lane < 9)
    ray = rays.Load(std::int64_t{call.height * y / 4} * call.width + call.width * x / 4);
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

__device__ __forceinline__ bool IsSum(int value) { return value >= kSpanSums; }
__device__ __forceinline__ std::uint32_t Nothing(int value) {
  return IsSum(value) ? 0u : Sortable(-INFINITY);
}
// Of two sets of rays.
__device__ __forceinline__ std::uint32_t Together(int value, std::uint32_t a, std::uint32_t b) {
  return IsSum(value) ? __float_as_uint(__uint_as_float(a) + __uint_as_float(b)) : max(a, b);
}

// Whether columns of tiles are told apart by it; rows by what is two further on.
__device__ __forceinline__ bool TellsColumns(int value) {
  return value == kSpanDirection || value == kSpanDirection + 1 || value == kSpanSlope ||
         value == kSpanSlope + 1 || value == kSpanOrigin || value == kSpanOrigin + 1;
}
__device__ __forceinline__ int FirstValue(int measure) {
  return measure == kByOrigin ? kSpanOrigin : measure == kBySlope ? kSpanSlope : kSpanDirection;
}

// Both ends of an interval, of values.
__device__ __forceinline__ Interval IntervalOf(std::uint32_t low, std::uint32_t high) {
  return {-Unsortable(low), Unsortable(high)};
}

// Writes both ends of what a number is for the valid rays of the warp.
__device__ __forceinline__ void PutEnds(float x, bool valid, std::uint32_t* values) {
  const std::uint32_t key = Sortable(x);
  // The key of -x is that of x inverted.
  const std::uint32_t low = WarpMax(valid ? ~key : Sortable(-INFINITY));
  const std::uint32_t high = WarpMax(valid ? key : Sortable(-INFINITY));
  if (threadIdx.x % 32 == 0) values[0] = low, values[1] = high;
}

// The values of a warp's rays.
__device__ __forceinline__ void SpanOfWarp(const RayOf& ray, const Frame& frame,
                                           std::uint32_t* values) {
  const int lane = threadIdx.x % 32;
  const auto along_axis = [&](int k, const Vec& v) {
    return Dot({frame.axes[k][0], frame.axes[k][1], frame.axes[k][2]}, v);
  };
  const Vec n = {along_axis(0, ray.n), along_axis(1, ray.n), along_axis(2, ray.n)};
  const float ahead = __fdividef(1.0f, fmaxf(n.z, kAhead));
  PutEnds(n.x, ray.valid, values + kSpanDirection);
  PutEnds(n.y, ray.valid, values + kSpanDirection + 2);
  PutEnds(n.z, ray.valid, values + kSpanDirection + 4);
  PutEnds(n.x * ahead, ray.valid, values + kSpanSlope);
  PutEnds(n.y * ahead, ray.valid, values + kSpanSlope + 2);
  const unsigned valid = __ballot_sync(~0u, ray.valid);
  const Vec o = Minus(ray.o, {frame.base[0], frame.base[1], frame.base[2]});
  float sum[3] = {};
  if (__any_sync(~0u, ray.valid && (o.x != 0.0f || o.y != 0.0f || o.z != 0.0f))) {
    for (int k = 0; k < 3; ++k) PutEnds(along_axis(k, o), ray.valid, values + kSpanOrigin + 2 * k);
    PutEnds(Dot(o, ray.n), ray.valid, values + kSpanAlong);
    sum[0] = WarpSum(ray.valid ? o.x : 0.0f);
    sum[1] = WarpSum(ray.valid ? o.y : 0.0f);
    sum[2] = WarpSum(ray.valid ? o.z : 0.0f);
  } else if (lane >= kSpanOrigin && lane < kSpanLargest) {
    values[lane] = Sortable(valid != 0 ? 0.0f : -INFINITY);
  }
  if (lane < 4) {
    const float of_lane = lane == 0   ? sum[0]
                          : lane == 1 ? sum[1]
                          : lane == 2 ? sum[2]
                                      : static_cast<float>(__popc(valid));
    values[kSpanSums + lane] = __float_as_uint(of_lane);
  }
}

// Bounds of the rays of each tile and of its warps: a block takes a strip, the tiles of a cell that
// lie in one row.
template <typename Tile>
__global__ void __launch_bounds__(Tile::kRays, 8) BoundStrips(BlendCall call, Prepared p) {
  constexpr int kWarps = Tile::kRays / 32, kFloats = sizeof(Bundle) / sizeof(float);
  static_assert(kFloats == 12 && kWarps * kFloats <= Tile::kRays);
  __shared__ Frame frame;
  __shared__ std::uint32_t values[2][kWarps][kSpanValues];
  Follow();
  const Coarse& c = p.coarse;
  const int pair = blockIdx.z, y = blockIdx.y, x0 = blockIdx.x * c.side_x;
  const int warp = threadIdx.x / 32, k = threadIdx.x;
  const PairData data = p.Of(call, pair);
  const RayArrays rays = RayArrays::Of(call, pair);
  const auto load = [&](int i) {
    Pixel pixel;
    RayOf ray = {};
    if (PixelOf<Tile>(call, x0 + i, y, warp, &pixel)) ray = rays.Load(pixel.index);
    return ray;
  };
  RayOf ray;
  if (warp == 0) {
    const Frame of_view = FrameOf(call, rays);
    if (k == 0) frame = of_view;
    if (k == 0 && x0 == 0 && y == 0) p.frames[pair] = of_view;
  } else {
    ray = load(0);  // on its way meanwhile
  }
  __syncthreads();
  std::uint32_t all = Nothing(k);  // of the strip: value k
  const auto end_of = [](int k, std::uint32_t value) {
    return k % 2 == 0 ? -Unsortable(value) : Unsortable(value);
  };
  const int tiles = min(c.side_x, c.tiles_x - x0);
  for (int i = 0; i < tiles; ++i) {
    const int tile = y * c.tiles_x + x0 + i;
    if (i > 0 || warp == 0) ray = load(i);
    std::uint32_t (*of_warps)[kSpanValues] = values[i % 2];
    SpanOfWarp(ray, frame, of_warps[warp]);
    __syncthreads();
    if (k < kWarps * kFloats) {
      const int w = k / kFloats, part = k % kFloats;
      reinterpret_cast<float*>(data.warps() + std::int64_t{tile} * kWarps)[k] =
          end_of(part, of_warps[w][part < 6 ? part : kSpanOrigin + part - 6]);
    }
    if (k >= kSpanValues) continue;
    std::uint32_t of_tile = of_warps[0][k];
    for (int w = 1; w < kWarps; ++w) of_tile = Together(k, of_tile, of_warps[w][k]);
    all = Together(k, all, of_tile);
    float* bundle = reinterpret_cast<float*>(data.tiles() + tile);
    if (k < kSpanSlope)
      bundle[k] = end_of(k, of_tile);
    else if (k >= kSpanOrigin && k < kSpanAlong)
      bundle[6 + k - kSpanOrigin] = end_of(k, of_tile);
    if (TellsColumns(k))
      p.spans[(std::int64_t{pair} * kSpanAlong + k) * c.tiles() + tile] = of_tile;
  }
  if (k < kSpanValues)
    p.strips[(std::int64_t{pair} * kSpanValues + k) * c.strips() + y * c.cells_x + blockIdx.x] =
        all;
}

// What the bounds of all its rays say of a view.
template <typename Motion>
__device__ __forceinline__ void Classify(const std::uint32_t* values, ViewState* out) {
  const Frame& frame = out->frame;
  const float count = __uint_as_float(values[kSpanSums + 3]),
              s = count > 0.0f ? 1.0f / count : 0.0f;
  const auto sum = [&](int k) { return __uint_as_float(values[kSpanSums + k]) * s; };
  const Vec o = {sum(0), sum(1), sum(2)};
  out->o[0] = frame.base[0] + o.x, out->o[1] = frame.base[1] + o.y;
  out->o[2] = frame.base[2] + o.z;
  for (int k = 0; k < 3; ++k) out->n[k] = frame.ray[k];
  const Vec n = {out->n[0], out->n[1], out->n[2]};
  bool same = true;
  float spread = 0, shift = 0;
  Interval direction[3], origin[3], along = IntervalOf(values[kSpanAlong], values[kSpanAlong + 1]);
  for (int k = 0; k < 3; ++k) {
    const int d = kSpanDirection + 2 * k, e = kSpanOrigin + 2 * k;
    direction[k] = IntervalOf(values[d], values[d + 1]);
    origin[k] = IntervalOf(values[e], values[e + 1]);
    same = same && origin[k].low == 0.0f && origin[k].high == 0.0f;
    const Vec axis = {frame.axes[k][0], frame.axes[k][1], frame.axes[k][2]};
    const float mean = Dot(axis, o), turn = Dot(axis, n);
    spread = fmaxf(spread, fmaxf(direction[k].high - turn, turn - direction[k].low));
    const float far = fmaxf(origin[k].high - mean, mean - origin[k].low);
    shift += far * far;
  }
  if (count == 0.0f) shift = 0, along = {0, 0};
  shift = sqrtf(shift);
  out->mode = kGeneral;
  // What moves is nowhere in the space of directions.
  if (!Motion::kMoves && same && out->beam.spread && out->beam.e0 == 0.0f) out->mode = kCentral;
  if (!out->beam.spread && spread <= kParallelTolerance) out->mode = kParallel;
  const bool parallel = out->mode == kParallel;
  const float middle = Dot(o, n);
  out->shift = parallel ? fmaxf(along.high - middle, middle - along.low) : shift;
  out->reach_shift = shift;
  for (int k = 0; k < 3; ++k) direction[k] = parallel ? origin[k] : direction[k];
  out->box = BoxOf(out->mode, direction);
  out->measure = parallel                                           ? kByOrigin
                 : -Unsortable(values[kSpanDirection + 4]) > kAhead ? kBySlope
                                                                    : kByDirection;
}

// The keys of some spheres, in order, which split all of them into buckets.
template <typename Motion>
__device__ __forceinline__ void SplitSpheres(const BlendCall& call, const Prepared& p, int pair,
                                             const ViewState& view,
                                             SortMemory<Buckets::kSamples>* memory) {
  __shared__ int sampled;
  if (threadIdx.x == 0) sampled = 0, p.spilled[pair] = 0;
  __syncthreads();
  const std::int64_t first = std::int64_t{pair} * p.buckets.count;
  std::uint64_t* keys = p.spill + std::int64_t{pair} * call.spheres;
  TimeSpan span = {};
  if constexpr (Motion::kMoves) span = SpanOf(call, pair);
  for (int i = threadIdx.x; i < p.buckets.samples(); i += kViewThreads) {
    SphereRecord record;
    float below;
    const int sphere = p.buckets.Sample(i, call.spheres);
    const auto values = ValuesOf<Motion>::Load(call, ProblemOf(call, pair), sphere);
    if (See(view, values, span, sphere, &record, &below))
      keys[atomicAdd(&sampled, 1)] = KeyOf(record);
  }
  for (int i = threadIdx.x; i < p.buckets.count; i += kViewThreads)
    p.held[(first + i) * Buckets::kApart] = 0;
  __syncthreads();
  const int each = p.buckets.each();
  for (int i = threadIdx.x; i < p.buckets.count - 1; i += kViewThreads)
    if ((i + 1) * each >= sampled) p.splitters[first + i] = ~std::uint64_t{0};
  SortBlock<kViewThreads>(keys, sampled, memory, [&](int rank, std::uint64_t key) {
    if (rank > 0 && rank % each == 0) p.splitters[first + rank / each - 1] = key;
  });
}

// Bounds of cells, and of columns and rows of tiles and of cells; whether a tile is where these
// cross. `ends`: room for two of each line.
__device__ __forceinline__ void BoundLines(const Prepared& p, int pair, const ViewState& view,
                                           const std::uint32_t* values, std::uint32_t* ends,
                                           ViewState* stored) {
  __shared__ float widths[2][kViewThreads / 32];
  const Coarse& c = p.coarse;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, strips = c.strips();
  const std::uint32_t* of_strips = p.strips + std::int64_t{pair} * kSpanValues * strips;
  for (int i = threadIdx.x; i < 2 * c.lines(); i += kViewThreads) ends[i] = 0;
  __syncthreads();
  const int first = FirstValue(view.measure);
  const int of_box = view.mode == kParallel ? kSpanOrigin : kSpanDirection;
  for (int cell = threadIdx.x; cell < c.cells(); cell += kViewThreads) {
    const int cell_y = cell / c.cells_x, cell_x = cell % c.cells_x;
    const int end = min((cell_y + 1) * c.side_y, c.tiles_y);
    std::uint32_t box[6] = {};
#pragma unroll 4
    for (int y = cell_y * c.side_y; y < end; ++y)
#pragma unroll
      for (int k = 0; k < 6; ++k)
        box[k] = max(box[k], of_strips[std::int64_t{of_box + k} * strips + y * c.cells_x + cell_x]);
    const Interval sides[3] = {IntervalOf(box[0], box[1]), IntervalOf(box[2], box[3]),
                               IntervalOf(box[4], box[5])};
    p.cells[std::int64_t{pair} * c.cells() + cell] = BoxOf(view.mode, sides);
  }
  // Spans of columns of tiles from the tiles, of rows from the strips.
  const std::uint32_t* low = p.spans + (std::int64_t{pair} * kSpanAlong + first) * c.tiles();
#pragma unroll 4
  for (int tile = threadIdx.x; tile < c.tiles(); tile += kViewThreads) {
    std::uint32_t* end = ends + 2 * (tile % c.tiles_x);
    atomicMax(end, low[tile]), atomicMax(end + 1, low[c.tiles() + tile]);
  }
  low = of_strips + std::int64_t{first + 2} * strips;
  for (int strip = threadIdx.x; strip < strips; strip += kViewThreads) {
    std::uint32_t* end = ends + 2 * (c.tiles_x + strip / c.cells_x);
    atomicMax(end, low[strip]), atomicMax(end + 1, low[strips + strip]);
  }
  __syncthreads();
  const auto line = [&](int i) { return IntervalOf(ends[2 * i], ends[2 * i + 1]); };
  bool crossed = true;  // spans advance and hardly overlap, so that a tile is where they cross
  float width[2] = {};
  for (int i = threadIdx.x; i < c.lines(); i += kViewThreads) {
    const Interval a = line(i);
    p.intervals[std::int64_t{pair} * c.lines() + i] = a;
    if (i != 0 && i != c.tiles_x) {
      const Interval b = line(i - 1);
      crossed = crossed && b.low <= a.low && b.high <= a.high;
    }
    crossed = crossed && a.low <= a.high;
    if (a.low <= a.high) width[i < c.tiles_x ? 0 : 1] += a.high - a.low;
  }
  for (int k = 0; k < 2; ++k) {
    const float sum = WarpSum(width[k]);
    if (lane == 0) widths[k][warp] = sum;
  }
  // Columns and rows of cells.
  const bool across = threadIdx.x < kMaxAxis;
  const int cell = threadIdx.x % kMaxAxis, side = across ? c.side_x : c.side_y;
  if (threadIdx.x < 2 * kMaxAxis && cell < (across ? c.cells_x : c.cells_y)) {
    Interval span = kNothing;
    const int end = min((cell + 1) * side, across ? c.tiles_x : c.tiles_y);
    for (int i = cell * side; i < end; ++i) Widen(&span, line(across ? i : c.tiles_x + i));
    (across ? p.columns : p.rows)[pair * kMaxAxis + cell] = span;
  }
  crossed = __syncthreads_and(crossed);
  if (warp == 0) {
    for (int k = 0; k < 2; ++k) {
      const Interval whole = IntervalOf(values[first + 2 * k], values[first + 2 * k + 1]);
      crossed = crossed && WarpSum(widths[k][lane]) <= 2.0f * (whole.high - whole.low);
    }
    if (lane == 0) *stored = view, stored->crossed = crossed;
  }
}

union ViewMemory {
  std::uint32_t ends[1];  // [2 lines]
  SortMemory<Buckets::kSamples> sample;
};

// What kind of view it is; then one block bounds its cells, columns and rows, and clears what is
// counted later, and another splits the spheres.
template <typename Motion>
__global__ void __launch_bounds__(kViewThreads, 1) BoundViews(BlendCall call, Prepared p) {
  Follow();
  extern __shared__ float4 view_memory[];
  auto& memory = *reinterpret_cast<ViewMemory*>(view_memory);
  __shared__ std::uint32_t values[kSpanValues];
  __shared__ ViewState view;
  const int pair = blockIdx.y, problem = ProblemOf(call, pair), number = ViewOf(call, pair);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, strips = p.coarse.strips();
  ViewState& stored = p.Of(call, pair).view();
  if (warp < kSpanValues) {
    const std::uint32_t* of_strips = p.strips + (std::int64_t{pair} * kSpanValues + warp) * strips;
    std::uint32_t all = Nothing(warp);
#pragma unroll 16
    for (int i = lane; i < strips; i += 32) all = Together(warp, all, of_strips[i]);
    all = IsSum(warp) ? __float_as_uint(WarpSum(__uint_as_float(all))) : WarpMax(all);
    if (lane == 0) values[warp] = all;
  } else if (warp == kSpanValues && lane == 0) {
    const float* footprint = DataOf(call.batch, call.footprint, problem) + 2 * number;
    const float* limits = DataOf(call.batch, call.limits, problem);
    view = {};
    view.frame = p.frames[pair];
    view.beam = Beam::Make(footprint[0], footprint[1]);
    view.range = {limits[0], limits[1]};
    view.gamma = limits[2], view.background_depth = limits[3];
  }
  __syncthreads();
  if (threadIdx.x == 0) Classify<Motion>(values, &view);
  __syncthreads();
  if (blockIdx.x == 1) return SplitSpheres<Motion>(call, p, pair, view, &memory.sample);
  if (threadIdx.x < 2) p.taken[2 * pair + threadIdx.x] = 0;
  if (threadIdx.x == 0) p.used[pair] = 0;
  BoundLines(p, pair, view, values, memory.ends, &stored);
}

}  // namespace

void BoundRays(const BlendCall& call, const Prepared& p, const Stream& stream) {
  const Coarse& c = p.coarse;
  const dim3 strips(c.cells_x, c.tiles_y, call.pairs);
  if (c.tile_width == SmallTile::kWidth)
    stream.Launch(BoundStrips<SmallTile>, strips, SmallTile::kRays, 0, call, p);
  else
    stream.Launch(BoundStrips<RowTile>, strips, RowTile::kRays, 0, call, p);
  const std::size_t lines = 2 * sizeof(std::uint32_t) * c.lines();
  const int bytes = static_cast<int>(lines > sizeof(ViewMemory) ? lines : sizeof(ViewMemory));
  const auto bound_views = call.moves ? BoundViews<Linear> : BoundViews<Still>;
  cudaFuncSetAttribute(bound_views, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  stream.Launch(bound_views, dim3(2, call.pairs), kViewThreads, bytes, call, p);
}

}  // namespace jaxrec
