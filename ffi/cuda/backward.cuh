// The backward kernel: each warp draws the spheres of its tile again, front to back, and adds up
// their cotangents. How sums of spheres are formed is a type of its own, Out: see sums.cuh, and
// bench/scatter.cu for others.
#pragma once

#include "cuda/path.cuh"

namespace jaxrec {

// What a lane holds of one of its rays.
template <int kChannels, typename Motion>
struct LaneState {
  LaneRay at;
  UpstreamFor<kChannels, Motion> up;
  // For ordered kinds: what is behind a hit is what all hits give less those up to it.
  float reached = 1, lost = 0;
  float inverse_total = 1;
};

// Adds the cotangents of one meeting to those of the sphere, v, and of the ray.
template <int kChannels, typename Policy, typename Path, int kTerms>
__device__ __forceinline__ void PullHit(const BlendCall& call, const Policy& policy,
                                        const Path& path, const typename Path::Sphere& sphere,
                                        const typename Path::Meeting& met, int entry,
                                        LaneState<kChannels, typename Path::Motion>* lane,
                                        float (&v)[kTerms]) {
  constexpr int kUnroll = kUnrollOf<kChannels>;
  auto& up = lane->up;
  const int rank = path.Rank(entry), id = path.Id(entry);
  const auto hit = path.Weigh(met, sphere);
  float value = up.d_alpha + up.d_depth * path.Depth(met, sphere, hit);
  if (kChannels <= kStagedChannels) {
    const float4 staged = path.Staged(entry);
    const float feature[3] = {staged.x, staged.y, staged.z};
#pragma unroll
    for (int c = 0; c < kChannels; ++c) value += up.d_features[c] * feature[c];
  } else {
    const float* feature = path.features + std::int64_t{id} * call.channels;
#pragma unroll(kUnroll)
    for (int c = 0; c < kChannels; ++c)
      if (c < call.channels) value += up.d_features[c] * feature[c];
  }
  bool near = true;
  if (Policy::kOrdered && call.gradient_hits > 0) {
    near = false;
    for (int k = 0; k < call.gradient_hits; ++k) near = near || up.ids[k] == id;
  }
  PixelState<Policy> pixel;
  if constexpr (Policy::kOrdered) {
    typename Policy::template State<float> state = {lane->reached};
    const float weight = policy.Draw(hit, path.Opacity(sphere), true, &state);
    // Compensated: what is left after all hits but the last is a small difference.
    const float y = weight * value + lane->lost, sum = up.behind - y;
    lane->lost = (sum - up.behind) + y;
    up.behind = sum;
    // Behind the last hit lies the background alone; before it T has not fallen below 1e-4.
    pixel = {lane->reached, rank == up.last ? up.level : up.behind / state.transmittance};
    lane->reached = state.transmittance;
  } else {
    pixel = {up.first, up.second, lane->inverse_total, up.level};
  }
  if (near) {
    float share;
    const auto d =
        path.Pull(met, sphere, entry, hit, lane->at.ray, pixel, value, up.d_depth, &share);
    Collect(d, share, &up, v);
  }
}

template <int kEach, int kChannels, typename Policy, typename Path, typename Out>
__device__ __forceinline__ void Pull(const BlendCall& call, const Prepared& p, int pair,
                                     const PairData& data, const Place& place, const Policy& policy,
                                     const Path& path, TileBounds* bounds, const Out& out,
                                     LaneState<kChannels, typename Path::Motion> (&lanes)[kEach]) {
  const float of_feature = GridOf(path.bounds.feature);
  int limit = -1;
#pragma unroll
  for (int k = 0; k < kEach; ++k) limit = max(limit, lanes[k].up.last);
  for (int d = 16; d > 0; d /= 2) limit = max(limit, __shfl_xor_sync(~0u, limit, d));
  const auto draw = [&](int entry, auto) {
    const auto sphere = path.Load(entry);
    const int rank = path.Rank(entry);
    typename Path::Meeting met[kEach];
    bool drawn[kEach], any = false;
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
      drawn[k] = path.Meet(lanes[k].at.ray, sphere, &met[k]) & (rank <= lanes[k].up.last);
      any = any | drawn[k];
    }
    if (!__any_sync(~0u, any)) return;
    float v[kTermsOf<kChannels, typename Path::Motion>] = {};
#pragma unroll
    for (int k = 0; k < kEach; ++k)
      if (drawn[k]) PullHit<kChannels>(call, policy, path, sphere, met[k], entry, &lanes[k], v);
    Scatter(out, path.GridsOf(sphere, entry), of_feature, path.Id(entry), v);
  };
  WalkTile<kQueue / kEach>(call, p, pair, data, place, bounds, path, [&](int waiting, bool) {
    return limit >= 0 &&
           DrawByWarp<1>(
               path, bounds->warps[threadIdx.x / 32], waiting, limit, [](int) { return 0; }, draw);
  });
}

// Blocks that a multiprocessor should hold: a few spills cost less than fewer warps.
template <int kEach, int kChannels, typename Motion>
constexpr int kBackwardBlocks = kEach == 2        ? 5
                                : Motion::kMoves  ? (kChannels <= 3 ? 2 : 1)
                                : kChannels <= 3  ? 3
                                : kChannels <= 19 ? 2
                                                  : 1;

template <typename Tile, typename Policy, int kChannels, typename Out, int kEach = 1,
          typename Motion = Still>
__global__ void __launch_bounds__(Tile::kRays / kEach, kBackwardBlocks<kEach, kChannels, Motion>)
    Backward(BlendCall call, Prepared p, Sums sums) {
  __shared__ TileBounds bounds;
  __shared__ std::conditional_t<Motion::kMoves, MovingQueue, PullQueue> queue;
  Follow();
  const int pair = blockIdx.y;
  const Place place = Place::At(p.coarse, blockIdx.x);
  const PairData data = p.Of(call, pair);
  LoadBounds<Tile, kEach>(data, place.index, &bounds);
  LaneState<kChannels, Motion> lanes[kEach];
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    const int warp = WarpOf<Tile, kEach>(k);
    lanes[k].at = RayOf<Tile>(call, pair, place, warp);
    Pixel pixel;
    PixelOf<Tile>(call, place.x, place.y, warp, &pixel);
    if (lanes[k].at.valid) LoadUpstream(call, pair, pixel, Policy::kOrdered, &lanes[k].up);
    lanes[k].inverse_total = 1.0f / lanes[k].up.second;
  }
  [[maybe_unused]] TimeSpan span = {};
  [[maybe_unused]] float time = 0;
  [[maybe_unused]] __shared__ TimeSpan spans[Motion::kMoves ? kTileWarps : 1];
  if constexpr (Motion::kMoves) {
    static_assert(kEach == 1);
    span = SpanOf(call, pair);
    time = LoadTime<Tile>(call, pair, place, span, lanes[0].at.valid, spans);
  }
  __syncthreads();
  const ViewState& view = bounds.view;
  const Policy policy = MakePolicy<Policy>(call, view);
  if (call.spheres > 0) {
    const Out out = Out::Of(call, sums, ProblemOf(call, pair));
    const Bounds limits =
        Bounds::Of(call, sums.peaks[ProblemOf(call, pair)], view.range, view.gamma);
    const float* features = DataOf(call.batch, call.features, ProblemOf(call, pair));
    if constexpr (Motion::kMoves) {
      const MovingPath<Policy> path = {{{&queue}, call, view, policy, limits, features},
                                       ProblemOf(call, pair),
                                       span,
                                       TimesOf(time, spans)};
      Pull<kEach, kChannels>(call, p, pair, data, place, policy, path, &bounds, out, lanes);
    } else if (view.mode == kCentral) {
      const CentralPullPath<Policy> path = {{{&queue}, call, view, policy}, limits, features};
      Pull<kEach, kChannels>(call, p, pair, data, place, policy, path, &bounds, out, lanes);
    } else {
      const GeneralPath<Policy> path = {{&queue}, call, view, policy, limits, features};
      Pull<kEach, kChannels>(call, p, pair, data, place, policy, path, &bounds, out, lanes);
    }
  }
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    Pixel pixel;
    if (PixelOf<Tile>(call, place.x, place.y, WarpOf<Tile, kEach>(k), &pixel)) {
      StoreRays(call, pair, pixel, lanes[k].at.ray, lanes[k].up);
      if constexpr (Motion::kMoves) StoreTime(call, pair, pixel, lanes[k].up);
    }
  }
}

struct BackwardKernel {
  void (*run)(BlendCall, Prepared, Sums);
  int threads;
};

template <typename Tile, typename Policy, int kChannels, int kEach, typename Motion = Still>
BackwardKernel BackwardKernelOf() {
  return {Backward<Tile, Policy, kChannels, SumsFor<Motion>, kEach, Motion>, kQueue / kEach};
}

// That of spheres that move.
BackwardKernel MovingBackwardKernel(const BlendCall& call);

}  // namespace jaxrec
