// What the tile kernels are given: one prepared view of one scene. Plain data, no ownership.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/motion.h"

namespace jaxrec {

// A sphere in front-to-back order; `reach` bounds how far from its center a ray may hit it.
struct Record {
  Sphere sphere;
  float opacity;
  float key;  // x - r from the view's mean beam
  float reach;
  std::int32_t id;
};

// Candidate spheres of a region, front to back, laid out for culling several at a time.
struct Candidates {
  float* x;
  float* y;
  float* z;
  float* reach;
  std::int32_t* rank;   // index into View::records
  float *vx, *vy, *vz;  // null if nothing moves
};

// A float array over pixels and channels of which any axis may be broadcast (stride 0).
struct Pixels {
  const float* data;
  std::int64_t y, x, c;
};

struct BlockOptions {
  int kind, stop;
  float logit_stop, min_transmittance;
  int tile;
  int tracked;        // nearest hits to remember
  int gradient_hits;  // nearest hits that carry gradients, 0 for all
  int need;           // bits: centers, radii, opacities, features, origins, directions,
                      // velocities, times
};

struct View {
  int height, width, channels;
  const float* origins;
  const float* directions;
  Beam beam;
  Range range;
  float gamma, background_depth;
  // If spheres move, else null; records hold their centers in the middle of the times.
  const float* velocities;
  const float* times;
  TimeSpan span;
  float slack;  // how far a ray's own x - r may lie below Record::key
  const Record* records;
  std::int32_t count;
  const float* features;

  // Forward: background in, results out.
  Pixels background;
  float* out_features;
  float* out_depth;
  float* out_alpha;
  std::int32_t* ids;
  std::int32_t* counts;
  float* normalizer;
  std::int32_t* last;  // rank of the last drawn sphere, -1 for none

  // Backward: cotangents in; ray cotangents out (null if not needed).
  // `level` is d_output . output and d_output . background: what the kinds weigh hits against.
  Pixels d_features, d_depth, d_alpha, level;
  float* d_origins;
  float* d_directions;
  float* d_times;
};

struct Rect {
  int y0, x0, y1, x1;
};

// Memory that grows and is kept between uses.
struct Scratch {
  void* data = nullptr;
  std::size_t size = 0;
};
// Makes room for `bytes`, aligned for any vector; keeps the contents. Throws std::bad_alloc.
void* Grow(Scratch* scratch, std::size_t bytes);

// What one thread needs while it works on a block.
struct Workspace {
  Scratch rays, block, tile, group, bounds, nearest, masks, pixels, stack;
  Workspace() = default;
  Workspace(const Workspace&) = delete;
  ~Workspace();
};

// Cotangent sums of the spheres of one block: x, y, z, radius, opacity, then the features and,
// where spheres move, the velocity.
constexpr int kSphereSums = 5;
inline int SumsOf(const View& view) {
  return kSphereSums + view.channels + (view.velocities ? 3 : 0);
}
struct BlockSums {
  Scratch ranks, sums;
  std::int32_t count = 0;
  BlockSums() = default;
  BlockSums(const BlockSums&) = delete;
  ~BlockSums();
};

// A block is a rectangle of tiles that share one list of candidates.
struct BlockWork {
  const View* view;
  const BlockOptions* options;
  Rect rect;
  Candidates list;  // all that may touch the block
  std::int32_t count;
  Workspace* workspace;
  BlockSums* sums;  // backward only
};

// The kernels of one instruction set.
struct BlockKernels {
  const char* name;
  void (*forward)(const BlockWork& work);
  void (*backward)(const BlockWork& work);
};

const BlockKernels& BaselineKernels();
const BlockKernels& Avx2Kernels();
const BlockKernels& Avx512Kernels();

// Rays on each side of a tile and of a block: squares, flatter where the image has few rows.
struct TileShape {
  int tile_height, tile_width, block_height, block_width;

  static TileShape For(int tile, int height) {
    int rows = 1;
    while (rows < height && rows < tile) rows *= 2;
    int down = 1;
    while (down * rows < height && down < 4) down *= 2;
    const int across = tile * tile / rows;
    return {rows, across, down * rows, 16 / down * across};
  }
};

}  // namespace jaxrec
