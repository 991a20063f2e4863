#include "cuda/policy.cuh"

namespace jaxrec {
namespace {

constexpr int kSphereTerms = 5;  // x, y, z, radius, opacity; then the features

// Adds up 8 values over the warp: lane 4 k (k < 8) ends with the sum of value k. Half of the
// values change lanes at each step, 9 shuffles for what would be 40 one value at a time.
__device__ __forceinline__ float SumEight(float (&v)[8]) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int width = 4, d = 16; width > 0; width /= 2, d /= 2) {
    const bool upper = lane & d;
#pragma unroll
    for (int k = 0; k < width; ++k) {
      const float keep = upper ? v[k + width] : v[k], send = upper ? v[k] : v[k + width];
      v[k] = keep + __shfl_xor_sync(~0u, send, d);
    }
  }
  float sum = v[0];
  sum += __shfl_xor_sync(~0u, sum, 2);
  sum += __shfl_xor_sync(~0u, sum, 1);
  return sum;
}

struct SphereGradients {
  float* centers;
  float* radii;
  float* opacities;
  float* features;
};

__device__ SphereGradients GradientsOf(const BlendCall& call, int problem) {
  const std::int64_t at = std::int64_t{problem} * call.spheres;
  return {call.d_centers ? call.d_centers + 3 * at : nullptr,
          call.d_radii ? call.d_radii + at : nullptr,
          call.d_opacities ? call.d_opacities + at : nullptr,
          call.d_sphere_features ? call.d_sphere_features + call.channels * at : nullptr};
}

// Where value `term` of sphere `id` is summed; null if nobody wants it.
__device__ __forceinline__ float* Target(const BlendCall& call, const SphereGradients& out,
                                         std::int64_t id, int term) {
  if (term < 3) return out.centers ? out.centers + 3 * id + term : nullptr;
  if (term == 3) return out.radii ? out.radii + id : nullptr;
  if (term == 4) return out.opacities ? out.opacities + id : nullptr;
  const int c = term - kSphereTerms;
  return out.features && c < call.channels ? out.features + call.channels * id + c : nullptr;
}

template <typename Policy, int kChannels>
__global__ void __launch_bounds__(SmallTile::kRays, kBlocksOf<SmallTile, kChannels, 8>)
    Backward(BlendCall call, Prepared p) {
  __shared__ TileShared<SmallTile> shared;
  constexpr int kUnroll = kUnrollOf<kChannels>;
  const int tile = blockIdx.x, pair = blockIdx.y, problem = pair / call.views;
  const TileView t = OpenTile<SmallTile>(call, p, tile, pair);
  const ViewState& view = *t.view;
  const Policy policy = PolicyOf<Policy>::Make(call, view);
  const float* features = DataOf(call.batch, call.features, problem);
  const SphereGradients out = GradientsOf(call, problem);
  const std::int64_t at = std::int64_t{pair % call.views} * call.height * call.width + t.pixel;
  constexpr int kTerms = (kSphereTerms + kChannels + 7) / 8 * 8;

  float d_features[kChannels] = {};
  float d_depth = 0, d_alpha = 0, level = 0, first = 0, second = 1;
  int last = -1;
  const std::int32_t* ids = nullptr;
  if (t.valid) {
#pragma unroll(kUnroll)
    for (int c = 0; c < kChannels; ++c)
      if (c < call.channels) d_features[c] = FieldAt(call, call.d_features, pair, t, c);
    d_depth = FieldAt(call, call.d_depth, pair, t, 0);
    d_alpha = FieldAt(call, call.d_alpha, pair, t, 0);
    level = FieldAt(call, call.level, pair, t, call.kind);
    const float* normalizer = DataOf(call.batch, call.saved_normalizer, problem) + 2 * at;
    first = normalizer[0], second = normalizer[1];
    last = DataOf(call.batch, call.saved_last, problem)[at];
    ids = DataOf(call.batch, call.saved_ids, problem) + at * call.tracked;
  }
  int limit = last;
  for (int d = 16; d > 0; d /= 2) limit = max(limit, __shfl_xor_sync(~0u, limit, d));
  // For ordered kinds: what is behind a hit is what all hits give less those up to it.
  float reached = 1, behind = 0, lost = 0;
  if (Policy::kOrdered && t.valid) behind = FieldAt(call, call.level, pair, t, 0);
  float turn[3] = {}, push[3] = {};

  WalkTile(call, p, tile, pair, t, limit, &shared, [&](int entry, int) {
    const float4 g = shared.geometry[entry], rest = shared.rest[entry];
    const Sphere sphere = {g.x, g.y, g.z, g.w};
    const int rank = shared.rank[entry], id = __float_as_int(rest.w);
    float v[kTerms] = {};
    Chord<float> chord;
    Split(t.ray, sphere, &chord);
    bool chosen = t.valid && rank <= last && chord.p2 <= rest.z * rest.z;
    if (chosen) {
      Meet(sphere, view.beam, view.range, &chord);
      chosen = policy.Counts(chord);
    }
    if (chosen) {
      const auto hit = policy.Weigh(chord, sphere, rest.x);
      const float* feature = features + std::int64_t{id} * call.channels;
      float value = d_alpha + d_depth * policy.Depth(chord, hit);
#pragma unroll(kUnroll)
      for (int c = 0; c < kChannels; ++c)
        if (c < call.channels) value += d_features[c] * feature[c];
      bool near = call.gradient_hits == 0;
      for (int k = 0; k < call.gradient_hits; ++k) near = near || ids[k] == id;
      float shared_weight;
      ChordCotangent<float> d;
      if constexpr (Policy::kOrdered) {
        typename Policy::template State<float> state = {reached};
        const float weight = policy.Draw(hit, rest.x, true, &state);
        // Compensated: what is left after all hits but the last is a small difference.
        const float y = weight * value + lost, sum = behind - y;
        lost = (sum - behind) + y;
        behind = sum;
        // Behind the last hit lies the background alone; before it T has not fallen below 1e-4.
        float rear = rank == last ? level : behind / state.transmittance;
        d = policy.Pull(chord, hit, sphere, view.beam, rest.x, true, near, reached, &rear, value,
                        d_depth, &shared_weight);
        reached = state.transmittance;
      } else {
        d = policy.Pull(chord, hit, sphere, view.beam, rest.x, near, first, second, level, value,
                        d_depth, &shared_weight);
      }
      if (near) {
        const float dx = d.along * t.ray.nx + d.beside * chord.bx;
        const float dy = d.along * t.ray.ny + d.beside * chord.by;
        const float dz = d.along * t.ray.nz + d.beside * chord.bz;
        v[0] = dx, v[1] = dy, v[2] = dz, v[3] = d.radius, v[4] = d.opacity;
#pragma unroll(kUnroll)
        for (int c = 0; c < kChannels; ++c) v[kSphereTerms + c] = shared_weight * d_features[c];
        push[0] -= dx, push[1] -= dy, push[2] -= dz;
        const float across = d.along - chord.along * d.beside;
        turn[0] += across * chord.bx, turn[1] += across * chord.by, turn[2] += across * chord.bz;
      }
      chosen = near;
    }
    if (__ballot_sync(~0u, chosen) == 0) return true;
    const int lane = threadIdx.x % 32;
#pragma unroll(kTerms <= 24 ? kTerms / 8 : 1)
    for (int begin = 0; begin < kTerms; begin += 8) {
      float eight[8];
#pragma unroll
      for (int k = 0; k < 8; ++k) eight[k] = v[begin + k];
      const float sum = SumEight(eight);
      if (lane % 4 == 0) {
        // Bits 4, 3, 2 of the lane say which halves the value came from.
        const int term = begin + (lane >> 2 & 1) + (lane >> 3 & 1) * 2 + (lane >> 4 & 1) * 4;
        float* target = Target(call, out, id, term);
        if (target != nullptr && sum != 0.0f) atomicAdd(target, sum);
      }
    }
    return true;
  });

  if (!t.inside) return;
  const std::int64_t own = 3 * (std::int64_t{pair} * call.height * call.width + t.pixel);
  for (int k = 0; k < 3; ++k) {
    if (call.d_origins) call.d_origins[own + k] = push[k];
    if (call.d_directions) call.d_directions[own + k] = turn[k];
  }
}

using Kernel = void (*)(BlendCall, Prepared);

template <typename Policy>
Kernel ByChannels(int channels) {
  if (channels <= 3) return Backward<Policy, 3>;
  if (channels <= 11) return Backward<Policy, 11>;
  if (channels <= 19) return Backward<Policy, 19>;
  return Backward<Policy, 64>;
}

}  // namespace

const char* LaunchBlendVjp(const BlendCall& call, cudaStream_t stream) {
  const std::int64_t rows = std::int64_t{call.problems} * call.spheres;
  const struct {
    float* data;
    std::int64_t width;
  } sums[] = {{call.d_centers, 3},
              {call.d_radii, 1},
              {call.d_opacities, 1},
              {call.d_sphere_features, call.channels}};
  for (const auto& sum : sums)
    if (sum.data != nullptr) cudaMemsetAsync(sum.data, 0, sizeof(float) * rows * sum.width, stream);
  if (call.pairs == 0 || call.height == 0 || call.width == 0) return nullptr;
  Prepared p;
  const Coarse coarse = Coarse::For<SmallTile>(call.height, call.width);
  if (const char* error = Prepare(call, coarse, stream, &p)) return error;
  const Kernel kernel =
      call.kind == 0 ? ByChannels<Softmax>(call.channels) : ByChannels<Alpha>(call.channels);
  kernel<<<dim3(coarse.tiles(), call.pairs), SmallTile::kRays, 0, stream>>>(call, p);
  const cudaError_t status = cudaGetLastError();
  return status == cudaSuccess ? nullptr : cudaGetErrorString(status);
}

}  // namespace jaxrec
