// What is done once for each view before its blocks: the mean beam and the front-to-back order.
#pragma once

#include <cstdint>
#include <vector>

#include "cpu/view.h"

namespace jaxrec {

// The spheres of one scene.
struct Spheres {
  std::int32_t count;
  int channels;
  const float* centers;  // [count, 3]
  const float* radii;    // negative: hidden
  const float* opacities;
  const float* features;    // [count, channels]
  const float* velocities;  // [count, 3], null if nothing moves
};

// Owns what View and the blocks' candidates point into.
struct Prepared {
  std::vector<Record> records;     // visible spheres by key, ties by id
  std::vector<float> coordinates;  // x, y, z, reach and, of what moves, the velocity; each padded
  std::vector<std::int32_t> ranks;
  Candidates list;
  float slack = 0.0f;
};

// Sorts the spheres for a view whose rays and beam are set.
void Prepare(const Spheres& spheres, const View& view, Prepared* out);

}  // namespace jaxrec
