// How a walk sees its spheres: the blending policies as a call sets them, and the paths by which
// rays of one origin and any other rays meet a sphere.
//
// A path says which spheres pass the bounds of a tile, what of them waits in shared memory, and
// what a hit is. Its Sphere is what waits, its Meeting what a ray knows of it.
#pragma once

#include "cuda/see.cuh"
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
  using Motion = Still;

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
template <typename Policy, typename Queue = WarpQueue>
struct GeneralPath : QueuePath<Queue> {
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
    Put(this->queue, at,
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
    this->WaitRest(at, s, rank, staged);
  }
  __device__ bool Near(const Bound& bound, int at) const {
    const float4 a = this->queue->part[0][at];
    return Passes(bound, {a.x, a.y, a.z, 0, 0, 0, this->queue->part[1][at].z, 0});
  }
  __device__ Sphere Load(int at) const { return Get<Sphere>(*this->queue, at); }
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

// What waits of spheres that move: besides, their velocities and speeds.
struct MovingQueue : WarpQueue {
  float4 velocity[kQueue];
};
struct MovingSphere : ChordSphere {
  Velocity velocity;
};

// When the ray of a lane is measured, and those of its warp and of the tile: counted from the
// middle of the view's times.
struct LaneTimes {
  float own;
  TimeSpan of_warp, of_tile;
};

// That of a lane's ray; `spans`, shared memory, gets that of the warp.
template <typename Tile>
__device__ __forceinline__ float LoadTime(const BlendCall& call, int pair, const Place& place,
                                          const TimeSpan& of_view, bool valid, TimeSpan* spans) {
  Pixel pixel;
  PixelOf<Tile>(call, place.x, place.y, threadIdx.x / 32, &pixel);
  const float* times = DataOf(call.batch, call.times, ProblemOf(call, pair)) +
                       std::int64_t{ViewOf(call, pair)} * call.height * call.width;
  const float time = valid ? times[pixel.index] - of_view.middle : 0.0f;
  const float low = -WarpMax(valid ? -time : -INFINITY), high = WarpMax(valid ? time : -INFINITY);
  if (threadIdx.x % 32 == 0) spans[threadIdx.x / 32] = {low, high};
  return time;
}
// Once all warps have written theirs, as the first and the last time; none where no ray is valid.
__device__ __forceinline__ LaneTimes TimesOf(float own, const TimeSpan* spans) {
  const auto centered = [](float low, float high) {
    return low <= high ? TimeSpan{0.5f * low + 0.5f * high, 0.5f * high - 0.5f * low} : TimeSpan{};
  };
  float low = INFINITY, high = -INFINITY;
  for (int w = 0; w < kTileWarps; ++w)
    low = fminf(low, spans[w].middle), high = fmaxf(high, spans[w].half);
  const TimeSpan of_warp = spans[threadIdx.x / 32];
  return {own, centered(of_warp.middle, of_warp.half), centered(low, high)};
}

// Spheres that move, in any view: each warp looks for them where they are at its times.
template <typename Policy>
struct MovingPath : GeneralPath<Policy, MovingQueue> {
  using Motion = Linear;
  using Base = GeneralPath<Policy, MovingQueue>;
  using Sphere = MovingSphere;
  using Meeting = Chord<float>;

  int problem;
  TimeSpan of_view;
  LaneTimes times;

  // Where rays of these times may hit a sphere.
  __device__ SphereRecord At(SphereRecord s, const Velocity& v, float speed, TimeSpan span) const {
    s.reach += SweptReach(speed, span) + 3e-7f * (fabsf(s.x) + fabsf(s.y) + fabsf(s.z));
    s.x += v.x * span.middle, s.y += v.y * span.middle, s.z += v.z * span.middle;
    return s;
  }
  __device__ float OwnReach(const SphereRecord& s, float speed) const {
    return ReachOf(this->view, s.r, fabsf(s.distance) + speed * of_view.half);
  }
  __device__ bool Passes(const Bound& bound, SphereRecord s) const {
    const Velocity v = VelocityOf(this->call, problem, s.id);
    const float speed = v.Speed();
    s.reach = OwnReach(s, speed);
    return Base::Passes(bound, At(s, v, speed, times.of_tile));
  }
  __device__ void Wait(int at, SphereRecord s, int rank, const float (&staged)[kStagedChannels],
                       int remaining) const {
    const Velocity v = VelocityOf(this->call, problem, s.id);
    const float speed = v.Speed();
    s.reach = OwnReach(s, speed);
    Base::Wait(at, s, rank, staged, remaining);
    this->queue->velocity[at] = {v.x, v.y, v.z, speed};
  }
  __device__ bool Near(const Bound& bound, int at) const {
    const float4 a = this->queue->part[0][at], v = this->queue->velocity[at];
    const SphereRecord s = {a.x, a.y, a.z, 0, 0, 0, this->queue->part[1][at].z, 0};
    return Base::Passes(bound, At(s, {v.x, v.y, v.z}, v.w, times.of_warp));
  }
  __device__ Sphere Load(int at) const {
    const float4 v = this->queue->velocity[at];
    return {Base::Load(at), {v.x, v.y, v.z}};
  }
  __device__ bool Meet(const Ray<float>& ray, const Sphere& s, Meeting* chord) const {
    const jaxrec::Sphere sphere = {s.x, s.y, s.z, s.r};
    Split(ray, sphere, s.velocity, times.own, chord);
    if (!(chord->p2 <= s.reach * s.reach)) return false;
    jaxrec::Meet(sphere, this->view.beam, this->view.range, chord);
    return this->policy.Counts(*chord);
  }
  __device__ MovingGrids GridsOf(const Sphere& s, int) const {
    return MovingGrids::Of(s.grids, of_view);
  }
  template <typename Hit, typename Pixel>
  __device__ MovingCotangent Pull(const Meeting& chord, const Sphere& s, int at, const Hit& hit,
                                  const Ray<float>& ray, const Pixel& pixel, float value,
                                  float d_depth, float* share) const {
    return Moving(Base::Pull(chord, s, at, hit, ray, pixel, value, d_depth, share), s.velocity,
                  of_view.middle + times.own);
  }
};

}  // namespace jaxrec
