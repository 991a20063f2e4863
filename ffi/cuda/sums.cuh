// Gradients of spheres as sums over rays that do not depend on their order: every term is rounded
// to a grid, a power of two that belongs to its sphere, and added in double precision, where such
// sums are exact. So results repeat to the bit although atomics come in any order.
//
// The grid is 2^-33 of a bound of the term: sums stay exact up to 2^20 times that bound, and are
// still right beyond. (Demmel and Nguyen, "Fast reproducible floating-point summation", 2013, call
// this pre-rounding.)
#pragma once

#include <type_traits>

#include "core/alpha.h"
#include "core/softmax.h"
#include "cuda/prepare.cuh"
#include "cuda/warp.cuh"

namespace jaxrec {

// Few channels live in registers; many are a loop over local memory.
template <int kChannels>
constexpr int kUnrollOf = kChannels <= 35 ? kChannels : 1;

constexpr int kSphereTerms = 5;    // x, y, z, radius, opacity; then the features
constexpr int kVelocityTerms = 3;  // of what moves, between these
template <typename Motion>
constexpr int kFirstTerms = kSphereTerms + (Motion::kMoves ? kVelocityTerms : 0);

// Largest finite absolute values of a problem, as the bits of floats that are not negative.
struct Peaks {
  unsigned d_features, d_depth, d_alpha, level, feature;
};

struct Sums {
  Peaks* peaks;   // [problems]
  double* terms;  // [problems, spheres, 5 or 8, and channels]
};

// Zeroes the sums and finds the peaks. `memory` holds SumsBytes for each problem.
Sums StartSums(const BlendCall& call, void* memory, const Stream& stream);
// Writes the gradients that are needed.
void SettleSums(const BlendCall& call, const Sums& sums, const Stream& stream);

// The grids of one sphere's terms, as what rounds to them (GridOf). 0 where no bound is known: then
// terms are not rounded.
struct Grids {
  float geometry, opacity;

  // That of a term, given that of the features.
  __device__ __forceinline__ float Of(int term, float feature) const {
    return term < 4 ? geometry : term == 4 ? opacity : feature;
  }
};

// Of what moves.
struct MovingGrids : Grids {
  float velocity;

  // The unit of times is the largest, rounded down to a power of two.
  static __device__ __forceinline__ MovingGrids Of(const Grids& still, const TimeSpan& span) {
    const float largest = fabsf(span.middle) + span.half;
    return {still, __uint_as_float(__float_as_uint(largest) & 0x7f800000u) * still.geometry};
  }
  __device__ __forceinline__ float Of(int term, float feature) const {
    return term < kSphereTerms || term >= kFirstTerms<Linear> ? Grids::Of(term, feature) : velocity;
  }
};

// 1.5 * 2^23 times the grid: adding it rounds a float below a third of it to the grid. Floats from
// there on are multiples of half the grid anyway.
__device__ __forceinline__ float GridOf(float bound) {
  // The grid is the power of two at or below the bound, times 2^-33.
  return bound < 1e37f ? __uint_as_float(__float_as_uint(bound) & 0x7f800000u) * 0x1.8p-10f : 0.0f;
}
__device__ __forceinline__ float Rounded(float x, float grid) {
  return 3.0f * fabsf(x) < grid ? __fsub_rn(__fadd_rn(x, grid), grid) : x;
}

// What one view of a problem needs to know for its grids.
struct Bounds {
  float value, slope, feature;  // of values less levels, of exponents over distance, of d_features

  static __device__ Bounds Of(const BlendCall& call, const Peaks& peaks, const Range& range,
                              float gamma) {
    const float far = range.far < 1e30f ? range.far : 1e30f;
    const float value =
        __uint_as_float(peaks.d_alpha) + __uint_as_float(peaks.level) +
        call.channels * __uint_as_float(peaks.d_features) * __uint_as_float(peaks.feature) +
        2.0f * far * __uint_as_float(peaks.d_depth);
    const float slope = call.kind == 0 ? 1.0f / (gamma * (range.far - range.near)) : 0.0f;
    return {value, slope, __uint_as_float(peaks.d_features)};
  }

  // For a sphere of radius r where the beam's half-width is e.
  __device__ Grids For(float r, float opacity, float e) const {
    const float length = fmaxf(fmaxf(r, e), 1e-20f);
    const float o = fmaxf(opacity, 1e-3f);
    return {GridOf(4.0f * value * (1.0f / length + slope * o)),
            GridOf(value * (1.0f / o + slope * length * 1e3f))};
  }
};

// Where the terms of spheres are summed.
struct SphereSums {
  double* base;  // of the problem
  int channels, need, stride;

  static __device__ SphereSums Of(const BlendCall& call, const Sums& sums, int problem) {
    const int stride = kSphereTerms + call.channels;
    return {sums.terms + std::int64_t{problem} * call.spheres * stride, call.channels, call.need,
            stride};
  }
  __device__ __forceinline__ bool Wants(int term) const {
    const int bit = term < 3 ? 0 : term < kSphereTerms ? term - 2 : 3;
    return (need >> bit & 1) && term < stride;
  }
  __device__ __forceinline__ double* At(int id, int term) const {
    return base + static_cast<std::uint64_t>(static_cast<unsigned>(id)) * stride + term;
  }
  __device__ __forceinline__ void Add(int id, int term, float x, float grid) const {
    if (x != 0.0f) atomicAdd(At(id, term), static_cast<double>(Rounded(x, grid)));
  }
};

// Of what moves.
struct MovingSums : SphereSums {
  static __device__ MovingSums Of(const BlendCall& call, const Sums& sums, int problem) {
    const int stride = kFirstTerms<Linear> + call.channels;
    return {{sums.terms + std::int64_t{problem} * call.spheres * stride, call.channels, call.need,
             stride}};
  }
  __device__ __forceinline__ bool Wants(int term) const {
    if (term < kSphereTerms || term >= kFirstTerms<Linear>) return SphereSums::Wants(term);
    return need >> 6 & 1;
  }
};

template <typename Motion>
using GridsFor = std::conditional_t<Motion::kMoves, MovingGrids, Grids>;
template <typename Motion>
using SumsFor = std::conditional_t<Motion::kMoves, MovingSums, SphereSums>;

template <int kChannels, typename Motion = Still>
constexpr int kTermsOf = (kFirstTerms<Motion> + kChannels + 7) / 8 * 8;

// Calls add(term, sum) with the sum of each term of v over the warp, each on a lane of its own.
template <int kTerms, typename Add>
__device__ __forceinline__ void ForWarpSums(const float (&v)[kTerms], Add add) {
  const int lane = threadIdx.x % 32, own = Reduced(lane);
#pragma unroll(kTerms <= 40 ? kTerms / 8 : 1)
  for (int begin = 0; begin < kTerms; begin += 8) {
    float eight[8];
#pragma unroll
    for (int k = 0; k < 8; ++k) eight[k] = v[begin + k];
    const float sum = ReduceEight(eight, [](float a, float b) { return a + b; });
    if (lane % 4 == 0) add(begin + own, sum);
  }
}

// Adds up v over the warp and into the sums of sphere `id`, which is the same for all lanes.
template <int kTerms>
__device__ __forceinline__ void Scatter(const SphereSums& out, const Grids& grids, float of_feature,
                                        int id, const float (&v)[kTerms]) {
  ForWarpSums(v, [&](int term, float sum) {
    if (out.Wants(term)) out.Add(id, term, sum, grids.Of(term, of_feature));
  });
}
template <int kTerms>
__device__ __forceinline__ void Scatter(const MovingSums& out, const MovingGrids& grids,
                                        float of_feature, int id, const float (&v)[kTerms]) {
  ForWarpSums(v, [&](int term, float sum) {
    if (out.Wants(term)) out.Add(id, term, sum, grids.Of(term, of_feature));
  });
}

// Cotangents of a ray's results, and what it saved.
template <int kChannels>
struct Upstream {
  float d_features[kChannels] = {};
  float d_depth = 0, d_alpha = 0, level = 0, first = 0, second = 1;
  float behind = 0;  // ordered kinds: what all hits give, dotted with the cotangents
  int last = -1;
  const std::int32_t* ids = nullptr;
  float turn[3] = {}, push[3] = {};  // cotangents of direction and, negative, of origin
};

// The same of a ray that sees spheres move.
template <int kChannels>
struct MovingUpstream : Upstream<kChannels> {
  float time = 0;  // cotangent of the time
};
template <int kChannels, typename Motion>
using UpstreamFor =
    std::conditional_t<Motion::kMoves, MovingUpstream<kChannels>, Upstream<kChannels>>;

// The first channel of a pixel; the next one is field.c further.
__device__ __forceinline__ const float* FieldOf(const BlendCall& call, const PixelField& field,
                                                int pair, const Pixel& p) {
  return DataOf(call.batch, field.base, ProblemOf(call, pair)) + ViewOf(call, pair) * field.v +
         p.y * field.y + p.x * field.x;
}

template <int kChannels>
__device__ __forceinline__ void LoadUpstream(const BlendCall& call, int pair, const Pixel& p,
                                             bool ordered, Upstream<kChannels>* up) {
  const int problem = ProblemOf(call, pair);
  const std::int64_t at = std::int64_t{ViewOf(call, pair)} * call.height * call.width + p.index;
  const float* d_features = FieldOf(call, call.d_features, pair, p);
#pragma unroll(kUnrollOf<kChannels>)
  for (int c = 0; c < kChannels; ++c)
    if (c < call.channels) up->d_features[c] = d_features[c * call.d_features.c];
  up->d_depth = *FieldOf(call, call.d_depth, pair, p);
  up->d_alpha = *FieldOf(call, call.d_alpha, pair, p);
  const float* level = FieldOf(call, call.level, pair, p);
  up->level = level[ordered ? call.level.c : 0];
  if (ordered) up->behind = level[0];
  const float* normalizer = DataOf(call.batch, call.saved_normalizer, problem) + 2 * at;
  up->first = normalizer[0], up->second = normalizer[1];
  up->last = DataOf(call.batch, call.saved_last, problem)[at];
  up->ids = DataOf(call.batch, call.saved_ids, problem) + at * call.tracked;
}

// Cotangents of one meeting: of the center (that of the origin is its negative), of the direction,
// of radius and opacity.
struct SphereCotangent {
  float center[3], direction[3];
  float radius, opacity;
};

__device__ __forceinline__ SphereCotangent Spread(const ChordCotangent<float>& d,
                                                  const Chord<float>& chord,
                                                  const Ray<float>& ray) {
  const float across = d.along - chord.along * d.beside;
  return {{d.along * ray.nx + d.beside * chord.bx, d.along * ray.ny + d.beside * chord.by,
           d.along * ray.nz + d.beside * chord.bz},
          {across * chord.bx, across * chord.by, across * chord.bz},
          d.radius,
          d.opacity};
}

// The same of a sphere that moves, and of the time.
struct MovingCotangent {
  SphereCotangent still;
  float velocity[3], time;
};

// `time` is that of the ray, `since` that since the centers hold.
__device__ __forceinline__ MovingCotangent Moving(const SphereCotangent& still,
                                                  const Velocity& velocity, float since) {
  const float* d = still.center;
  return {still,
          {since * d[0], since * d[1], since * d[2]},
          velocity.x * d[0] + velocity.y * d[1] + velocity.z * d[2]};
}

// Those of the sphere are added to v, those of the ray to its own.
template <int kFirst = kSphereTerms, int kChannels, int kTerms>
__device__ __forceinline__ void Collect(const SphereCotangent& d, float share,
                                        Upstream<kChannels>* up, float (&v)[kTerms]) {
#pragma unroll
  for (int k = 0; k < 3; ++k) {
    v[k] += d.center[k];
    up->push[k] -= d.center[k], up->turn[k] += d.direction[k];
  }
  v[3] += d.radius, v[4] += d.opacity;
#pragma unroll(kUnrollOf<kChannels>)
  for (int c = 0; c < kChannels; ++c) v[kFirst + c] += share * up->d_features[c];
}
template <int kChannels, int kTerms>
__device__ __forceinline__ void Collect(const MovingCotangent& d, float share,
                                        MovingUpstream<kChannels>* up, float (&v)[kTerms]) {
  Collect<kFirstTerms<Linear>, kChannels>(d.still, share, up, v);
#pragma unroll
  for (int k = 0; k < kVelocityTerms; ++k) v[kSphereTerms + k] += d.velocity[k];
  up->time += d.time;
}

template <int kChannels>
__device__ __forceinline__ void StoreRays(const BlendCall& call, int pair, const Pixel& p,
                                          const Ray<float>& ray, const Upstream<kChannels>& up) {
  // A unit direction moves only across itself.
  const float n[3] = {ray.nx, ray.ny, ray.nz};
  const float ahead = up.turn[0] * n[0] + up.turn[1] * n[1] + up.turn[2] * n[2];
  const std::int64_t own = 3 * (std::int64_t{pair} * call.height * call.width + p.index);
  for (int k = 0; k < 3; ++k) {
    if (call.d_origins) call.d_origins[own + k] = up.push[k];
    if (call.d_directions) call.d_directions[own + k] = up.turn[k] - ahead * n[k];
  }
}

template <int kChannels>
__device__ __forceinline__ void StoreTime(const BlendCall& call, int pair, const Pixel& p,
                                          const MovingUpstream<kChannels>& up) {
  if (call.d_times) call.d_times[std::int64_t{pair} * call.height * call.width + p.index] = up.time;
}

// Enqueues the backward pass of softmax for the nearest hits alone, which needs no walk.
const char* LaunchNearestVjp(const BlendCall& call, const Sums& sums, const Stream& stream);

}  // namespace jaxrec
