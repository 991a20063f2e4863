// How a walk sees its spheres: the blending policies as a call sets them, and the paths by which
// rays of one origin and any other rays meet a sphere.
//
// A path says which spheres pass the bounds of a tile, what of them waits in shared memory, and
// what a hit is. Its Sphere is what waits, its Meeting what a ray knows of it.
#pragma once

#include "cuda/sums.cuh"
#include "cuda/tile.cuh"

namespace jaxrec {

template <typename Policy>
struct PolicyOf;

template <>
struct PolicyOf<Softmax> {
  static __device__ Softmax Make(const BlendCall& call, const Range& range, float gamma,
                                 float background_depth) {
    return Softmax::Make(range, gamma, background_depth, call.logit_stop);
  }
};

template <>
struct PolicyOf<Alpha> {
  static __device__ Alpha Make(const BlendCall& call, const Range& range, float, float) {
    return {range, call.min_transmittance};
  }
};

template <typename Policy>
__device__ __forceinline__ Policy MakePolicy(const BlendCall& call, const ViewState& view) {
  return PolicyOf<Policy>::Make(call, view.range, view.gamma, view.background_depth);
}

// Parts 0 to 2 of a sphere that waits, as a value of 48 bytes.
template <typename T>
__device__ __forceinline__ void Put(WarpQueue* queue, int at, const T& value) {
  static_assert(sizeof(T) == 48);
  float4 parts[3];
  memcpy(parts, &value, sizeof(T));
#pragma unroll
  for (int k = 0; k < 3; ++k) queue->part[k][at] = parts[k];
}
template <typename T>
__device__ __forceinline__ T Get(const WarpQueue& queue, int at) {
  float4 parts[3];
#pragma unroll
  for (int k = 0; k < 3; ++k) parts[k] = queue.part[k][at];
  T value;
  memcpy(&value, parts, sizeof(T));
  return value;
}

// What a ray's own state adds to the cotangents of a hit.
template <typename Policy>
struct PixelState;
template <>
struct PixelState<Softmax> {
  float m, total, inverse_total, level;
};
template <>
struct PixelState<Alpha> {
  float transmittance, behind;  // before the hit and, as R, after it
};

__device__ __forceinline__ ChordCotangent<float> PullChord(
    const Softmax& policy, const Chord<float>& chord, const Softmax::Hit<float>& hit,
    const Sphere& sphere, const Beam& beam, float opacity, const PixelState<Softmax>& pixel,
    float value, float d_depth, float* share) {
  return policy.Pull(chord, hit, sphere, beam, opacity, true, pixel.m, pixel.total, pixel.level,
                     value, d_depth, share);
}
__device__ __forceinline__ ChordCotangent<float> PullChord(
    const Alpha& policy, const Chord<float>& chord, const Alpha::Hit<float>& hit,
    const Sphere& sphere, const Beam& beam, float opacity, const PixelState<Alpha>& pixel,
    float value, float d_depth, float* share) {
  float behind = pixel.behind;
  return policy.Pull(chord, hit, sphere, beam, opacity, true, true, pixel.transmittance, &behind,
                     value, d_depth, share);
}
__device__ __forceinline__ CentralCotangent<float> PullCentral(
    const Softmax& policy, float s, const Softmax::Central& sphere, const CentralInverse& inverse,
    const Softmax::Hit<float>& hit, const PixelState<Softmax>& pixel, float value, float d_depth,
    float* share) {
  return policy.PullCentral(s, sphere, inverse, hit, pixel.m, pixel.inverse_total, pixel.level,
                            value, d_depth, share);
}
__device__ __forceinline__ CentralCotangent<float> PullCentral(
    const Alpha& policy, float s, const Alpha::Central& sphere, const CentralInverse& inverse,
    const Alpha::Hit<float>& hit, const PixelState<Alpha>& pixel, float value, float d_depth,
    float* share) {
  return policy.PullCentral(s, sphere, inverse, hit, pixel.transmittance, pixel.behind, value,
                            d_depth, share);
}

enum Stop { kStopNever = 0, kStopPerSphere = 1, kStopTotal = 2 };

// Log weight of what is omitted by stopping before a sphere whose own bound is `bound`, when
// `remaining` are still to come; infinite where nothing may be omitted. It never rises along the
// walk, so that a ray which has stopped needs no mark.
template <typename Policy>
__device__ __forceinline__ float Omitted(const BlendCall& call, float bound, int remaining) {
  if (Policy::kOrdered || call.stop == kStopPerSphere) return bound;
  if (call.stop == kStopNever) return INFINITY;
  return fmaxf(bound, 0.0f) + log2f(static_cast<float>(remaining));
}

// What the paths share.
template <typename Queue>
struct QueuePath {
  Queue* queue;

  __device__ int Rank(int at) const { return __float_as_int(queue->part[3][at].w); }
  __device__ int Id(int at) const { return queue->id[at]; }
  // Channels and, as bits, the rank.
  __device__ float4 Staged(int at) const { return queue->part[3][at]; }
  __device__ void WaitRest(int at, const SphereRecord& s, int rank,
                           const float (&staged)[kStagedChannels]) const {
    queue->id[at] = s.id;
    queue->part[3][at] = {staged[0], staged[1], staged[2], __int_as_float(rank)};
  }
};

// Central views: a meeting is the squared chord.
template <typename Policy, typename Queue>
struct CentralPath : QueuePath<Queue> {
  using Sphere = typename Policy::Central;
  using Meeting = float;

  const BlendCall& call;
  const ViewState& view;
  const Policy& policy;

  __device__ bool Passes(const Bound& bound, const SphereRecord& s) const {
    return Touches(bound.box, CentralBall(view.frame, s));
  }
  __device__ void WaitSphere(int at, const SphereRecord& s, int rank,
                             const float (&staged)[kStagedChannels], const Sphere& sphere) const {
    Put(this->queue, at, sphere);
    const Ball ball = CentralBall(view.frame, s);
    this->queue->ball[at] = {ball.x, ball.y, ball.z, ball.radius};
    this->WaitRest(at, s, rank, staged);
  }
  __device__ bool Near(const Bound& bound, int at) const {
    const float4 ball = this->queue->ball[at];
    return Touches(bound.box, {ball.x, ball.y, ball.z, ball.w});
  }
  __device__ Sphere Load(int at) const { return Get<Sphere>(*this->queue, at); }
  __device__ float Opacity(const Sphere& sphere) const { return sphere.opacity; }
  __device__ bool Meet(const Ray<float>& ray, const Sphere& sphere, Meeting* s) const {
    *s = SquaredChord(ray.nx, ray.ny, ray.nz, sphere.x, sphere.y, sphere.z);
    return *s <= sphere.hit;
  }
  __device__ auto Weigh(Meeting s, const Sphere& sphere) const { return policy.Weigh(s, sphere); }
  template <typename Hit>
  __device__ float Depth(Meeting s, const Sphere& sphere, const Hit& hit) const {
    return policy.Depth(s, sphere, hit);
  }
};

// For a forward pass, which counts log weights from `start` if the kind has any.
template <typename Policy>
struct CentralDrawPath : CentralPath<Policy, WarpQueue> {
  static constexpr bool kFromStart = !Policy::kOrdered;
  using State = typename Policy::template State<float>;

  __device__ void Begin(State* state) const {
    if constexpr (kFromStart) this->policy.CountFromStart(state);
  }
  __device__ void End(State* state) const {
    if constexpr (kFromStart) this->policy.CountFromZero(state);
  }
  __device__ void Wait(int at, const SphereRecord& s, int rank,
                       const float (&staged)[kStagedChannels], int remaining) const {
    typename Policy::Central sphere =
        this->policy.Aim({s.x, s.y, s.z, s.distance, s.r, s.opacity}, this->view.beam);
    sphere.bound = Omitted<Policy>(this->call, sphere.bound, remaining);
    if constexpr (kFromStart) {
      sphere = this->policy.CountFromStart(sphere);
      this->queue->total[at] = this->policy.LargestTotal(sphere.bound);
    }
    this->WaitSphere(at, s, rank, staged, sphere);
  }
};

// For a backward pass.
template <typename Policy>
struct CentralPullPath : CentralPath<Policy, PullQueue> {
  using Sphere = typename Policy::Central;

  Bounds bounds;          // of gradients
  const float* features;  // of more channels than wait

  __device__ void Wait(int at, const SphereRecord& s, int rank,
                       const float (&staged)[kStagedChannels], int) const {
    const Beam& beam = this->view.beam;
    const Grids grids = bounds.For(s.r, s.opacity, beam.e1 * s.distance);
    this->queue->more[at] = {s.distance > 0.0f ? 1.0f / s.distance : 0.0f,
                             s.r > 0.0f ? 1.0f / s.r : 0.0f, grids.geometry, grids.opacity};
    this->WaitSphere(at, s, rank, staged,
                     this->policy.Aim({s.x, s.y, s.z, s.distance, s.r, s.opacity}, beam));
  }
  __device__ Grids GridsOf(const Sphere&, int at) const {
    return {this->queue->more[at].z, this->queue->more[at].w};
  }
  template <typename Hit, typename Pixel>
  __device__ SphereCotangent Pull(float s, const Sphere& sphere, int at, const Hit& hit,
                                  const Ray<float>& ray, const Pixel& pixel, float value,
                                  float d_depth, float* share) const {
    const CentralInverse inverse = {this->queue->more[at].x, this->queue->more[at].y};
    const CentralCotangent<float> d =
        PullCentral(this->policy, s, sphere, inverse, hit, pixel, value, d_depth, share);
    // c = o + d v with |v| = 1 and s = |v - n|^2: d_v lies across v, d_n across n (StoreRays).
    const float gamma = 2.0f * inverse.distance * d.chord;
    const float beta = d.distance + gamma * (1.0f - 0.5f * s);
    return {{beta * sphere.x - gamma * ray.nx, beta * sphere.y - gamma * ray.ny,
             beta * sphere.z - gamma * ray.nz},
            {-2.0f * d.chord * sphere.x, -2.0f * d.chord * sphere.y, -2.0f * d.chord * sphere.z},
            d.radius,
            d.opacity};
  }
};

// What waits in a view that is not central.
struct ChordSphere {
  float x, y, z, distance;
  float r, opacity, reach, bound;  // bound: as Omitted says, of a forward pass
  Grids grids;                     // of a backward pass
  float unused[2];
};

// Any other view.
template <typename Policy>
struct GeneralPath : QueuePath<WarpQueue> {
  static constexpr bool kFromStart = false;

  using Sphere = ChordSphere;
  using Meeting = Chord<float>;

  const BlendCall& call;
  const ViewState& view;
  const Policy& policy;
  Bounds bounds;          // of gradients
  const float* features;  // of more channels than wait

  __device__ bool Passes(const Bound& bound, const SphereRecord& s) const {
    if (view.mode == kParallel) return Touches(bound.box, BallOf(view, s));
    return !bound.cone.empty && Touches(bound.cone, s.x, s.y, s.z, s.reach);
  }
  __device__ void Wait(int at, const SphereRecord& s, int rank,
                       const float (&staged)[kStagedChannels], int remaining) const {
    const float slack = view.shift + __uint_as_float(view.drop_bits);
    const float bound = policy.LogBound(s.distance - s.r - slack);
    Put(queue, at,
        ChordSphere{s.x,
                    s.y,
                    s.z,
                    s.distance,
                    s.r,
                    s.opacity,
                    s.reach,
                    Omitted<Policy>(call, bound, remaining),
                    bounds.For(s.r, s.opacity, view.beam.e0 + view.beam.e1 * fabsf(s.distance)),
                    {}});
    WaitRest(at, s, rank, staged);
  }
  __device__ bool Near(const Bound& bound, int at) const {
    const float4 a = queue->part[0][at];
    return Passes(bound, {a.x, a.y, a.z, 0, 0, 0, queue->part[1][at].z, 0});
  }
  __device__ Sphere Load(int at) const { return Get<Sphere>(*queue, at); }
  __device__ float Opacity(const Sphere& sphere) const { return sphere.opacity; }
  __device__ bool Meet(const Ray<float>& ray, const Sphere& s, Meeting* chord) const {
    const jaxrec::Sphere sphere = {s.x, s.y, s.z, s.r};
    Split(ray, sphere, chord);
    if (!(chord->p2 <= s.reach * s.reach)) return false;
    jaxrec::Meet(sphere, view.beam, view.range, chord);
    return policy.Counts(*chord);
  }
  __device__ auto Weigh(const Meeting& chord, const Sphere& s) const {
    return policy.Weigh(chord, jaxrec::Sphere{s.x, s.y, s.z, s.r}, s.opacity);
  }
  template <typename Hit>
  __device__ float Depth(const Meeting& chord, const Sphere&, const Hit& hit) const {
    return policy.Depth(chord, hit);
  }
  __device__ Grids GridsOf(const Sphere& s, int) const { return s.grids; }
  template <typename Hit, typename Pixel>
  __device__ SphereCotangent Pull(const Meeting& chord, const Sphere& s, int, const Hit& hit,
                                  const Ray<float>& ray, const Pixel& pixel, float value,
                                  float d_depth, float* share) const {
    return Spread(PullChord(policy, chord, hit, jaxrec::Sphere{s.x, s.y, s.z, s.r}, view.beam,
                            s.opacity, pixel, value, d_depth, share),
                  chord, ray);
  }
};

}  // namespace jaxrec
