// Backward blending of one tile: a sphere at a time over the groups of rays that it may touch, so
// that a sphere's cotangents are summed in registers and added up once.
// Part of blocks.cc, which is compiled once for each instruction set.
#pragma once

#include "cpu/forward.h"

namespace jaxrec {
namespace {

enum Need {
  kCenters = 1,
  kRadii = 2,
  kOpacities = 4,
  kFeatures = 8,
  kOrigins = 16,
  kDirections = 32,
  kVelocities = 64,
  kTimes = 128
};

constexpr int kMaxGroups = 32;  // groups at work at once: one bit each

// Lanes that a group of rays brings to, and takes from, the backward pass.
struct PixelLanes {
  FloatLanes first, second, level, d_depth, d_alpha;
  IntLanes last;
  FloatLanes d_origin[3], d_direction[3], d_time;
};

// A drawn hit of a kind whose backward needs order, parked on the forward sweep.
struct Parked {
  FloatLanes transmittance;
  IntLanes drawn;
  std::int32_t entry, group;
};

// The groups at work and what belongs to each.
struct Chunk {
  const RayGroup* groups;
  int count;
  PixelLanes* pixels;
  FloatLanes* d_features;  // [group, channel]
  IntLanes* ids;           // [group, gradient_hits]
};

inline float At(const Pixels& array, const View& view, std::int64_t pixel, int channel) {
  return array
      .data[pixel / view.width * array.y + pixel % view.width * array.x + channel * array.c];
}

inline void LoadPixels(const View& view, const BlockOptions& options, const Chunk& chunk) {
  const int hits = options.gradient_hits, tracked = options.tracked;
  for (int g = 0; g < chunk.count; ++g) {
    PixelLanes p = {};
    p.second = Splat(1.0f);
    p.last = IntLanes{} - 1;
    FloatLanes* d_features = chunk.d_features + std::int64_t{g} * view.channels;
    IntLanes* ids = chunk.ids + std::int64_t{g} * hits;
    for (int c = 0; c < view.channels; ++c) d_features[c] = FloatLanes{};
    for (int k = 0; k < hits; ++k) ids[k] = IntLanes{} - 1;
    for (int lane = 0; lane < kLanes; ++lane) {
      const std::int64_t pixel = chunk.groups[g].pixel[lane];
      if (pixel < 0) continue;
      p.first[lane] = view.normalizer[2 * pixel];
      p.second[lane] = view.normalizer[2 * pixel + 1];
      p.last[lane] = view.last[pixel];
      p.level[lane] = At(view.level, view, pixel, options.kind);
      p.d_depth[lane] = At(view.d_depth, view, pixel, 0);
      p.d_alpha[lane] = At(view.d_alpha, view, pixel, 0);
      for (int c = 0; c < view.channels; ++c)
        d_features[c][lane] = At(view.d_features, view, pixel, c);
      for (int k = 0; k < hits; ++k) ids[k][lane] = view.ids[pixel * tracked + k];
    }
    chunk.pixels[g] = p;
  }
}

inline void StoreRays(const View& view, const Chunk& chunk) {
  for (int g = 0; g < chunk.count; ++g) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const std::int64_t pixel = chunk.groups[g].pixel[lane];
      if (pixel < 0) continue;
      if (view.d_times) view.d_times[pixel] = chunk.pixels[g].d_time[lane];
      for (int k = 0; k < 3; ++k) {
        if (view.d_origins) view.d_origins[3 * pixel + k] = chunk.pixels[g].d_origin[k][lane];
        if (view.d_directions)
          view.d_directions[3 * pixel + k] = chunk.pixels[g].d_direction[k][lane];
      }
    }
  }
}

// Sums of one sphere over the rays of a tile.
template <int kChannels, typename Motion>
struct SphereLanes {
  FloatLanes x = {}, y = {}, z = {}, radius = {}, opacity = {};
  FloatLanes vx = {}, vy = {}, vz = {};  // if it moves, by times from the middle of the view's
  FloatLanes features[kChannels > 0 ? kChannels : 64];

  JAXREC_HD void Clear(int channels) {
    x = y = z = radius = opacity = FloatLanes{};
    if (Motion::kMoves) vx = vy = vz = FloatLanes{};
    for (int c = 0; c < channels; ++c) features[c] = FloatLanes{};
  }
  JAXREC_HD void AddTo(float* sums, int channels, float middle) const {
    const float center[3] = {Sum(x), Sum(y), Sum(z)};
    for (int k = 0; k < 3; ++k) sums[k] += center[k];
    sums[3] += Sum(radius), sums[4] += Sum(opacity);
    for (int c = 0; c < channels; ++c) sums[kSphereSums + c] += Sum(features[c]);
    if constexpr (Motion::kMoves) {
      const float velocity[3] = {Sum(vx), Sum(vy), Sum(vz)};
      for (int k = 0; k < 3; ++k)
        sums[kSphereSums + channels + k] += velocity[k] + middle * center[k];
    }
  }
};

// What is the same for all hits of a tile.
template <typename Policy, int kChannels, typename Motion>
struct Puller {
  using Lanes = SphereLanes<kChannels, Motion>;

  const Policy& policy;
  const View& view;
  const BlockOptions& options;
  const Chunk& chunk;

  int channels() const { return kChannels > 0 ? kChannels : view.channels; }

  JAXREC_HD IntLanes Chosen(int g, std::int32_t id, IntLanes drawn) const {
    const int hits = options.gradient_hits;
    if (hits == 0) return drawn;
    IntLanes found = {};
    for (int k = 0; k < hits; ++k) found = found | (chunk.ids[g * hits + k] == id);
    return drawn & found;
  }

  // Hits of `record` among the group's rays; false if there are none.
  JAXREC_HD bool Hits(const Record& record, std::int32_t rank, int g, Chord<FloatLanes>* chord,
                      IntLanes* drawn) const {
    const RayGroup& group = chunk.groups[g];
    SplitRecord<Motion>(view, group, record, chord);
    const IntLanes open = group.valid & (chunk.pixels[g].last >= rank);
    if (!Any((chord->p2 <= record.reach * record.reach) & open)) return false;
    Meet(record.sphere, view.beam, view.range, chord);
    *drawn = policy.Counts(*chord) & open;
    return Any(*drawn);
  }

  // d_output . (f, depth, 1) of a hit.
  JAXREC_HD FloatLanes Value(const float* feature, int g, FloatLanes depth) const {
    const FloatLanes* d_features = chunk.d_features + std::int64_t{g} * channels();
    FloatLanes value = chunk.pixels[g].d_alpha + chunk.pixels[g].d_depth * depth;
    for (int c = 0; c < channels(); ++c) value = value + d_features[c] * feature[c];
    return value;
  }

  JAXREC_HD void Add(const ChordCotangent<FloatLanes>& d, const Chord<FloatLanes>& chord,
                     FloatLanes share, IntLanes chosen, int g, const Record& record,
                     Lanes* sums) const {
    const Ray<FloatLanes>& ray = chunk.groups[g].ray;
    const FloatLanes zero = {};
    const FloatLanes along = Select(chosen, d.along, zero);
    const FloatLanes beside = Select(chosen, d.beside, zero);
    const FloatLanes dx = along * ray.nx + beside * chord.bx;
    const FloatLanes dy = along * ray.ny + beside * chord.by;
    const FloatLanes dz = along * ray.nz + beside * chord.bz;
    sums->x = sums->x + dx, sums->y = sums->y + dy, sums->z = sums->z + dz;
    sums->radius = sums->radius + Select(chosen, d.radius, zero);
    sums->opacity = sums->opacity + Select(chosen, d.opacity, zero);
    if (options.need & kFeatures) {
      const FloatLanes* d_features = chunk.d_features + std::int64_t{g} * channels();
      for (int c = 0; c < channels(); ++c)
        sums->features[c] = sums->features[c] + share * d_features[c];
    }
    PixelLanes& pixel = chunk.pixels[g];
    if constexpr (Motion::kMoves) {
      const FloatLanes time = chunk.groups[g].time;
      sums->vx = sums->vx + time * dx, sums->vy = sums->vy + time * dy;
      sums->vz = sums->vz + time * dz;
      const Velocity v = VelocityOf(view, record);
      pixel.d_time = pixel.d_time + v.x * dx + v.y * dy + v.z * dz;
    }
    if (options.need & kOrigins) {
      pixel.d_origin[0] = pixel.d_origin[0] - dx;
      pixel.d_origin[1] = pixel.d_origin[1] - dy;
      pixel.d_origin[2] = pixel.d_origin[2] - dz;
    }
    if (options.need & kDirections) {
      const FloatLanes turn = along - chord.along * beside;
      pixel.d_direction[0] = pixel.d_direction[0] + turn * chord.bx;
      pixel.d_direction[1] = pixel.d_direction[1] + turn * chord.by;
      pixel.d_direction[2] = pixel.d_direction[2] + turn * chord.bz;
    }
  }
};

// Kinds whose gradients need no order: each sphere by itself.
template <typename Policy, int kChannels, typename Motion>
void PullInAnyOrder(const Puller<Policy, kChannels, Motion>& pull, const Tile& tile,
                    const std::uint32_t* masks, const std::int32_t* position, float* sums) {
  SphereLanes<kChannels, Motion> total;
  const int channels = pull.channels(), width = SumsOf(pull.view);
  const float middle = pull.view.span.middle;
  for (std::int32_t i = 0; i < tile.count; ++i) {
    const std::int32_t rank = tile.list.rank[i];
    const Record& record = pull.view.records[rank];
    const float* feature = pull.view.features + std::int64_t{record.id} * channels;
    bool any = false;
    for (std::uint32_t bits = masks[i]; bits != 0; bits &= bits - 1) {
      const int g = __builtin_ctz(bits);
      Chord<FloatLanes> chord;
      IntLanes drawn;
      if (!pull.Hits(record, rank, g, &chord, &drawn)) continue;
      const IntLanes chosen = pull.Chosen(g, record.id, drawn);
      if (!Any(chosen)) continue;
      if (!any) total.Clear(channels), any = true;
      const auto hit = pull.policy.Weigh(chord, record.sphere, record.opacity);
      const FloatLanes value = pull.Value(feature, g, pull.policy.Depth(chord, hit));
      const PixelLanes& pixel = pull.chunk.pixels[g];
      FloatLanes share;
      const auto d =
          pull.policy.Pull(chord, hit, record.sphere, pull.view.beam, record.opacity, chosen,
                           pixel.first, pixel.second, pixel.level, value, pixel.d_depth, &share);
      pull.Add(d, chord, share, chosen, g, record, &total);
    }
    if (any) total.AddTo(sums + std::int64_t{position[i]} * width, channels, middle);
  }
}

// Kinds whose gradients need what is behind each hit: a forward sweep parks what reaches each
// hit, then the hits are taken back to front.
template <typename Policy, int kChannels, typename Motion>
void PullBackToFront(const Puller<Policy, kChannels, Motion>& pull, const Tile& tile,
                     const std::uint32_t* masks, const std::int32_t* position, float* sums,
                     Scratch* stack) {
  FloatLanes reached[kMaxGroups];
  for (int g = 0; g < pull.chunk.count; ++g) reached[g] = Splat(1.0f);
  std::size_t parked = 0;
  for (std::int32_t i = 0; i < tile.count; ++i) {
    const std::int32_t rank = tile.list.rank[i];
    const Record& record = pull.view.records[rank];
    for (std::uint32_t bits = masks[i]; bits != 0; bits &= bits - 1) {
      const int g = __builtin_ctz(bits);
      Chord<FloatLanes> chord;
      IntLanes drawn;
      if (!pull.Hits(record, rank, g, &chord, &drawn)) continue;
      auto* top = static_cast<Parked*>(Grow(stack, sizeof(Parked) * (parked + 1))) + parked++;
      *top = {reached[g], drawn, i, g};
      const auto hit = pull.policy.Weigh(chord, record.sphere, record.opacity);
      typename Policy::template State<FloatLanes> state = {reached[g]};
      pull.policy.Draw(hit, record.opacity, drawn, &state);
      reached[g] = state.transmittance;
    }
  }
  SphereLanes<kChannels, Motion> total;
  const int channels = pull.channels(), width = SumsOf(pull.view);
  const float middle = pull.view.span.middle;
  const auto* stacked = static_cast<const Parked*>(stack->data);
  while (parked > 0) {
    const std::int32_t i = stacked[parked - 1].entry;
    const Record& record = pull.view.records[tile.list.rank[i]];
    const float* feature = pull.view.features + std::int64_t{record.id} * channels;
    total.Clear(channels);
    for (; parked > 0 && stacked[parked - 1].entry == i; --parked) {
      const Parked& top = stacked[parked - 1];
      PixelLanes& pixel = pull.chunk.pixels[top.group];
      Chord<FloatLanes> chord;
      SplitRecord<Motion>(pull.view, pull.chunk.groups[top.group], record, &chord);
      Meet(record.sphere, pull.view.beam, pull.view.range, &chord);
      const auto hit = pull.policy.Weigh(chord, record.sphere, record.opacity);
      const FloatLanes value = pull.Value(feature, top.group, pull.policy.Depth(chord, hit));
      const IntLanes chosen = pull.Chosen(top.group, record.id, top.drawn);
      FloatLanes share;
      const auto d =
          pull.policy.Pull(chord, hit, record.sphere, pull.view.beam, record.opacity, top.drawn,
                           chosen, top.transmittance, &pixel.level, value, pixel.d_depth, &share);
      pull.Add(d, chord, share, chosen, top.group, record, &total);
    }
    total.AddTo(sums + std::int64_t{position[i]} * width, channels, middle);
  }
}

// `position` tells where in the block's sums each candidate of the tile is added up.
template <typename Policy, int kChannels, typename Motion>
void BackwardTile(const Policy& policy, const BlockWork& work, const Tile& tile,
                  const std::int32_t* position, float* sums) {
  const View& view = *work.view;
  const BlockOptions& options = *work.options;
  Workspace* space = work.workspace;
  auto* order = static_cast<std::int32_t*>(Grow(&space->group, sizeof(std::int32_t) * tile.count));
  auto* masks =
      static_cast<std::uint32_t*>(Grow(&space->masks, sizeof(std::uint32_t) * tile.count));
  const std::size_t each = sizeof(PixelLanes) + sizeof(FloatLanes) * view.channels +
                           sizeof(IntLanes) * options.gradient_hits;
  for (int start = 0; start < tile.group_count; start += kMaxGroups) {
    const int left = tile.group_count - start;
    Chunk chunk = {tile.groups + start, left < kMaxGroups ? left : kMaxGroups, nullptr, nullptr,
                   nullptr};
    chunk.pixels = static_cast<PixelLanes*>(Grow(&space->pixels, each * chunk.count));
    chunk.d_features = reinterpret_cast<FloatLanes*>(chunk.pixels + chunk.count);
    chunk.ids = reinterpret_cast<IntLanes*>(chunk.d_features + chunk.count * view.channels);
    LoadPixels(view, options, chunk);
    for (std::int32_t i = 0; i < tile.count; ++i) masks[i] = 0;
    for (int g = 0; g < chunk.count; ++g) {
      const std::int32_t n =
          Filter<Motion>(&chunk.groups[g], 1, tile.list, tile.count, nullptr, order);
      for (std::int32_t i = 0; i < n; ++i) masks[order[i]] |= 1u << g;
    }
    const Puller<Policy, kChannels, Motion> pull = {policy, view, options, chunk};
    if constexpr (Policy::kOrdered)
      PullBackToFront(pull, tile, masks, position, sums, &space->stack);
    else
      PullInAnyOrder(pull, tile, masks, position, sums);
    StoreRays(view, chunk);
  }
}

}  // namespace
}  // namespace jaxrec
