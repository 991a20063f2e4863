// Front-to-back lists of the spheres of each coarse cell.
#include <cuda_fp16.h>

#include "cuda/prepare.cuh"
#include "cuda/warp.cuh"

namespace jaxrec {
namespace {

constexpr int kThreads = 256;

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
  if (rank < view.visible) s = p.unsorted[base + p.order[base + rank]];
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

}  // namespace

void MakeLists(const BlendCall& call, const Prepared& p, const Stream& stream) {
  const Coarse& c = p.coarse;
  const std::size_t lines = sizeof(Interval) * c.lines();
  const std::size_t counts = sizeof(int) * ((c.cells() + 1) / 2 * 2) + lines;
  stream.Launch(Count, dim3(p.chunks, call.pairs), kChunk, static_cast<int>(counts), call, p);
  stream.Launch(PlaceLists, dim3(c.cells(), call.pairs), kThreads, 0, call, p);
  constexpr int kFillBytes = sizeof(FillShared);
  cudaFuncSetAttribute(Fill, cudaFuncAttributeMaxDynamicSharedMemorySize, kFillBytes);
  stream.Launch(Fill, dim3(p.chunks, call.pairs), kChunk, kFillBytes, call, p);
}

}  // namespace jaxrec
