// How a view sees a sphere: whether at all, where, and what it is sorted by.
#pragma once

#include "cuda/prepare.cuh"
#include "cuda/vector.cuh"

namespace jaxrec {

// Keeps the order of floats.
__device__ __forceinline__ std::uint32_t Sortable(float x) {
  const std::uint32_t bits = __float_as_uint(x);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float Unsortable(std::uint32_t x) {
  return __uint_as_float(x & 0x80000000u ? x & 0x7fffffffu : ~x);
}

// Spheres are sorted by distance - r, ties by index.
__device__ __forceinline__ std::uint64_t KeyOf(const SphereRecord& s) {
  return static_cast<std::uint64_t>(Sortable(s.distance - s.r)) << 32 |
         static_cast<std::uint32_t>(s.id);
}

// What a scene says of a sphere.
struct SphereValues {
  float x, y, z, r, opacity;
  bool finite;  // as are its features

  static __device__ __forceinline__ SphereValues Load(const BlendCall& call, int problem,
                                                      std::int64_t i) {
    const float* c = DataOf(call.batch, call.centers, problem) + 3 * i;
    SphereValues s = {c[0], c[1], c[2], DataOf(call.batch, call.radii, problem)[i],
                      DataOf(call.batch, call.opacities, problem)[i]};
    float zero = (s.x + s.y + s.z + s.r + s.opacity) * 0.0f;
    const float* f = DataOf(call.batch, call.features, problem) + i * call.channels;
    for (int k = 0; k < call.channels; ++k) zero += f[k] * 0.0f;
    s.finite = zero == 0.0f;
    return s;
  }
};

// The same of what may move.
template <typename Motion>
struct ValuesOf : SphereValues {
  static __device__ __forceinline__ ValuesOf Load(const BlendCall& call, int problem,
                                                  std::int64_t i) {
    return {SphereValues::Load(call, problem, i)};
  }
};
template <>
struct ValuesOf<Linear> : SphereValues {
  Velocity velocity;

  static __device__ __forceinline__ ValuesOf Load(const BlendCall& call, int problem,
                                                  std::int64_t i) {
    ValuesOf s = {SphereValues::Load(call, problem, i), VelocityOf(call, problem, i)};
    s.finite = s.finite && (s.velocity.x + s.velocity.y + s.velocity.z) * 0.0f == 0.0f;
    return s;
  }
};

// How far from its center a sphere may be hit whose distance is no more than this.
__device__ __forceinline__ float ReachOf(const ViewState& view, float r, float distance) {
  const float e = view.beam.e0 + view.beam.e1 * (distance + view.reach_shift);
  return (r < kThinRadius * e ? fmaxf(r, kThinReach * e) : r) * 1.00001f;
}

// A sphere in a view; the rule of visibility is that of the CPU, and what no ray's bound touches is
// hidden too. *below: by how much x of a hit may fall below the distance.
__device__ __forceinline__ bool See(const ViewState& view, const SphereValues& sphere, int i,
                                    SphereRecord* out, float* below) {
  const float r = sphere.r, opacity = sphere.opacity;
  const Vec center = {sphere.x, sphere.y, sphere.z};
  const Vec v = Minus(center, {view.o[0], view.o[1], view.o[2]});
  const float distance = Length(v);
  const Beam& beam = view.beam;
  *below = 0.0f;
  if (view.mode == kCentral) {
    const float inverse = distance > 0.0f ? 1.0f / distance : 0.0f;
    const CentralReach reach = CentralReach::Of(distance, r, beam);
    *out = {v.x * inverse, v.y * inverse, v.z * inverse, distance, r, opacity, sqrtf(reach.hit), i};
    const float closest = distance - r;
    return sphere.finite && r >= 0.0f && closest >= view.range.near && closest <= view.range.far &&
           Touches(view.box, CentralBall(view.frame, *out));
  }
  const bool parallel = view.mode == kParallel;
  const float reach = ReachOf(view, r, distance);
  const float along = parallel ? Dot(v, {view.n[0], view.n[1], view.n[2]}) : distance;
  *out = {center.x, center.y, center.z, along, r, opacity, reach, i};
  if (!parallel && !(beam.spread && beam.e0 == 0.0f))
    *below = distance - sqrtf(fmaxf(distance * distance - reach * reach, 0.0f));
  const float margin = 1e-5f * (distance + r + view.shift), key = along - r;
  return sphere.finite && r >= 0.0f && !(key + view.shift + margin < view.range.near) &&
         !(key - view.shift - *below - margin > view.range.far) &&
         Touches(view.box, BallOf(view, *out));
}

// The same of what may move.
__device__ __forceinline__ bool See(const ViewState& view, const ValuesOf<Still>& sphere, TimeSpan,
                                    int i, SphereRecord* out, float* below) {
  return See(view, static_cast<const SphereValues&>(sphere), i, out, below);
}
// Sorted by where it is in the middle of the times; it reaches over all of its way.
__device__ __forceinline__ bool See(const ViewState& view, const ValuesOf<Linear>& sphere,
                                    TimeSpan span, int i, SphereRecord* out, float* below) {
  const Velocity& velocity = sphere.velocity;
  const float r = sphere.r, sweep = velocity.Speed() * span.half;
  const Vec center = {sphere.x + velocity.x * span.middle, sphere.y + velocity.y * span.middle,
                      sphere.z + velocity.z * span.middle};
  const Vec v = Minus(center, {view.o[0], view.o[1], view.o[2]});
  const bool parallel = view.mode == kParallel, point = view.beam.spread && view.beam.e0 == 0.0f;
  const float distance = Length(v), reach = ReachOf(view, r, distance + sweep);
  const float along = parallel ? Dot(v, {view.n[0], view.n[1], view.n[2]}) : distance;
  *out = {center.x, center.y, center.z, along, r, sphere.opacity, (reach + sweep) * 1.00001f, i};
  *below = SweptDrop(distance, reach, sweep, parallel || point);
  const float margin = 1e-5f * (distance + r + view.shift + sweep), key = along - r;
  return sphere.finite && r >= 0.0f && !(key + view.shift + sweep + margin < view.range.near) &&
         !(key - view.shift - *below - margin > view.range.far) &&
         Touches(view.box, BallOf(view, *out));
}

}  // namespace jaxrec
