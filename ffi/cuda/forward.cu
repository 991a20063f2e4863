#include "cuda/policy.cuh"

namespace jaxrec {
namespace {

enum Stop { kStopNever = 0, kStopPerSphere = 1, kStopTotal = 2 };

// The K nearest hits of a ray by front depth, ties by id.
template <int kTracked>
struct Nearest {
  static constexpr int kUnroll = kTracked > 0 && kTracked <= 8 ? kTracked : 1;
  float depths[kTracked > 0 ? kTracked : 1];
  int ids[kTracked > 0 ? kTracked : 1];

  __device__ void Clear() {
#pragma unroll(kUnroll)
    for (int k = 0; k < kTracked; ++k) depths[k] = INFINITY, ids[k] = -1;
  }
  __device__ void Insert(float depth, int id) {
    // A few stay in registers; many are a loop over local memory.
#pragma unroll(kUnroll)
    for (int k = 0; k < kTracked; ++k) {
      const bool first = depth < depths[k] || (depth == depths[k] && id < ids[k]);
      const float other_depth = depths[k];
      const int other_id = ids[k];
      depths[k] = first ? depth : other_depth, ids[k] = first ? id : other_id;
      depth = first ? other_depth : depth, id = first ? other_id : id;
    }
  }
};

template <typename Tile, typename Policy, int kChannels, int kTracked>
__global__ void __launch_bounds__(Tile::kRays, kBlocksOf<Tile, kChannels, kTracked>)
    Forward(BlendCall call, Prepared p) {
  __shared__ TileShared<Tile> shared;
  constexpr int kUnroll = kUnrollOf<kChannels>;
  const int tile = blockIdx.x, pair = blockIdx.y, problem = pair / call.views;
  const TileView t = OpenTile<Tile>(call, p, tile, pair);
  const ViewState& view = *t.view;
  const Policy policy = PolicyOf<Policy>::Make(call, view);
  const float slack = view.shift + __uint_as_float(view.drop_bits);
  const int stop = Policy::kOrdered ? kStopPerSphere : call.stop;
  const float* features = DataOf(call.batch, call.features, problem);
  float color[kChannels] = {};
  float depth = 0, share = 0;
  int count = 0, last = -1;
  auto state = policy.template Begin<float>();
  Nearest<kTracked> nearest;
  nearest.Clear();

  WalkTile(call, p, tile, pair, t, 0x7fffffff, &shared, [&](int entry, int remaining) {
    const float4 g = shared.geometry[entry], rest = shared.rest[entry];
    const Sphere sphere = {g.x, g.y, g.z, g.w};
    bool open = t.valid;
    if (stop != kStopNever) {
      float omitted = policy.LogBound(rest.y - slack);
      if (stop == kStopTotal) omitted = fmaxf(omitted, 0.0f) + logf(static_cast<float>(remaining));
      open = open && policy.Open(state, omitted);
      if (__ballot_sync(~0u, open) == 0) return false;
    }
    Chord<float> chord;
    Split(t.ray, sphere, &chord);
    if (!open || chord.p2 > rest.z * rest.z) return true;
    Meet(sphere, view.beam, view.range, &chord);
    if (!policy.Counts(chord)) return true;
    const auto hit = policy.Weigh(chord, sphere, rest.x);
    if (policy.MayRaise(hit, state)) {
      float scale;
      policy.Raise(hit, rest.x, true, &state, &scale);
#pragma unroll(kUnroll)
      for (int c = 0; c < kChannels; ++c) color[c] *= scale;
      depth *= scale, share *= scale;
    }
    const float weight = policy.Draw(hit, rest.x, true, &state);
    const int id = __float_as_int(rest.w);
    const float* feature = features + std::int64_t{id} * call.channels;
#pragma unroll(kUnroll)
    for (int c = 0; c < kChannels; ++c)
      if (c < call.channels) color[c] += weight * feature[c];
    depth += weight * policy.Depth(chord, hit);
    share += weight;
    ++count;
    last = shared.rank[entry];
    if (kTracked > 0) nearest.Insert(hit.zeta, id);
    if (stop != kStopNever) policy.UpdateStop(&state);
    return true;
  });

  if (!t.inside) return;
  float scale, rest, first, second;
  policy.End(state, &scale, &rest);
  policy.Save(state, &first, &second);
  const std::int64_t at = std::int64_t{pair} * call.height * call.width + t.pixel;
#pragma unroll(kUnroll)
  for (int c = 0; c < kChannels; ++c)
    if (c < call.channels)
      call.out_features[at * call.channels + c] =
          color[c] * scale + rest * FieldAt(call, call.background, pair, t, c);
  call.out_depth[at] = depth * scale;
  call.out_alpha[at] = share * scale;
  call.counts[at] = count;
  call.last[at] = last;
  call.normalizer[2 * at] = first, call.normalizer[2 * at + 1] = second;
#pragma unroll(Nearest<kTracked>::kUnroll)
  for (int k = 0; k < kTracked; ++k)
    if (k < call.tracked) call.ids[at * call.tracked + k] = nearest.ids[k];
}

using Kernel = void (*)(BlendCall, Prepared);

template <typename Policy, int kChannels>
Kernel ByTracked(int tracked) {
  if (tracked == 0) return Forward<SmallTile, Policy, kChannels, 0>;
  if (tracked <= 8) return Forward<SmallTile, Policy, kChannels, 8>;
  if (tracked <= 128) return Forward<SmallTile, Policy, kChannels, 128>;
  return nullptr;
}

template <typename Policy>
Kernel ByChannels(int channels, int tracked, bool large) {
  if (large) return Forward<LargeTile, Policy, 3, 0>;
  if (channels <= 3) return ByTracked<Policy, 3>(tracked);
  if (channels <= 8) return ByTracked<Policy, 8>(tracked);
  if (channels <= 16) return ByTracked<Policy, 16>(tracked);
  return ByTracked<Policy, 64>(tracked);
}

Kernel Choose(int kind, int channels, int tracked, bool large) {
  return kind == 0 ? ByChannels<Softmax>(channels, tracked, large)
                   : ByChannels<Alpha>(channels, tracked, large);
}

}  // namespace

const char* LaunchBlend(const BlendCall& call, cudaStream_t stream) {
  if (call.pairs == 0 || call.height == 0 || call.width == 0) return nullptr;
  // Enough large tiles to keep every multiprocessor busy.
  const std::int64_t rays = std::int64_t{call.pairs} * call.height * call.width;
  const bool large = call.channels <= 3 && call.tracked == 0 && rays >= 512 * 1024 &&
                     call.height >= LargeTile::kHeight;
  const Kernel kernel = Choose(call.kind, call.channels, call.tracked, large);
  if (kernel == nullptr) return "blend: nearest and gradient_hits go up to 128 on a GPU";
  const Coarse coarse = large ? Coarse::For<LargeTile>(call.height, call.width)
                              : Coarse::For<SmallTile>(call.height, call.width);
  Prepared p;
  if (const char* error = Prepare(call, coarse, stream, &p)) return error;
  const int threads = large ? LargeTile::kRays : SmallTile::kRays;
  kernel<<<dim3(coarse.tiles(), call.pairs), threads, 0, stream>>>(call, p);
  const cudaError_t status = cudaGetLastError();
  return status == cudaSuccess ? nullptr : cudaGetErrorString(status);
}

}  // namespace jaxrec
