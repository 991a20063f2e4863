// What is done once for each view before its tiles: cones of rays, the front-to-back order, and
// front-to-back lists of spheres for coarse cells of tiles.
#pragma once

#include "core/chord.h"
#include "core/cone.h"
#include "cuda/blend.h"

namespace jaxrec {

// Rays of a tile, which one block blends: large ones share the culling among more rays, small ones
// spread a small image over more multiprocessors.
struct SmallTile {
  static constexpr int kWidth = 16, kHeight = 16, kRays = kWidth * kHeight;
};
struct LargeTile {
  static constexpr int kWidth = 32, kHeight = 32, kRays = kWidth * kHeight;
};
constexpr int kMaxCells = 256;      // coarse cells of a view
constexpr int kMaxGroups = 256;     // groups of up to 4 x 4 cells
constexpr int kChunk = 1024;        // sorted spheres that one block bins
constexpr int kListsPerSphere = 8;  // room in the pool of lists; cells beyond scan all spheres
constexpr std::uint32_t kHiddenKey = 0xffffffffu;

struct __align__(16) SphereRecord {
  float x, y, z, r;
  float opacity, key, reach;
  std::int32_t id;
};

struct TileCone {
  Cone cone;
  float chord;
  float along;  // largest distance of an origin from the cone's, along its axis
  int count;
};

struct ViewState {
  float o[3], n[3];    // mean beam
  float shift;         // how far an origin lies from it: along n if parallel, else in all
  float reach_shift;   // in all
  unsigned drop_bits;  // largest |v| - x of a hit, as the bits of a float that is not negative
  int parallel, point;
  int visible;
  Beam beam;
  Range range;
  float gamma, background_depth;
};

struct CellList {
  std::int64_t offset;  // into the pool; -1: all visible spheres
  int count;
};

// How the tiles of a view are grouped: cells of side x side tiles, groups of 4 x 4 cells.
struct Coarse {
  int tile_width, tile_height, tiles_x, tiles_y, side, cells_x, cells_y, groups_x, groups_y;

  template <typename Tile>
  static Coarse For(int height, int width) {
    Coarse c;
    c.tile_width = Tile::kWidth, c.tile_height = Tile::kHeight;
    c.tiles_x = (width + c.tile_width - 1) / c.tile_width;
    c.tiles_y = (height + c.tile_height - 1) / c.tile_height;
    c.side = 1;
    while (((c.tiles_x + c.side - 1) / c.side) * ((c.tiles_y + c.side - 1) / c.side) > kMaxCells)
      ++c.side;
    c.cells_x = (c.tiles_x + c.side - 1) / c.side;
    c.cells_y = (c.tiles_y + c.side - 1) / c.side;
    c.groups_x = (c.cells_x + 3) / 4;
    c.groups_y = (c.cells_y + 3) / 4;
    return c;
  }
  __host__ __device__ int tiles() const { return tiles_x * tiles_y; }
  __host__ __device__ int cells() const { return cells_x * cells_y; }
  __host__ __device__ int groups() const { return groups_x * groups_y; }
  __host__ __device__ int CellOf(int tile) const {
    return (tile / tiles_x / side) * cells_x + tile % tiles_x / side;
  }
};

// Pointers into the scratch of a call.
struct Prepared {
  Coarse coarse;
  int chunks;
  TileCone* tiles;         // [pairs, tiles]
  ViewState* views;        // [pairs]
  Cone* cells;             // [pairs, cells]
  Cone* groups;            // [pairs, groups]
  std::uint64_t* keys[2];  // [pairs, spheres]
  std::int32_t* order[2];
  SphereRecord* unsorted;    // [pairs, spheres]
  SphereRecord* records;     // [pairs, spheres], front to back
  std::int32_t* counts;      // [pairs, cells, chunks], then where each chunk's part begins
  std::uint32_t* words;      // [pairs, chunks, cells, kChunk / 32] which spheres touch which cell
  CellList* lists;           // [pairs, cells]
  unsigned long long* used;  // [pairs] entries of the pool
  std::int32_t* pool;        // [pairs, kListsPerSphere * spheres] ranks
  std::int64_t pool_size;
  void* sort;
  std::size_t sort_bytes;
};

template <typename T>
__device__ __forceinline__ std::int64_t OffsetOf(const Batch& batch, const Batched<T>& array,
                                                 std::int64_t problem) {
  std::int64_t offset = 0;
  for (int i = batch.rank - 1; i >= 0; --i) {
    offset += problem % batch.size[i] * array.stride[i];
    problem /= batch.size[i];
  }
  return offset;
}

template <typename T>
__device__ __forceinline__ T* DataOf(const Batch& batch, const Batched<T>& array,
                                     std::int64_t problem) {
  return array.data + OffsetOf(batch, array, problem);
}

const char* Prepare(const BlendCall& call, const Coarse& coarse, cudaStream_t stream,
                    Prepared* out);

}  // namespace jaxrec
