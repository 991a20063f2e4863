#include "cpu/prepare.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace jaxrec {
namespace {

constexpr float kParallelTolerance = 1e-6f;  // directions that differ by less are one
constexpr int kPadding = 32;                 // vector reads run past the end by less

// The mean origin and direction of the valid rays, and how far they lie from it.
struct MeanBeam {
  float o[3] = {0, 0, 0}, n[3] = {0, 0, 0};
  float shift = 0;        // of origins
  float shift_along = 0;  // of origins, along n
  bool parallel = true;
};

bool Valid(const float* o, const float* n) {
  for (int k = 0; k < 3; ++k)
    if (!std::isfinite(o[k]) || !std::isfinite(n[k])) return false;
  return std::fabs(n[0] * n[0] + n[1] * n[1] + n[2] * n[2] - 1.0f) <= kUnitTolerance;
}

MeanBeam Mean(const View& view) {
  MeanBeam mean;
  const std::int64_t rays = std::int64_t{view.height} * view.width;
  std::int64_t first = 0;
  while (first < rays && !Valid(view.origins + 3 * first, view.directions + 3 * first)) ++first;
  if (first == rays) return mean;
  // Deviations from the first ray, so that equal origins give exactly that origin.
  double sum[6] = {};
  std::int64_t count = 0;
  const float* o0 = view.origins + 3 * first;
  const float* n0 = view.directions + 3 * first;
  for (std::int64_t i = first; i < rays; ++i) {
    const float* o = view.origins + 3 * i;
    const float* n = view.directions + 3 * i;
    if (!Valid(o, n)) continue;
    ++count;
    for (int k = 0; k < 3; ++k) sum[k] += o[k] - o0[k], sum[3 + k] += n[k] - n0[k];
  }
  for (int k = 0; k < 3; ++k) {
    mean.o[k] = o0[k] + static_cast<float>(sum[k] / count);
    mean.n[k] = n0[k] + static_cast<float>(sum[3 + k] / count);
  }
  float shift2 = 0, spread = 0;
  for (std::int64_t i = first; i < rays; ++i) {
    const float* o = view.origins + 3 * i;
    const float* n = view.directions + 3 * i;
    if (!Valid(o, n)) continue;
    float square = 0, along = 0;
    for (int k = 0; k < 3; ++k) {
      const float d = o[k] - mean.o[k];
      square += d * d, along += d * mean.n[k];
      spread = std::max(spread, std::fabs(n[k] - mean.n[k]));
    }
    shift2 = std::max(shift2, square);
    mean.shift_along = std::max(mean.shift_along, std::fabs(along));
  }
  mean.shift = std::sqrt(shift2);
  mean.parallel = !view.beam.spread && spread <= kParallelTolerance;
  return mean;
}

bool Visible(const Spheres& spheres, std::int32_t i) {
  const float* c = spheres.centers + 3 * std::int64_t{i};
  float sum = c[0] + c[1] + c[2] + spheres.radii[i] + spheres.opacities[i];
  const float* velocity = spheres.velocities + 3 * std::int64_t{i};
  if (spheres.velocities)
    for (int k = 0; k < 3; ++k) sum += velocity[k] * 0.0f;
  const float* f = spheres.features + std::int64_t{i} * spheres.channels;
  for (int k = 0; k < spheres.channels; ++k) sum += f[k] * 0.0f;
  return std::isfinite(sum) && spheres.radii[i] >= 0.0f;
}

// Orders floats of any sign by their bits.
std::uint32_t Sortable(float x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

struct Keyed {
  std::uint32_t key;
  std::uint32_t index;
};

// Radix sort by key; stable, so that ties keep the order of their indices.
void Sort(std::vector<Keyed>* items) {
  constexpr int kBits = 11, kPasses = 3, kBuckets = 1 << kBits;
  std::vector<Keyed> other(items->size());
  std::vector<std::uint32_t> start(kPasses * kBuckets);
  for (const Keyed& item : *items)
    for (int p = 0; p < kPasses; ++p)
      ++start[p * kBuckets + (item.key >> (p * kBits) & (kBuckets - 1))];
  for (int p = 0; p < kPasses; ++p) {
    std::uint32_t* counts = start.data() + p * kBuckets;
    std::uint32_t sum = 0;
    for (int b = 0; b < kBuckets; ++b) {
      const std::uint32_t n = counts[b];
      counts[b] = sum;
      sum += n;
    }
    for (const Keyed& item : *items)
      other[counts[item.key >> (p * kBits) & (kBuckets - 1)]++] = item;
    items->swap(other);
  }
}

}  // namespace

void Prepare(const Spheres& spheres, const View& view, Prepared* out) {
  const MeanBeam mean = Mean(view);
  const Beam& beam = view.beam;
  const bool point = beam.e0 == 0.0f && beam.spread;
  const float shift = mean.parallel ? mean.shift_along : mean.shift;
  std::vector<Record> found;
  std::vector<Keyed> order;
  found.reserve(spheres.count);
  order.reserve(spheres.count);
  float drop = 0;  // neither parallel nor a point camera: x of a hit lies below |v| by up to this
  for (std::int32_t i = 0; i < spheres.count; ++i) {
    if (!Visible(spheres, i)) continue;
    float c[3], sweep = 0;
    for (int k = 0; k < 3; ++k) c[k] = spheres.centers[3 * std::int64_t{i} + k];
    if (spheres.velocities) {
      const float* u = spheres.velocities + 3 * std::int64_t{i};
      for (int k = 0; k < 3; ++k) c[k] += u[k] * view.span.middle;
      sweep = Velocity{u[0], u[1], u[2]}.Speed() * view.span.half;
    }
    const float v[3] = {c[0] - mean.o[0], c[1] - mean.o[1], c[2] - mean.o[2]};
    const float distance = std::sqrt(v[0] * v[0] + v[1] * v[1] + v[2] * v[2]);
    const float along = v[0] * mean.n[0] + v[1] * mean.n[1] + v[2] * mean.n[2];
    const float r = spheres.radii[i];
    const float e = beam.e0 + beam.e1 * (distance + mean.shift + sweep);
    const float reach = r < kThinRadius * e ? std::max(r, kThinReach * e) : r;
    const float key = (mean.parallel ? along : distance) - r;
    const float below = SweptDrop(distance, reach, sweep, mean.parallel || point);
    // No ray of the view can see it between near and far: the margin covers rounding.
    const float margin = 1e-5f * (distance + r + shift + sweep);
    if (key + shift + sweep + margin < view.range.near) continue;
    if (key - shift - below - margin > view.range.far) continue;
    drop = std::max(drop, below);
    order.push_back({Sortable(key), static_cast<std::uint32_t>(found.size())});
    found.push_back({{c[0], c[1], c[2], r}, spheres.opacities[i], key, reach * 1.00001f, i});
  }
  Sort(&order);
  const std::size_t n = found.size(), stride = n + kPadding;
  out->slack = shift + drop;
  out->records.resize(n);
  out->ranks.resize(n);
  out->coordinates.assign((spheres.velocities ? 7 : 4) * stride, 0.0f);
  float* p = out->coordinates.data();
  for (std::size_t k = 0; k < n; ++k) {
    const Record& record = found[order[k].index];
    out->records[k] = record;
    out->ranks[k] = static_cast<std::int32_t>(k);
    p[k] = record.sphere.x, p[stride + k] = record.sphere.y;
    p[2 * stride + k] = record.sphere.z, p[3 * stride + k] = record.reach;
  }
  out->list = {p, p + stride, p + 2 * stride, p + 3 * stride, out->ranks.data()};
  if (spheres.velocities == nullptr) return;
  out->list.vx = p + 4 * stride, out->list.vy = p + 5 * stride, out->list.vz = p + 6 * stride;
  for (std::size_t k = 0; k < n; ++k) {
    const float* u = spheres.velocities + 3 * std::int64_t{out->records[k].id};
    out->list.vx[k] = u[0], out->list.vy[k] = u[1], out->list.vz[k] = u[2];
  }
}

}  // namespace jaxrec
