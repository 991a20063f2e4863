// The backward kernel: each warp draws the spheres of its tile again, front to back, and adds up
// their cotangents. How sums of spheres are formed is a type of its own, Out: see sums.cuh, and
// bench/scatter.cu for others.
#pragma once

#include "cuda/path.cuh"

namespace jaxrec {

template <int kChannels, typename Policy, typename Path, typename Out>
__device__ __forceinline__ void Pull(const BlendCall& call, const Prepared& p, int tile, int pair,
                                     const TileView& t, const Policy& policy, const Path& path,
                                     TileBounds* bounds, const Out& out, Upstream<kChannels>* up) {
  constexpr int kUnroll = kUnrollOf<kChannels>;
  const float* features = DataOf(call.batch, call.features, pair / call.views);
  const float of_feature = GridOf(path.bounds.feature);
  int limit = up->last;
  for (int d = 16; d > 0; d /= 2) limit = max(limit, __shfl_xor_sync(~0u, limit, d));
  // For ordered kinds: what is behind a hit is what all hits give less those up to it.
  float reached = 1, lost = 0;
  const float inverse_total = 1.0f / up->second;
  const auto draw = [&](int entry) {
    const auto sphere = path.Load(entry);
    const int rank = path.Rank(entry), id = path.Id(entry);
    typename Path::Meeting met;
    const bool drawn = path.Meet(t.ray, sphere, &met) & (rank <= up->last);
    if (!__any_sync(~0u, drawn)) return;
    float v[kTermsOf<kChannels>] = {};
    if (drawn) {
      const auto hit = path.Weigh(met, sphere);
      float value = up->d_alpha + up->d_depth * path.Depth(met, sphere, hit);
      if (kChannels <= kStagedChannels) {
        const float4 staged = path.Staged(entry);
        const float feature[3] = {staged.x, staged.y, staged.z};
#pragma unroll
        for (int c = 0; c < kChannels; ++c) value += up->d_features[c] * feature[c];
      } else {
        const float* feature = features + std::int64_t{id} * call.channels;
#pragma unroll(kUnroll)
        for (int c = 0; c < kChannels; ++c)
          if (c < call.channels) value += up->d_features[c] * feature[c];
      }
      bool near = true;
      if (Policy::kOrdered && call.gradient_hits > 0) {
        near = false;
        for (int k = 0; k < call.gradient_hits; ++k) near = near || up->ids[k] == id;
      }
      PixelState<Policy> pixel;
      if constexpr (Policy::kOrdered) {
        typename Policy::template State<float> state = {reached};
        const float weight = policy.Draw(hit, path.Opacity(sphere), true, &state);
        // Compensated: what is left after all hits but the last is a small difference.
        const float y = weight * value + lost, sum = up->behind - y;
        lost = (sum - up->behind) + y;
        up->behind = sum;
        // Behind the last hit lies the background alone; before it T has not fallen below 1e-4.
        pixel = {reached, rank == up->last ? up->level : up->behind / state.transmittance};
        reached = state.transmittance;
      } else {
        pixel = {up->first, up->second, inverse_total, up->level};
      }
      if (near) {
        float share;
        const SphereCotangent d =
            path.Pull(met, sphere, entry, hit, t.ray, pixel, value, up->d_depth, &share);
        Collect(d, share, up, v);
      }
    }
    Scatter(out, path.GridsOf(sphere, entry), of_feature, id, v);
  };
  WalkTile(call, p, tile, pair, t, bounds, path, [&](int waiting, bool) {
    return limit >= 0 && DrawByWarp(
                             path, bounds->warps[threadIdx.x / 32], waiting, limit,
                             [](int) { return true; }, draw);
  });
}

template <typename Tile, typename Policy, int kChannels, typename Out>
__global__ void __launch_bounds__(Tile::kRays, kChannels <= 3    ? 3
                                               : kChannels <= 11 ? 2
                                                                 : 1)
    Backward(BlendCall call, Prepared p, Sums sums) {
  __shared__ TileBounds bounds;
  __shared__ WarpQueue queue;
  const int tile = blockIdx.x, pair = blockIdx.y;
  const TileView t = OpenTile<Tile>(call, p, tile, pair);
  LoadBounds(t, tile, &bounds);
  __syncthreads();
  const ViewState& view = bounds.view;
  const Policy policy = MakePolicy<Policy>(call, view);
  Upstream<kChannels> up;
  Pixel pixel;
  PixelOf<Tile>(call, p.coarse, tile, &pixel);
  if (t.valid) LoadUpstream(call, pair, pixel, Policy::kOrdered, &up);
  if (call.spheres > 0) {
    const Out out = Out::Of(call, sums, pair / call.views);
    const Bounds limits = Bounds::Of(call, sums.peaks[pair / call.views], view.range, view.gamma);
    if (view.mode == kCentral) {
      const CentralPullPath<Policy> path = {{{&queue}, call, view, policy}, limits};
      Pull(call, p, tile, pair, t, policy, path, &bounds, out, &up);
    } else {
      const GeneralPath<Policy> path = {{&queue}, call, view, policy, limits};
      Pull(call, p, tile, pair, t, policy, path, &bounds, out, &up);
    }
  }
  if (PixelOf<Tile>(call, p.coarse, Again(tile), &pixel)) StoreRays(call, pair, pixel, t.ray, up);
}

}  // namespace jaxrec
