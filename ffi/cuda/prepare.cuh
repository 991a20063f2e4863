// What is done once for each view before its tiles: bounds of rays, the front-to-back order, and
// front-to-back lists of spheres for coarse cells of tiles.
//
// Rays and spheres are compared in a space where a ray is a point and a sphere a ball that holds
// the rays which may hit it: for rays from one origin the space of directions, for parallel rays
// the plane across them. Bounds of rays are boxes there. Other rays are bounded by boxes of
// directions around the view's mean origin first (spheres are widened by how far origins lie from
// it), then, for a tile or a warp, by a cone. A sphere that moves is one that reaches over all of
// its way, until tiles and warps look where it is at their own times.
#pragma once

#include "core/central.h"
#include "core/cone.h"
#include "core/motion.h"
#include "cuda/blend.h"
#include "cuda/launch.cuh"

namespace jaxrec {

// Rays of a tile, which one block blends, and those of each of its warps: squares of an image, and
// stretches of the long rows of a spinning lidar.
struct SmallTile {
  static constexpr int kWidth = 16, kHeight = 16, kRays = kWidth * kHeight;
  static constexpr int kWarpWidth = 8, kWarpHeight = 4;
};
struct RowTile {
  static constexpr int kWidth = 32, kHeight = 8, kRays = kWidth * kHeight;
  static constexpr int kWarpWidth = 16, kWarpHeight = 2;
};
// Whether a view is taken as rows rather than as an image.
inline bool HasRows(std::int64_t height, std::int64_t width, std::int64_t channels,
                    std::int64_t tracked) {
  return width >= 8 * height && channels <= 8 && tracked == 0;
}

constexpr int kMaxAxis = 32;        // coarse cells along an axis
constexpr int kMinCells = 256;      // coarse cells that any view may have
constexpr int kRaysPerCell = 4096;  // and how many rays allow one more
constexpr int kBandCells = 256;     // cells whose lists one block fills at a time
constexpr int kChunk = 1024;        // sorted spheres that one block bins
constexpr int kListsPerSphere = 8;  // room in the pool of lists; cells beyond scan all spheres
constexpr float kLarge = 32.0f;     // reach of a large sphere, in half-widths of a beam

// x, y, z is the center; for central views the direction to it from the rays' origin.
struct __align__(16) SphereRecord {
  float x, y, z, distance;  // distance - r is what views are sorted by
  float r, opacity;
  float reach;  // how far from the center a hit may be; for central views in directions
  std::int32_t id;
};

// Center and half of the size; the half is -inf if nothing is inside.
struct Box {
  float center[3], half[3];
};

struct Interval {
  float low, high;
};
constexpr Interval kNothing = {INFINITY, -INFINITY};

__device__ __forceinline__ void Widen(Interval* to, const Interval& i) {
  to->low = fminf(to->low, i.low), to->high = fmaxf(to->high, i.high);
}

// Rays of a tile or a warp: their directions and origins, in the axes of the view's frame.
struct Bundle {
  Interval direction[3], origin[3];
};

// Where the values of a set of rays stand: the largest of them, Sortable, each low end negated;
// then sums of deviations from the frame's ray.
enum SpanValue {
  kSpanDirection = 0,  // along x, y and z
  kSpanSlope = 6,      // of directions, x / z and y / z; of use where all look ahead
  kSpanOrigin = 10,    // along x, y and z
  kSpanAlong = 16,     // of origins along their own direction
  kSpanLargest = 18,
  kSpanSums = 18,  // of origins, then the number of rays
  kSpanValues = 22
};

// Axes that follow the image's, so that boxes of rays are tight: z along `ray`, a ray in the
// middle, x across it towards the right. `base` is that ray's origin.
struct Frame {
  float base[3], ray[3], axes[3][3];
};

constexpr float kAhead = 0.05f;  // least z of rays that have a slope

enum Mode { kCentral, kParallel, kGeneral };

struct ViewState {
  Frame frame;
  Box box;             // of all rays
  float o[3], n[3];    // mean beam
  float shift;         // how far an origin lies from it: along n if parallel, else in all
  float reach_shift;   // in all
  unsigned drop_bits;  // largest |v| - x of a hit, as the bits of a float that is not negative
  int mode, measure;
  int visible, large;  // spheres; those of a central view that cover much of what they touch
  int crossed;         // a tile is where the spans of its column and its row cross
  Beam beam;
  Range range;
  float gamma, background_depth;
};

// Along which measure columns and rows are told apart.
enum Measure { kByOrigin, kByDirection, kBySlope };

// Tiles that a sphere touches, where columns and rows cross.
struct __align__(8) TileRange {
  std::int16_t x0, x1, y0, y1;
};

// One sphere of a cell's list: bits of the columns and, 16 higher, of the rows of the cell's tiles
// that it touches.
struct __align__(8) Candidate {
  std::int32_t rank;
  std::uint32_t tiles;
};

struct CellList {
  std::int64_t offset;  // into the pool; -1: all visible spheres
  int count;
};

// How the tiles of a view are grouped into cells of side_x x side_y tiles.
struct Coarse {
  int tile_width, tile_height, tiles_x, tiles_y, side_x, side_y, cells_x, cells_y;
  int shift_x, shift_y;  // columns and rows of tiles that share one of 16 bits
  float over_x, over_y;  // 1 / side
  float over_cells;      // 1 / cells_x

  template <typename Tile>
  static Coarse For(int height, int width) {
    Coarse c;
    c.tile_width = Tile::kWidth, c.tile_height = Tile::kHeight;
    c.tiles_x = (width + c.tile_width - 1) / c.tile_width;
    c.tiles_y = (height + c.tile_height - 1) / c.tile_height;
    c.side_x = (c.tiles_x + kMaxAxis - 1) / kMaxAxis;
    c.side_y = (c.tiles_y + kMaxAxis - 1) / kMaxAxis;
    if (c.side_x < 1) c.side_x = 1;
    if (c.side_y < 1) c.side_y = 1;
    const std::int64_t rays = std::int64_t{height} * width;
    const std::int64_t most = rays / kRaysPerCell > kMinCells ? rays / kRaysPerCell : kMinCells;
    for (;;) {
      c.cells_x = (c.tiles_x + c.side_x - 1) / c.side_x;
      c.cells_y = (c.tiles_y + c.side_y - 1) / c.side_y;
      if (std::int64_t{c.cells_x} * c.cells_y <= most) break;
      ++(c.side_x * c.tile_width <= c.side_y * c.tile_height ? c.side_x : c.side_y);
    }
    c.shift_x = c.shift_y = 0;
    while (c.side_x - 1 >> c.shift_x > 15) ++c.shift_x;
    while (c.side_y - 1 >> c.shift_y > 15) ++c.shift_y;
    c.over_x = 1.0f / c.side_x, c.over_y = 1.0f / c.side_y;
    c.over_cells = 1.0f / (c.cells_x > 0 ? c.cells_x : 1);
    return c;
  }
  __host__ __device__ int tiles() const { return tiles_x * tiles_y; }
  __host__ __device__ int cells() const { return cells_x * cells_y; }
  __host__ __device__ int lines() const { return tiles_x + tiles_y; }
  __host__ __device__ int strips() const { return cells_x * tiles_y; }
  __host__ __device__ int warps() const { return tile_width * tile_height / 32; }
  // line / side, given 1 / side; exact, as both are small.
  __device__ __forceinline__ int Quotient(int line, float over_side) const {
    return static_cast<int>((static_cast<float>(line) + 0.5f) * over_side);
  }
};

// A tile of a view.
struct Place {
  int x, y;       // in tiles
  int index;      // of all tiles, in rows
  int cell;       // of coarse cells
  unsigned bits;  // of a Candidate that stand for it

  static __device__ __forceinline__ Place At(const Coarse& c, int index) {
    const int y = index / c.tiles_x, x = index - y * c.tiles_x;
    const int cell_x = c.Quotient(x, c.over_x), cell_y = c.Quotient(y, c.over_y);
    return {x, y, index, cell_y * c.cells_x + cell_x,
            1u << (x - cell_x * c.side_x >> c.shift_x) |
                1u << (16 + (y - cell_y * c.side_y >> c.shift_y))};
  }
};

// A pixel of a view.
struct Pixel {
  int x, y;
  std::int64_t index;
};

// The pixel of a lane in a warp of a tile's rays, and whether the image has it.
template <typename Tile>
__device__ __forceinline__ bool PixelOf(const BlendCall& call, int tile_x, int tile_y, int warp,
                                        Pixel* pixel) {
  const int lane = threadIdx.x % 32;
  constexpr int kAcross = Tile::kWidth / Tile::kWarpWidth;
  pixel->x = tile_x * Tile::kWidth + warp % kAcross * Tile::kWarpWidth + lane % Tile::kWarpWidth;
  pixel->y = tile_y * Tile::kHeight + warp / kAcross * Tile::kWarpHeight + lane / Tile::kWarpWidth;
  pixel->index = std::int64_t{pixel->y} * call.width + pixel->x;
  return pixel->x < call.width && pixel->y < call.height;
}

// Where a problem's part of an array begins. Problems are fewer than 2^16 (MakeCall).
template <typename T>
__device__ __forceinline__ std::int64_t OffsetOf(const Batch& batch, const Batched<T>& array,
                                                 unsigned problem) {
  std::int64_t offset = 0;
#pragma unroll 1
  for (int i = batch.rank - 1; i >= 0; --i) {
    const unsigned rest = problem / batch.size[i];
    offset += (problem - rest * batch.size[i]) * array.stride[i];
    problem = rest;
  }
  return offset;
}

template <typename T>
__device__ __forceinline__ T* DataOf(const Batch& batch, const Batched<T>& array,
                                     unsigned problem) {
  return array.data + OffsetOf(batch, array, problem);
}

// A pair is a view of a problem. The common cases need no division.
__device__ __forceinline__ int ProblemOf(const BlendCall& call, int pair) {
  return call.views == 1 ? pair : call.problems == 1 ? 0 : pair / call.views;
}
__device__ __forceinline__ int ViewOf(const BlendCall& call, int pair) {
  return call.views == 1 ? 0 : call.problems == 1 ? pair : pair % call.views;
}

// Of spheres that move.
__device__ __forceinline__ TimeSpan SpanOf(const BlendCall& call, int pair) {
  const float* interval =
      DataOf(call.batch, call.interval, ProblemOf(call, pair)) + 2 * ViewOf(call, pair);
  return {interval[0], interval[1]};
}
__device__ __forceinline__ Velocity VelocityOf(const BlendCall& call, int problem,
                                               std::int64_t sphere) {
  const float* v = DataOf(call.batch, call.velocities, problem) + 3 * sphere;
  return {v[0], v[1], v[2]};
}

// Where the parts of one view's kept bytes begin.
struct PairLayout {
  std::size_t view, warps, tiles, lists, records, pool, bytes;
  std::int64_t pool_size;
};

// What is kept of one view of one problem, for its tiles and for the backward pass.
struct PairData {
  char* base;
  const PairLayout& at;

  template <typename T>
  __device__ __forceinline__ T* Part(std::size_t begin) const {
    return reinterpret_cast<T*>(base + begin);
  }
  __device__ __forceinline__ ViewState& view() const { return *Part<ViewState>(at.view); }
  __device__ __forceinline__ Bundle* warps() const { return Part<Bundle>(at.warps); }
  __device__ __forceinline__ Bundle* tiles() const { return Part<Bundle>(at.tiles); }
  __device__ __forceinline__ CellList* lists() const { return Part<CellList>(at.lists); }
  // [spheres], front to back
  __device__ __forceinline__ SphereRecord* records() const {
    return Part<SphereRecord>(at.records);
  }
  // [pool_size]
  __device__ __forceinline__ Candidate* pool() const { return Part<Candidate>(at.pool); }
};

// Into how many buckets the spheres of a view are split to be sorted.
struct Buckets {
  static constexpr int kMost = 2048, kSamples = 2 * kMost;
  // Keys that a bucket holds on average, at most; less where buckets are few, that all
  // multiprocessors may take part.
  static constexpr int kKeys = 1024, kFewKeys = 512, kFew = 128;
  static constexpr int kApart = 8;  // counters lie apart, for the sake of atomics
  int count, room;

  static Buckets For(std::int64_t spheres, std::int64_t pairs) {
    Buckets b = {1, 0};
    while (b.count < kMost &&
           b.count * std::int64_t{b.count * pairs < kFew ? kFewKeys : kKeys} < spheres)
      b.count *= 2;
    b.room = static_cast<int>(b.count == 1 ? spheres : 4 * ((spheres + b.count - 1) / b.count));
    return b;
  }
  // Keys of the sample for each that splits: more of them make buckets more even.
  __host__ __device__ int each() const { return 4 * count <= kSamples / 2 ? 4 : 2; }
  __host__ __device__ int samples() const { return count == 1 ? 0 : each() * count; }
  // The `i`th sphere of the sample: one of each stretch, at random lest it follows a pattern.
  __device__ __forceinline__ int Sample(int i, int spheres) const {
    const int begin = static_cast<int>(std::int64_t{i} * spheres / samples());
    const int end = static_cast<int>((std::int64_t{i} + 1) * spheres / samples());
    const unsigned noise = (static_cast<unsigned>(i) + 1) * 2654435761u;
    return begin + static_cast<int>((noise >> 8) % static_cast<unsigned>(max(end - begin, 1)));
  }
};

// What is kept, and pointers into the scratch of a forward call.
struct Prepared {
  Coarse coarse;
  Batched<char> kept;  // [problems, views, bytes]
  PairLayout at;

  int chunks;
  Frame* frames;          // [pairs]
  std::uint32_t* strips;  // [pairs, kSpanValues, strips] of the tiles of a cell that lie in a row
  std::uint32_t* spans;   // [pairs, kSpanAlong, tiles] of tiles; those that tell columns apart
  Interval* intervals;    // [pairs, lines] of columns and rows of tiles
  Box* cells;             // [pairs, cells]
  Interval* columns;      // [pairs, kMaxAxis] along x of all cells of a column
  Interval* rows;         // [pairs, kMaxAxis] along y of all cells of a row
  Buckets buckets;
  std::uint64_t* splitters;  // [pairs, buckets] the first key of each but the first
  int* held;                 // [pairs, buckets, kApart] how many keys belong there
  std::uint64_t* stored;     // [pairs, buckets, room] of these, what there is room for
  int* spilled;              // [pairs] how many found none,
  std::uint64_t* spill;      // [pairs, spheres] and which; before, the keys of the sample
  std::int32_t* order;       // [pairs, spheres] front to back
  SphereRecord* unsorted;    // [pairs, spheres]
  TileRange* ranges;         // [pairs, spheres], of records
  std::int32_t* counts;      // [pairs, cells, chunks], then where each chunk's part begins
  unsigned long long* used;  // [pairs] entries of the pool
  int* taken;                // [pairs, 2] tiles that blocks of a kernel asked for

  __device__ __forceinline__ PairData Of(const BlendCall& call, int pair) const {
    return {DataOf(call.batch, kept, ProblemOf(call, pair)) + ViewOf(call, pair) * at.bytes, at};
  }
};

// A ball: where a sphere may be hit, in the space of the view's boxes.
struct Ball {
  float x, y, z, radius;
};

__device__ __forceinline__ Ball Rotated(const Frame& f, float x, float y, float z, float radius) {
  return {f.axes[0][0] * x + f.axes[0][1] * y + f.axes[0][2] * z,
          f.axes[1][0] * x + f.axes[1][1] * y + f.axes[1][2] * z,
          f.axes[2][0] * x + f.axes[2][1] * y + f.axes[2][2] * z, radius};
}

// Margins cover the rounding of rays, spheres and boxes.
__device__ __forceinline__ Ball CentralBall(const Frame& frame, const SphereRecord& s) {
  return Rotated(frame, s.x, s.y, s.z, s.reach * 1.00001f + 2e-6f);
}

__device__ __forceinline__ Ball BallOf(const ViewState& view, const SphereRecord& s) {
  if (view.mode == kCentral) return CentralBall(view.frame, s);
  if (view.mode == kParallel) {
    const float x = s.x - view.frame.base[0], y = s.y - view.frame.base[1];
    const float z = s.z - view.frame.base[2];
    const float far = fabsf(x) + fabsf(y) + fabsf(z) + view.reach_shift;
    return Rotated(view.frame, x, y, z, s.reach * 1.00001f + 2e-5f * far + 1e-30f);
  }
  const float x = s.x - view.o[0], y = s.y - view.o[1], z = s.z - view.o[2];
  const float d = sqrtf(x * x + y * y + z * z);
  const float size = (s.reach + view.reach_shift) * 1.00001f + 2e-6f * d;
  const float sine = size / d;
  // A chord of twice the angle's half.
  const float chord = sine < 1.0f ? sine * sqrtf(2.0f / (1.0f + sqrtf(1.0f - sine * sine))) : 3.0f;
  const float inverse = d > 0.0f ? 1.0f / d : 0.0f;
  return Rotated(view.frame, x * inverse, y * inverse, z * inverse, chord * 1.00001f + 2e-6f);
}

__device__ __forceinline__ bool Touches(const Box& box, const Ball& b) {
  const float x = fmaxf(fabsf(b.x - box.center[0]) - box.half[0], 0.0f);
  const float y = fmaxf(fabsf(b.y - box.center[1]) - box.half[1], 0.0f);
  const float z = fmaxf(fabsf(b.z - box.center[2]) - box.half[2], 0.0f);
  return x * x + y * y + z * z <= b.radius * b.radius;
}

// Of rays, from their origins or directions, in the space of the view's boxes.
__device__ __forceinline__ Box BoxOf(int mode, const Interval* from) {
  Box box;
  for (int k = 0; k < 3; ++k) {
    const bool unbounded = mode == kParallel && k == 2 && from[0].low <= from[0].high;
    box.center[k] = unbounded ? 0.0f : 0.5f * from[k].low + 0.5f * from[k].high;
    box.half[k] = unbounded ? 1e30f : 0.5f * from[k].high - 0.5f * from[k].low;
    if (!(from[k].low <= from[k].high)) box.center[k] = 0.0f, box.half[k] = -INFINITY;
  }
  return box;
}

__device__ __forceinline__ Box BoxOf(int mode, const Bundle& bundle) {
  return BoxOf(mode, mode == kParallel ? bundle.origin : bundle.direction);
}

// The cone of a bundle, in world axes.
__device__ __forceinline__ Cone ConeOf(const Frame& f, const Bundle& b) {
  Cone cone = {};
  cone.empty = !(b.direction[0].low <= b.direction[0].high);
  if (cone.empty) return cone;
  float o[3], n[3], slack = 0, spread = 0, length = 0;
  for (int k = 0; k < 3; ++k) {
    o[k] = 0.5f * (b.origin[k].low + b.origin[k].high);
    n[k] = 0.5f * (b.direction[k].low + b.direction[k].high);
    const float oh = 0.5f * (b.origin[k].high - b.origin[k].low);
    const float nh = 0.5f * (b.direction[k].high - b.direction[k].low);
    slack += oh * oh, spread += nh * nh, length += n[k] * n[k];
  }
  length = sqrtf(length);
  const bool aimless = !(length > 1e-3f);
  const float inverse = aimless ? 1.0f : 1.0f / length;
  // Directions lie within `spread` of the box's center, that within 1 - length of the axis.
  cone.SetChord(aimless ? 2.0f : sqrtf(spread) + fabsf(1.0f - length));
  float size = 0;
  for (int k = 0; k < 3; ++k) size += fabsf(o[k]) + fabsf(f.base[k]);
  cone.slack = sqrtf(slack) * 1.00001f + 1e-6f * size;
  const float* base = f.base;
  float axis[3], origin[3];
  for (int k = 0; k < 3; ++k) {
    axis[k] = (f.axes[0][k] * n[0] + f.axes[1][k] * n[1] + f.axes[2][k] * n[2]) * inverse;
    origin[k] = base[k] + f.axes[0][k] * o[0] + f.axes[1][k] * o[1] + f.axes[2][k] * o[2];
  }
  cone.nx = axis[0], cone.ny = axis[1], cone.nz = axis[2];
  cone.ox = origin[0], cone.oy = origin[1], cone.oz = origin[2];
  return cone;
}

Coarse CoarseOf(std::int64_t height, std::int64_t width, std::int64_t channels,
                std::int64_t tracked);

// Its parts. What bounds the rays also clears what the others count.
void BoundRays(const BlendCall& call, const Prepared& p, const Stream& stream);
void SortSpheres(const BlendCall& call, const Prepared& p, const Stream& stream);
void MakeLists(const BlendCall& call, const Prepared& p, const Stream& stream);

// Enqueues all of it.
const char* Prepare(const BlendCall& call, const Stream& stream, Prepared* out);
// Finds what a forward call has kept.
const char* Restore(const BlendCall& call, Prepared* out);

inline std::size_t Align(std::size_t bytes) { return (bytes + 255) / 256 * 256; }

}  // namespace jaxrec
