#include "cuda/path.cuh"

namespace jaxrec {
namespace {

template <int kChannels, typename Policy, typename Path>
__device__ __forceinline__ void Pull(const BlendCall& call, const Prepared& p, int tile, int pair,
                                     const TileView& t, const Policy& policy, const Path& path,
                                     TileBounds* bounds, const SphereSums& out,
                                     Upstream<kChannels>* up) {
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

template <typename Tile, typename Policy, int kChannels>
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
    const SphereSums out = SphereSums::Of(call, sums, pair / call.views);
    const Bounds limits = Bounds::Of(call, sums.peaks[pair / call.views], view.range, view.gamma);
    if (view.mode == kCentral) {
      const CentralPullPath<Policy> path = {{&queue}, call, view, policy, limits};
      Pull(call, p, tile, pair, t, policy, path, &bounds, out, &up);
    } else {
      const GeneralPath<Policy> path = {{&queue}, call, view, policy, limits};
      Pull(call, p, tile, pair, t, policy, path, &bounds, out, &up);
    }
  }
  if (PixelOf<Tile>(call, p.coarse, Again(tile), &pixel)) StoreRays(call, pair, pixel, t.ray, up);
}

using Kernel = void (*)(BlendCall, Prepared, Sums);

template <typename Policy>
Kernel ByChannels(const BlendCall& call) {
  const bool rows = HasRows(call.height, call.width, call.channels, call.tracked);
  if (call.channels <= 3)
    return rows ? Backward<RowTile, Policy, 3> : Backward<SmallTile, Policy, 3>;
  if (call.channels <= 11)
    return rows ? Backward<RowTile, Policy, 11> : Backward<SmallTile, Policy, 11>;
  if (call.channels <= 19) return Backward<SmallTile, Policy, 19>;
  return Backward<SmallTile, Policy, 64>;
}

}  // namespace

const char* LaunchBlendVjp(const BlendCall& call, cudaStream_t stream) {
  if (SumsBytes(call.spheres, call.channels) * call.problems > call.scratch_bytes)
    return "blend: scratch of the sums is too small";
  const Sums sums = StartSums(call, call.scratch, stream);
  if (call.pairs > 0 && call.height > 0 && call.width > 0) {
    if (WalksBackward(call.kind, call.gradient_hits)) {
      Prepared p;
      if (const char* error = Restore(call, &p)) return error;
      const Kernel kernel = call.kind == 0 ? ByChannels<Softmax>(call) : ByChannels<Alpha>(call);
      kernel<<<dim3(p.coarse.tiles(), call.pairs), kQueue, 0, stream>>>(call, p, sums);
    } else if (const char* error = LaunchNearestVjp(call, sums, stream)) {
      return error;
    }
  }
  SettleSums(call, sums, stream);
  const cudaError_t status = cudaGetLastError();
  return status == cudaSuccess ? nullptr : cudaGetErrorString(status);
}

}  // namespace jaxrec
