// Gradients of softmax for the nearest hits of each ray: order plays no part and the ids are known,
// so a thread takes a ray and goes through its hits. No walk, no sort.
#include "cuda/path.cuh"
#include "cuda/sums.cuh"

namespace jaxrec {
namespace {

constexpr int kThreads = 256;
constexpr int kFew = 3;  // rays that share a sphere and still add their terms one by one

template <int kChannels, typename Motion = Still>
__global__ void __launch_bounds__(kThreads) PullNearest(BlendCall call, Sums sums) {
  Follow();
  constexpr int kTerms = kTermsOf<kChannels, Motion>;
  constexpr int kUnroll = kUnrollOf<kChannels>;
  const int pair = blockIdx.z, problem = ProblemOf(call, pair), view = ViewOf(call, pair);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  // A block is 16 x 16 rays, a warp 8 x 4 of them: neighbours share their spheres.
  Pixel p;
  p.x = blockIdx.x * 16 + warp % 2 * 8 + lane % 8, p.y = blockIdx.y * 16 + warp / 2 * 4 + lane / 8;
  p.index = std::int64_t{p.y} * call.width + p.x;
  const bool inside = p.x < call.width && p.y < call.height;
  const float* footprint = DataOf(call.batch, call.footprint, problem) + 2 * view;
  const float* limits = DataOf(call.batch, call.limits, problem);
  const Beam beam = Beam::Make(footprint[0], footprint[1]);
  const Range range = {limits[0], limits[1]};
  const Softmax policy = PolicyOf<Softmax>::Make(call, range, limits[2], limits[3]);
  const Bounds bounds = Bounds::Of(call, sums.peaks[problem], range, limits[2]);
  const float of_feature = GridOf(bounds.feature);
  const SumsFor<Motion> out = SumsFor<Motion>::Of(call, sums, problem);
  const float* centers = DataOf(call.batch, call.centers, problem);
  const float* radii = DataOf(call.batch, call.radii, problem);
  const float* opacities = DataOf(call.batch, call.opacities, problem);
  const float* features = DataOf(call.batch, call.features, problem);
  UpstreamFor<kChannels, Motion> up;
  Ray<float> ray = {};
  [[maybe_unused]] TimeSpan span = {};
  [[maybe_unused]] float time = 0;  // of the ray, from the middle of the view's
  if (inside) {
    const std::int64_t at = 3 * (std::int64_t{view} * call.height * call.width + p.index);
    const float* o = DataOf(call.batch, call.origins, problem) + at;
    const float* n = DataOf(call.batch, call.directions, problem) + at;
    LoadUpstream(call, pair, p, false, &up);
    if (up.last >= 0) ray = {o[0], o[1], o[2], n[0], n[1], n[2]};
    if constexpr (Motion::kMoves) {
      span = SpanOf(call, pair);
      if (up.last >= 0) time = DataOf(call.batch, call.times, problem)[at / 3] - span.middle;
    }
  }
  const int hits = min(call.gradient_hits, call.tracked);
  for (int k = 0; k < hits; ++k) {
    const int id = inside && up.last >= 0 ? up.ids[k] : -1;
    unsigned pending = __ballot_sync(~0u, id >= 0);
    if (pending == 0) break;
    float v[kTerms] = {};
    GridsFor<Motion> grids = {};
    if (id >= 0) {
      Sphere sphere = {centers[3 * std::int64_t{id}], centers[3 * std::int64_t{id} + 1],
                       centers[3 * std::int64_t{id} + 2], radii[id]};
      const float opacity = opacities[id];
      Chord<float> chord;
      Velocity velocity = {};
      if constexpr (Motion::kMoves) {
        velocity = VelocityOf(call, problem, id);
        sphere.x += velocity.x * span.middle, sphere.y += velocity.y * span.middle;
        sphere.z += velocity.z * span.middle;
        Split(ray, sphere, velocity, time, &chord);
      } else {
        Split(ray, sphere, &chord);
      }
      Meet(sphere, beam, range, &chord);
      const auto hit = policy.Weigh(chord, sphere, opacity);
      float value = up.d_alpha + up.d_depth * policy.Depth(chord, hit);
      const float* feature = features + std::int64_t{id} * call.channels;
#pragma unroll(kUnroll)
      for (int c = 0; c < kChannels; ++c)
        if (c < call.channels) value += up.d_features[c] * feature[c];
      float share;
      const auto d = policy.Pull(chord, hit, sphere, beam, opacity, true, up.first, up.second,
                                 up.level, value, up.d_depth, &share);
      const SphereCotangent still = Spread(d, chord, ray);
      const Grids grids_of_still = bounds.For(sphere.r, opacity, chord.half_width);
      if constexpr (Motion::kMoves) {
        Collect(Moving(still, velocity, span.middle + time), share, &up, v);
        grids = MovingGrids::Of(grids_of_still, span);
      } else {
        Collect(still, share, &up, v);
        grids = grids_of_still;
      }
    }
    // Where few rays share a sphere they add for themselves, all such rays at once.
    const unsigned same = __match_any_sync(~0u, id);
    const bool few = id >= 0 && __popc(same) <= kFew;
    if (few) {
#pragma unroll(kTerms <= 40 ? kTerms : 1)
      for (int term = 0; term < kTerms; ++term)
        if (out.Wants(term)) out.Add(id, term, v[term], grids.Of(term, of_feature));
    }
    pending &= ~__ballot_sync(~0u, few);
    while (pending != 0) {
      const int leader = __ffs(pending) - 1;
      const int shared_id = __shfl_sync(~0u, id, leader);
      const unsigned members = __shfl_sync(~0u, same, leader);
      GridsFor<Motion> shared_grids;
      shared_grids.geometry = __shfl_sync(~0u, grids.geometry, leader);
      shared_grids.opacity = __shfl_sync(~0u, grids.opacity, leader);
      if constexpr (Motion::kMoves)
        shared_grids.velocity = __shfl_sync(~0u, grids.velocity, leader);
      float own[kTerms];
      const bool mine = members >> lane & 1;
#pragma unroll(kTerms <= 40 ? kTerms : 1)
      for (int term = 0; term < kTerms; ++term) own[term] = mine ? v[term] : 0.0f;
      Scatter(out, shared_grids, of_feature, shared_id, own);
      pending &= ~members;
    }
  }
  if (inside) StoreRays(call, pair, p, ray, up);
  if constexpr (Motion::kMoves)
    if (inside) StoreTime(call, pair, p, up);
}

using Kernel = void (*)(BlendCall, Sums);

Kernel Choose(int channels, bool moves) {
  if (moves) return channels <= 3 ? PullNearest<3, Linear> : PullNearest<64, Linear>;
  if (channels <= 3) return PullNearest<3>;
  if (channels <= 11) return PullNearest<11>;
  if (channels <= 19) return PullNearest<19>;
  if (channels <= 35) return PullNearest<35>;
  return PullNearest<64>;
}

}  // namespace

const char* LaunchNearestVjp(const BlendCall& call, const Sums& sums, const Stream& stream) {
  const dim3 blocks((call.width + 15) / 16, (call.height + 15) / 16, call.pairs);
  stream.Launch(Choose(call.channels, call.moves), blocks, kThreads, 0, call, sums);
  const cudaError_t status = cudaGetLastError();
  return status == cudaSuccess ? nullptr : cudaGetErrorString(status);
}

}  // namespace jaxrec
