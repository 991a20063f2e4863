// The forward kernels: each ray gathers the spheres that it meets.
#pragma once

#include "cuda/path.cuh"

namespace jaxrec {

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

// Adds one hit to what a ray has gathered; kAtStart: to a ray whose log weights count from zero and
// which stops by its total.
template <bool kAtStart, int kChannels, int kTracked, typename Policy, typename Hit,
          typename Feature>
__device__ __forceinline__ void Add(const Policy& policy, const Hit& hit, float opacity,
                                    float depth, int rank, int id, Feature feature,
                                    Gathered<Policy, kChannels, kTracked>* ray) {
  constexpr int kUnroll = kUnrollOf<kChannels>;
  float weight;
  if constexpr (kAtStart)
    weight = policy.DrawAtStart(hit, opacity, &ray->state);
  else
    weight = policy.Draw(hit, opacity, true, &ray->state);
#pragma unroll(kUnroll)
  for (int c = 0; c < kChannels; ++c) ray->color[c] += weight * feature(c);
  ray->depth += weight * depth;
  ray->share += weight;
  ++ray->count;
  ray->last = rank;
  if (kTracked > 0) ray->nearest.Insert(hit.zeta, id);
  if constexpr (!kAtStart) policy.UpdateStop(&ray->state);
}

// Whether a ray wants a sphere of this bound and largest total.
template <bool kAtStart, typename Policy, typename State>
__device__ __forceinline__ bool Wants(const Policy& policy, const State& state, float bound,
                                      float total) {
  if constexpr (kAtStart)
    return state.total < total;
  else
    return policy.Open(state, bound);
}

// How hits are added: to rays that are all at their start, to any, or to any after a check whether
// their sums have to be rescaled.
enum Way { kAtStart = 0, kAnyhow = 1, kRaising = 2 };

// What is known of the rays of a thread before they meet spheres of this bound and less.
template <int kEach, int kChannels, int kTracked, typename Policy, typename Path>
__device__ __forceinline__ Way ChooseWay(const LaneRay (&t)[kEach], const Path& path, float bound,
                                         Gathered<Policy, kChannels, kTracked> (&rays)[kEach]) {
  if constexpr (Policy::kOrdered) {
    return kAnyhow;
  } else {
    // A log weight is at most its bound, or zero where an opacity below 1 scales a negative one.
    const float most = fmaxf(bound, Path::kFromStart ? -path.policy.start : 0.0f);
    bool raising = false, moved = !Path::kFromStart;
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
      raising = raising | (most > path.policy.Ceiling(rays[k].state));
      moved = moved | !path.policy.IsAtStart(rays[k].state);
    }
    raising = __any_sync(~0u, raising), moved = __any_sync(~0u, moved);
    return raising ? kRaising : moved ? kAnyhow : kAtStart;
  }
}

template <int kEach, int kChannels, int kTracked, typename Policy, typename Path>
__device__ __forceinline__ void GatherByWarp(const BlendCall& call, const Prepared& p, int pair,
                                             const PairData& data, const Place& place,
                                             const LaneRay (&t)[kEach], const Policy& policy,
                                             const Path& path, TileBounds* bounds,
                                             Gathered<Policy, kChannels, kTracked> (&rays)[kEach]) {
  const float* features = DataOf(call.batch, call.features, ProblemOf(call, pair));
  const auto start = [&](int first) {
    const float bound = path.Load(first).bound;
    bool open = false;
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
      if (Path::kFromStart && t[k].valid) policy.UpdateStop(&rays[k].state);
      open = open | policy.Open(rays[k].state, bound);
    }
    return __any_sync(~0u, open) == 0 ? -1 : ChooseWay(t, path, bound, rays);
  };
  const auto draw = [&](int entry, auto way) {
    constexpr bool kStart = decltype(way)::value == kAtStart;
    const auto sphere = path.Load(entry);
    const float4 staged = path.Staged(entry);
    const float total = kStart ? path.queue->total[entry] : 0.0f;
    const int id = path.Id(entry), rank = __float_as_int(staged.w);
    const float* feature = features + std::int64_t{id} * call.channels;
    const auto channel = [&](int c) {
      if (kChannels <= kStagedChannels) return c == 0 ? staged.x : c == 1 ? staged.y : staged.z;
      return c < call.channels ? feature[c] : 0.0f;
    };
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
      typename Path::Meeting met;
      const bool wants = Wants<kStart>(policy, rays[k].state, sphere.bound, total);
      if (!(path.Meet(t[k].ray, sphere, &met) & wants)) continue;
      const auto hit = path.Weigh(met, sphere);
      const float opacity = path.Opacity(sphere), depth = path.Depth(met, sphere, hit);
      if constexpr (way.value == kRaising)
        if (policy.MayRaise(hit, rays[k].state)) Raise(policy, hit, opacity, &rays[k]);
      Add<kStart>(policy, hit, opacity, depth, rank, id, channel, &rays[k]);
    }
  };
  WalkTile<kQueue / kEach>(call, p, pair, data, place, bounds, path, [&](int waiting, bool) {
    constexpr int kWays = Policy::kOrdered   ? 1 << kAnyhow
                          : Path::kFromStart ? 1 << kAtStart | 1 << kAnyhow | 1 << kRaising
                                             : 1 << kAnyhow | 1 << kRaising;
    return DrawByWarp<kWays>(path, bounds->warps[threadIdx.x / 32], waiting, 0x7fffffff, start,
                             draw);
  });
}

// Small spheres, of which a ray hits few that its warp meets: the rays of a warp test 32 spheres
// together, then each draws those that it hits. `picked`: which of those that wait the warp meets.
template <int kChannels, int kTracked, typename Policy>
__device__ __forceinline__ void GatherByLane(const BlendCall& call, const Prepared& p, int pair,
                                             const PairData& data, const Place& place,
                                             const LaneRay (&t)[1],
                                             const CentralDrawPath<Policy>& path,
                                             std::uint8_t* picked, TileBounds* bounds,
                                             Gathered<Policy, kChannels, kTracked> (&rays)[1]) {
  static_assert(kChannels <= kStagedChannels && kQueue <= 256);
  const Policy& policy = path.policy;
  const Ray<float>& of_lane = t[0].ray;
  Gathered<Policy, kChannels, kTracked>* ray = &rays[0];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  int held = 0;
  bool open = true;

  const auto drain = [&] {
    __syncwarp();
    unsigned hits = 0;
    for (int k = 0; k < held; k += 4) {
      const unsigned four = *reinterpret_cast<const unsigned*>(picked + k);
      unsigned found = 0;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float4 g = path.queue->part[0][four >> 8 * i & 255u];  // x, y, z, largest s of a hit
        if (SquaredChord(of_lane.nx, of_lane.ny, of_lane.nz, g.x, g.y, g.z) <= g.w)
          found |= 1u << i;
      }
      hits |= found << k;
    }
    hits &= held < 32 ? (1u << held) - 1 : ~0u;
    if (!open) hits = 0;
    const auto draw_all = [&](auto way) {
      constexpr bool kStart = decltype(way)::value == kAtStart;
      for (; hits != 0; hits &= hits - 1) {
        const int at = picked[__ffs(hits) - 1];
        const auto sphere = path.Load(at);
        const float total = kStart ? path.queue->total[at] : 0.0f;
        open = Wants<kStart>(policy, ray->state, sphere.bound, total);
        if (!open) break;
        const float s =
            SquaredChord(of_lane.nx, of_lane.ny, of_lane.nz, sphere.x, sphere.y, sphere.z);
        const auto hit = policy.Weigh(s, sphere);
        const float4 staged = path.Staged(at);
        if constexpr (!kStart)
          if (policy.MayRaise(hit, ray->state)) Raise(policy, hit, sphere.opacity, ray);
        Add<kStart>(
            policy, hit, sphere.opacity, policy.Depth(s, sphere, hit), __float_as_int(staged.w),
            path.Id(at), [&](int c) { return c == 0   ? staged.x
                                             : c == 1 ? staged.y
                                                      : staged.z; },
            ray);
      }
    };
    if (held > 0) {
      const Way way = ChooseWay(t, path, path.Load(picked[0]).bound, rays);
      if constexpr (CentralDrawPath<Policy>::kFromStart)
        if (way == kAtStart) draw_all(Constant<kAtStart>());
      if (way != kAtStart) draw_all(Constant<kRaising>());
      if (CentralDrawPath<Policy>::kFromStart && t[0].valid) policy.UpdateStop(&ray->state);
      // Rays that hit nothing of these may still have stopped at the last.
      open = open && policy.Open(ray->state, path.Load(picked[held - 1]).bound);
      held = 0;
    }
    __syncwarp();
    return __any_sync(~0u, open) != 0;
  };

  WalkTile<kQueue>(call, p, pair, data, place, bounds, path, [&](int waiting, bool) {
    for (int begin = 0; begin < waiting; begin += 32) {
      const int entry = begin + lane;
      const bool mine = entry < waiting && path.Near(bounds->warps[warp], entry);
      const unsigned bits = __ballot_sync(~0u, mine);
      if (held + __popc(bits) > 32 && !drain()) return false;
      if (mine) picked[held + __popc(bits & ((1u << lane) - 1))] = static_cast<std::uint8_t>(entry);
      held += __popc(bits);
    }
    return drain();
  });
}

struct ForwardShared {
  TileBounds bounds;
  WarpQueue queue;
  unsigned picked[kTileWarps][8];  // 32 bytes for each warp
  int now;
};

struct MovingShared {
  TileBounds bounds;
  MovingQueue queue;
  TimeSpan times[kTileWarps];
  int now;
};
template <typename Motion>
using ForwardSharedFor = std::conditional_t<Motion::kMoves, MovingShared, ForwardShared>;

template <int kChannels, int kTracked, typename Policy>
__device__ __forceinline__ void StoreRay(const BlendCall& call, int pair, const Pixel& pixel,
                                         const Policy& policy,
                                         const Gathered<Policy, kChannels, kTracked>& ray) {
  constexpr int kUnroll = kUnrollOf<kChannels>;
  float scale, rest, first, second;
  policy.End(ray.state, &scale, &rest);
  policy.Save(ray.state, &first, &second);
  const std::int64_t at = std::int64_t{pair} * call.height * call.width + pixel.index;
  const float* background = FieldOf(call, call.background, pair, pixel);
  float* features = call.out_features + at * call.channels;
#pragma unroll(kUnroll)
  for (int c = 0; c < kChannels; ++c)
    if (c < call.channels)
      features[c] = ray.color[c] * scale + rest * background[c * call.background.c];
  call.out_depth[at] = ray.depth * scale;
  call.out_alpha[at] = ray.share * scale;
  call.counts[at] = ray.count;
  call.last[at] = ray.last;
  call.normalizer[2 * at] = first, call.normalizer[2 * at + 1] = second;
#pragma unroll(Nearest<kTracked>::kUnroll)
  for (int k = 0; k < kTracked; ++k)
    if (k < call.tracked) call.ids[at * call.tracked + k] = ray.nearest.ids[k];
}

// Few channels and no ids: central views of large spheres are left to ForwardPairs, and in those
// of small ones each ray picks its own.
template <int kChannels, int kTracked, typename Motion = Still>
constexpr bool kHasPairs = kChannels <= kStagedChannels && kTracked == 0 && !Motion::kMoves;

template <int kChannels, int kTracked, typename Motion = Still>
__device__ __forceinline__ bool IsForPairs(const PairData& data) {
  if (!kHasPairs<kChannels, kTracked, Motion>) return false;
  const int mode = data.view().mode, large = data.view().large, visible = data.view().visible;
  return mode == kCentral & 2 * large >= visible;
}

// Calls blend(place) for the tiles of a view: blocks ask for one after another, so that none waits
// for another's hard ones. place() finds the tile from `now`, shared memory, where it costs no
// registers meanwhile. `kernel`: which of those that share the view's tiles. All threads of the
// block must call this together.
template <typename Blend>
__device__ __forceinline__ void ForTiles(const Prepared& p, int kernel, int& now, Blend blend) {
  if (threadIdx.x == 0) now = blockIdx.x;
  __syncthreads();
  while (now < p.coarse.tiles()) {
    int next = 0;
    if (threadIdx.x == 0) next = gridDim.x + atomicAdd(&p.taken[2 * blockIdx.y + kernel], 1);
    blend([&] { return Place::At(p.coarse, now); });
    __syncthreads();
    if (threadIdx.x == 0) now = next;
    __syncthreads();
  }
}

template <typename Tile, typename Policy, int kChannels, int kTracked, typename Motion = Still>
__global__ void __launch_bounds__(Tile::kRays, kBlocksOf<Tile, kChannels, kTracked>)
    Forward(BlendCall call, Prepared p) {
  __shared__ ForwardSharedFor<Motion> shared;
  Follow();
  if (IsForPairs<kChannels, kTracked, Motion>(p.Of(call, blockIdx.y))) return;
  ForTiles(p, 0, shared.now, [&](auto find) {
    const Place place = find();
    const int pair = blockIdx.y, warp = threadIdx.x / 32;
    const PairData data = p.Of(call, pair);
    const LaneRay t[1] = {RayOf<Tile>(call, pair, place, warp)};
    LoadBounds<Tile, 1>(data, place.index, &shared.bounds);
    [[maybe_unused]] TimeSpan span = {};
    [[maybe_unused]] float time = 0;
    if constexpr (Motion::kMoves) {
      span = SpanOf(call, pair);
      time = LoadTime<Tile>(call, pair, place, span, t[0].valid, shared.times);
    }
    __syncthreads();
    const ViewState& view = shared.bounds.view;
    const Policy policy = MakePolicy<Policy>(call, view);
    Gathered<Policy, kChannels, kTracked> ray[1];
    ray[0].state = policy.template Begin<float>();
    ray[0].nearest.Clear();
    if (call.spheres > 0) {
      if (!t[0].valid) policy.Close(&ray[0].state);
      if constexpr (Motion::kMoves) {
        const MovingPath<Policy> path = {{{&shared.queue}, call, view, policy, {}, nullptr},
                                         ProblemOf(call, pair),
                                         span,
                                         TimesOf(time, shared.times)};
        GatherByWarp(call, p, pair, data, place, t, policy, path, &shared.bounds, ray);
      } else if (view.mode != kCentral) {
        const GeneralPath<Policy> path = {{&shared.queue}, call, view, policy, {}, nullptr};
        GatherByWarp(call, p, pair, data, place, t, policy, path, &shared.bounds, ray);
      } else {
        const CentralDrawPath<Policy> path = {{{&shared.queue}, call, view, policy}};
        path.Begin(&ray[0].state);
        if constexpr (kHasPairs<kChannels, kTracked>) {
          std::uint8_t* picked = reinterpret_cast<std::uint8_t*>(shared.picked[warp]);
          GatherByLane(call, p, pair, data, place, t, path, picked, &shared.bounds, ray);
        } else {
          GatherByWarp(call, p, pair, data, place, t, policy, path, &shared.bounds, ray);
        }
        path.End(&ray[0].state);
      }
      if (!t[0].valid) ray[0].state = policy.template Begin<float>();
    }
    Pixel pixel;
    if (PixelOf<Tile>(call, place.x, place.y, warp, &pixel))
      StoreRay(call, pair, pixel, policy, ray[0]);
  });
}

struct PairsShared {
  TileBounds bounds;
  WarpQueue queue;
  int now;
};

constexpr int kPairsBlocks = 6;

// The same for views of large spheres: a thread takes two rays, which share what a sphere costs.
template <typename Tile, typename Policy, int kChannels>
__global__ void __launch_bounds__(Tile::kRays / 2, kPairsBlocks)
    ForwardPairs(BlendCall call, Prepared p) {
  __shared__ PairsShared shared;
  Follow();
  if (!IsForPairs<kChannels, 0>(p.Of(call, blockIdx.y))) return;
  ForTiles(p, 1, shared.now, [&](auto find) {
    const int pair = blockIdx.y;
    const PairData data = p.Of(call, pair);
    const LaneRay t[2] = {RayOf<Tile>(call, pair, find(), WarpOf<Tile, 2>(0)),
                          RayOf<Tile>(call, pair, find(), WarpOf<Tile, 2>(1))};
    LoadBounds<Tile, 2>(data, find().index, &shared.bounds);
    __syncthreads();
    const ViewState& view = shared.bounds.view;
    const Policy policy = MakePolicy<Policy>(call, view);
    Gathered<Policy, kChannels, 0> rays[2];
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      rays[k].state = policy.template Begin<float>();
      if (!t[k].valid) policy.Close(&rays[k].state);
    }
    const CentralDrawPath<Policy> path = {{{&shared.queue}, call, view, policy}};
    for (auto& ray : rays) path.Begin(&ray.state);
    if (call.spheres > 0)
      GatherByWarp(call, p, pair, data, find(), t, policy, path, &shared.bounds, rays);
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      path.End(&rays[k].state);
      if (!t[k].valid) rays[k].state = policy.template Begin<float>();
      Pixel pixel;
      const Place at = find();
      if (PixelOf<Tile>(call, at.x, at.y, WarpOf<Tile, 2>(k), &pixel))
        StoreRay(call, pair, pixel, policy, rays[k]);
    }
  });
}

struct Kernel {
  void (*run)(BlendCall, Prepared);
  int threads;
  int blocks;  // that a multiprocessor holds, at most
};

struct Kernels {
  Kernel forward, pairs;  // pairs: nothing if forward does all
};

template <typename Tile, typename Policy, int kChannels, int kTracked, typename Motion = Still>
Kernels KernelsOf() {
  const auto forward = Forward<Tile, Policy, kChannels, kTracked, Motion>;
  if constexpr (kHasPairs<kChannels, kTracked, Motion>)
    return {{forward, Tile::kRays, kBlocksOf<Tile, kChannels, kTracked>},
            {ForwardPairs<Tile, Policy, kChannels>, Tile::kRays / 2, kPairsBlocks}};
  return {{forward, Tile::kRays, 2048 / Tile::kRays}, {}};
}

// Those of spheres that move.
Kernels MovingKernels(const BlendCall& call);

}  // namespace jaxrec
