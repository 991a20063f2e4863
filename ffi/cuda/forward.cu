#include "cuda/path.cuh"

namespace jaxrec {
namespace {

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
    if (kTracked > 0 && depth > depths[kTracked > 0 ? kTracked - 1 : 0]) return;
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

// What a ray has gathered.
template <typename Policy, int kChannels, int kTracked>
struct Gathered {
  float color[kChannels] = {};
  float depth = 0, share = 0;
  int count = 0, last = -1;
  typename Policy::template State<float> state;
  Nearest<kTracked> nearest;
};

// Rescales what a ray has gathered, so that a hit can be added.
template <int kChannels, int kTracked, typename Policy, typename Hit>
__device__ __forceinline__ void Raise(const Policy& policy, const Hit& hit, float opacity,
                                      Gathered<Policy, kChannels, kTracked>* ray) {
  float scale;
  policy.Raise(hit, opacity, true, &ray->state, &scale);
#pragma unroll(kUnrollOf<kChannels>)
  for (int c = 0; c < kChannels; ++c) ray->color[c] *= scale;
  ray->depth *= scale, ray->share *= scale;
}

// Adds one hit to what a ray has gathered.
template <int kChannels, int kTracked, typename Policy, typename Hit, typename Feature>
__device__ __forceinline__ void Add(const Policy& policy, const Hit& hit, float opacity,
                                    float depth, int rank, int id, Feature feature,
                                    Gathered<Policy, kChannels, kTracked>* ray) {
  constexpr int kUnroll = kUnrollOf<kChannels>;
  const float weight = policy.Draw(hit, opacity, true, &ray->state);
#pragma unroll(kUnroll)
  for (int c = 0; c < kChannels; ++c) ray->color[c] += weight * feature(c);
  ray->depth += weight * depth;
  ray->share += weight;
  ++ray->count;
  ray->last = rank;
  if (kTracked > 0) ray->nearest.Insert(hit.zeta, id);
  policy.UpdateStop(&ray->state);
}

template <int kChannels, int kTracked, typename Policy, typename Path>
__device__ __forceinline__ void GatherByWarp(const BlendCall& call, const Prepared& p, int tile,
                                             int pair, const TileView& t, const Policy& policy,
                                             const Path& path, TileBounds* bounds,
                                             Gathered<Policy, kChannels, kTracked>* ray) {
  const float* features = DataOf(call.batch, call.features, pair / call.views);
  bool raises = true;  // whether sums of a ray may have to be rescaled for one of the next 32
  const auto start = [&](int first) {
    const float bound = path.Load(first).bound;
    raises =
        !Policy::kOrdered && __any_sync(~0u, fmaxf(bound, 0.0f) > policy.Ceiling(ray->state)) != 0;
    return __any_sync(~0u, policy.Open(ray->state, bound)) != 0;
  };
  const auto draw = [&](int entry) {
    const auto sphere = path.Load(entry);
    const float4 staged = path.Staged(entry);
    typename Path::Meeting met;
    if (!path.Meet(t.ray, sphere, &met) || !policy.Open(ray->state, sphere.bound)) return;
    const auto hit = path.Weigh(met, sphere);
    const float opacity = path.Opacity(sphere), depth = path.Depth(met, sphere, hit);
    const int id = path.Id(entry), rank = __float_as_int(staged.w);
    const float* feature = features + std::int64_t{id} * call.channels;
    const auto channel = [&](int c) {
      if (kChannels <= kStagedChannels) return c == 0 ? staged.x : c == 1 ? staged.y : staged.z;
      return c < call.channels ? feature[c] : 0.0f;
    };
    if (raises && policy.MayRaise(hit, ray->state)) Raise(policy, hit, opacity, ray);
    Add(policy, hit, opacity, depth, rank, id, channel, ray);
  };
  WalkTile(call, p, tile, pair, t, bounds, path, [&](int waiting, bool) {
    return DrawByWarp(path, bounds->warps[threadIdx.x / 32], waiting, 0x7fffffff, start, draw);
  });
}

template <int kChannels, int kTracked, typename Policy>
__device__ __forceinline__ void GatherByLane(const BlendCall& call, const Prepared& p, int tile,
                                             int pair, const TileView& t, const Policy& policy,
                                             LaneQueues* queues, TileBounds* bounds,
                                             Gathered<Policy, kChannels, kTracked>* ray) {
  using Central = typename Policy::Central;
  constexpr int kHit = 3, kStart = sizeof(Central) / sizeof(float);
  static_assert(kStart + kStagedChannels + 2 == kFields);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const LanesPath<Policy> path = {call, bounds->view, policy, queues};
  LaneQueue& queue = queues->warps[warp];
  int held = 0;
  bool open = true;

  const auto drain = [&] {
    unsigned hits = 0;
#pragma unroll 4
    for (int k = 0; k < held; ++k) {
      const float4 g = queue.geometry[k];
      if (SquaredChord(t.ray.nx, t.ray.ny, t.ray.nz, g.x, g.y, g.z) <= g.w) hits |= 1u << k;
    }
    if (!open) hits = 0;
    for (; hits != 0; hits &= hits - 1) {
      const int k = __ffs(hits) - 1;
      float values[kStart];
#pragma unroll
      for (int i = 0; i < kStart; ++i) values[i] = queue.field[i][k];
      Central sphere;
      memcpy(&sphere, values, sizeof(sphere));
      open = policy.Open(ray->state, sphere.bound);
      if (!open) break;
      const float s = SquaredChord(t.ray.nx, t.ray.ny, t.ray.nz, sphere.x, sphere.y, sphere.z);
      const auto hit = policy.Weigh(s, sphere);
      if (policy.MayRaise(hit, ray->state)) Raise(policy, hit, sphere.opacity, ray);
      Add(
          policy, hit, sphere.opacity, policy.Depth(s, sphere, hit),
          __float_as_int(queue.field[kStart + 3][k]), __float_as_int(queue.field[kStart + 4][k]),
          [&](int c) { return queue.field[kStart + c][k]; }, ray);
    }
    __syncwarp();
    // Rays that hit nothing of these may still have stopped at the last.
    if (held > 0) open = open && policy.Open(ray->state, queue.field[kStart - 1][held - 1]);
    held = 0;
    return __any_sync(~0u, open) != 0;
  };

  WalkTile(call, p, tile, pair, t, bounds, path, [&](int waiting, bool last) {
    for (int begin = 0; begin < waiting; begin += 32) {
      const int entry = begin + lane;
      SphereRecord s = {};
      if (entry < waiting) s = path.Record(entry);
      const bool mine = entry < waiting && path.Passes(bounds->warps[warp], s);
      const unsigned bits = __ballot_sync(~0u, mine);
      if (held + __popc(bits) > 32 && !drain()) return false;
      if (mine) {
        const int k = held + __popc(bits & ((1u << lane) - 1));
        Central sphere = policy.Aim({s.x, s.y, s.z, s.distance, s.r, s.opacity}, bounds->view.beam);
        sphere.bound = queues->bound[entry];
        float values[kStart];
        memcpy(values, &sphere, sizeof(sphere));
        queue.geometry[k] = {values[0], values[1], values[2], values[kHit]};
#pragma unroll
        for (int i = 0; i < kStart; ++i)
          if (i != kHit) queue.field[i][k] = values[i];
        const float4 color = queues->color[entry];
        queue.field[kStart][k] = color.x, queue.field[kStart + 1][k] = color.y;
        queue.field[kStart + 2][k] = color.z, queue.field[kStart + 3][k] = color.w;
        queue.field[kStart + 4][k] = __int_as_float(s.id);
      }
      held += __popc(bits);
      __syncwarp();
    }
    return last ? drain() : true;
  });
}

struct ForwardShared {
  TileBounds bounds;
  union {
    WarpQueue queue;
    LaneQueues queues;
  };
};

template <typename Tile, typename Policy, int kChannels, int kTracked>
__global__ void __launch_bounds__(Tile::kRays, kBlocksOf<Tile, kChannels, kTracked>)
    Forward(BlendCall call, Prepared p) {
  extern __shared__ float4 memory[];
  auto& shared = *reinterpret_cast<ForwardShared*>(memory);
  constexpr int kUnroll = kUnrollOf<kChannels>;
  const int tile = blockIdx.x, pair = blockIdx.y;
  const TileView t = OpenTile<Tile>(call, p, tile, pair);
  LoadBounds(t, tile, &shared.bounds);
  __syncthreads();
  const ViewState& view = shared.bounds.view;
  const Policy policy = MakePolicy<Policy>(call, view);
  Gathered<Policy, kChannels, kTracked> ray;
  ray.state = policy.template Begin<float>();
  ray.nearest.Clear();
  if (call.spheres > 0) {
    if (!t.valid) policy.Close(&ray.state);
    const bool small = kChannels <= kStagedChannels && 2 * view.large < view.visible;
    if (view.mode != kCentral) {
      const GeneralPath<Policy> path = {{&shared.queue}, call, view, policy, {}};
      GatherByWarp(call, p, tile, pair, t, policy, path, &shared.bounds, &ray);
    } else if (!small) {
      const CentralPath<Policy> path = {{&shared.queue}, call, view, policy};
      GatherByWarp(call, p, tile, pair, t, policy, path, &shared.bounds, &ray);
    } else if constexpr (kChannels <= kStagedChannels) {
      GatherByLane(call, p, tile, pair, t, policy, &shared.queues, &shared.bounds, &ray);
    }
    if (!t.valid) ray.state = policy.template Begin<float>();
  }

  Pixel pixel;
  if (!PixelOf<Tile>(call, p.coarse, Again(tile), &pixel)) return;
  float scale, rest, first, second;
  policy.End(ray.state, &scale, &rest);
  policy.Save(ray.state, &first, &second);
  const std::int64_t at = std::int64_t{pair} * call.height * call.width + pixel.index;
#pragma unroll(kUnroll)
  for (int c = 0; c < kChannels; ++c)
    if (c < call.channels)
      call.out_features[at * call.channels + c] =
          ray.color[c] * scale + rest * FieldAt(call, call.background, pair, pixel, c);
  call.out_depth[at] = ray.depth * scale;
  call.out_alpha[at] = ray.share * scale;
  call.counts[at] = ray.count;
  call.last[at] = ray.last;
  call.normalizer[2 * at] = first, call.normalizer[2 * at + 1] = second;
#pragma unroll(Nearest<kTracked>::kUnroll)
  for (int k = 0; k < kTracked; ++k)
    if (k < call.tracked) call.ids[at * call.tracked + k] = ray.nearest.ids[k];
}

using Kernel = void (*)(BlendCall, Prepared);

template <typename Policy, int kChannels>
Kernel ByTracked(const BlendCall& call) {
  if constexpr (kChannels <= 8)
    if (HasRows(call.height, call.width, call.channels, call.tracked))
      return Forward<RowTile, Policy, kChannels, 0>;
  if (call.tracked == 0) return Forward<SmallTile, Policy, kChannels, 0>;
  if (call.tracked <= 8) return Forward<SmallTile, Policy, kChannels, 8>;
  return Forward<SmallTile, Policy, kChannels, 128>;
}

template <typename Policy>
Kernel ByChannels(const BlendCall& call) {
  if (call.channels <= 3) return ByTracked<Policy, 3>(call);
  if (call.channels <= 8) return ByTracked<Policy, 8>(call);
  if (call.channels <= 16) return ByTracked<Policy, 16>(call);
  return ByTracked<Policy, 64>(call);
}

}  // namespace

const char* LaunchBlend(const BlendCall& call, cudaStream_t stream) {
  if (call.pairs == 0 || call.height == 0 || call.width == 0) return nullptr;
  if (call.tracked > 128) return "blend: nearest and gradient_hits go up to 128 on a GPU";
  const Kernel kernel = call.kind == 0 ? ByChannels<Softmax>(call) : ByChannels<Alpha>(call);
  Prepared p;
  if (const char* error = Prepare(call, stream, &p)) return error;
  constexpr int kShared = sizeof(ForwardShared);
  cudaError_t status =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
  if (status == cudaSuccess) {
    kernel<<<dim3(p.coarse.tiles(), call.pairs), kQueue, kShared, stream>>>(call, p);
    status = cudaGetLastError();
  }
  return status == cudaSuccess ? nullptr : cudaGetErrorString(status);
}

}  // namespace jaxrec
