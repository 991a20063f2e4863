// Forward blending of one tile: a group of rays at a time, front to back.
// Part of blocks.cc, which is compiled once for each instruction set.
#pragma once

#include "cpu/cull.h"

namespace jaxrec {
namespace {

// A tile of the block at work: its rays and the spheres that may touch it.
struct Tile {
  const RayGroup* groups;
  int group_count;
  Candidates list;
  std::int32_t count;
  const float* bounds;  // stop="total": log weight of all candidates from here on
};

enum Stop { kStopNever = 0, kStopPerSphere = 1, kStopTotal = 2 };

// Splits a sphere's offset from the rays of a group, each at its time.
template <typename Motion>
JAXREC_HD void SplitRecord(const View& view, const RayGroup& group, const Record& record,
                           Chord<FloatLanes>* chord) {
  if constexpr (Motion::kMoves)
    Split(group.ray, record.sphere, VelocityOf(view, record), group.time, chord);
  else
    Split(group.ray, record.sphere, chord);
}

// The K nearest hits of each lane by front depth, ties by id.
struct Nearest {
  FloatLanes* depths;
  IntLanes* ids;
  int size;

  void Clear() const {
    for (int k = 0; k < size; ++k) depths[k] = Splat(__builtin_inff()), ids[k] = IntLanes{} - 1;
  }

  JAXREC_HD void Insert(FloatLanes depth, IntLanes id, IntLanes drawn) const {
    depth = Select(drawn, depth, Splat(__builtin_inff()));
    for (int k = 0; k < size; ++k) {
      const IntLanes first = drawn & ((depth < depths[k]) | ((depth == depths[k]) & (id < ids[k])));
      if (!Any(first) && k + 1 < size) continue;
      const FloatLanes other_depth = depths[k];
      const IntLanes other_id = ids[k];
      depths[k] = Select(first, depth, other_depth);
      ids[k] = Select(first, id, other_id);
      // A lane that moved in carries its predecessor on; it then belongs before all that follow.
      depth = Select(first, other_depth, depth);
      id = Select(first, other_id, id);
    }
  }
};

// Suffix sums of the largest weights that the tile's candidates can have, as logarithms.
template <typename Policy>
void BoundRemaining(const Policy& policy, const View& view, const Tile& tile, float* bounds) {
  double top = -1e30, sum = 0;
  for (std::int32_t i = tile.count - 1; i >= 0; --i) {
    const Record& record = view.records[tile.list.rank[i]];
    // o exp(o z / gamma) with z at the nearest point.
    const double bound = policy.LogBound(record.key - view.slack) * record.opacity;
    const double log = record.opacity > 0 ? bound + __builtin_log2(record.opacity) : -1e30;
    if (log > top) sum = sum * __builtin_exp2(top - log), top = log;
    sum += __builtin_exp2(log - top);
    bounds[i] = static_cast<float>(top + __builtin_log2(sum)) + 1e-3f;
  }
}

template <typename Policy, int kChannels, typename Motion, bool kTrack>
void ForwardGroup(const Policy& policy, const BlockWork& work, const Tile& tile,
                  const RayGroup& group, const std::int32_t* order, std::int32_t n,
                  const Nearest& nearest) {
  const View& view = *work.view;
  const int channels = kChannels > 0 ? kChannels : view.channels;
  const int stop = Policy::kOrdered ? kStopPerSphere : work.options->stop;
  FloatLanes color[kChannels > 0 ? kChannels : 64] = {};
  FloatLanes depth = {}, share = {};
  IntLanes count = {}, last = IntLanes{} - 1;
  auto state = policy.template Begin<FloatLanes>();
  if (kTrack) nearest.Clear();

  for (std::int32_t i = 0; i < n; ++i) {
    const std::int32_t rank = tile.list.rank[order[i]];
    const Record& record = view.records[rank];
    Chord<FloatLanes> chord;
    SplitRecord<Motion>(view, group, record, &chord);
    if (!Any((chord.p2 <= record.reach * record.reach) & group.valid)) continue;
    Meet(record.sphere, view.beam, view.range, &chord);
    IntLanes drawn = policy.Counts(chord) & group.valid;
    if (stop != kStopNever) {
      const float omitted =
          stop == kStopTotal ? tile.bounds[order[i]] : policy.LogBound(record.key - view.slack);
      const IntLanes open = policy.Open(state, omitted) & group.valid;
      if (!Any(open)) break;
      drawn = drawn & open;
    }
    if (!Any(drawn)) continue;
    const auto hit = policy.Weigh(chord, record.sphere, record.opacity);
    if (Any(policy.MayRaise(hit, state) & drawn)) {
      FloatLanes scale;
      policy.Raise(hit, record.opacity, drawn, &state, &scale);
      for (int c = 0; c < channels; ++c) color[c] = color[c] * scale;
      depth = depth * scale, share = share * scale;
    }
    const FloatLanes weight = policy.Draw(hit, record.opacity, drawn, &state);
    const float* feature = view.features + std::int64_t{record.id} * channels;
    for (int c = 0; c < channels; ++c) color[c] = color[c] + weight * feature[c];
    depth = depth + weight * policy.Depth(chord, hit);
    share = share + weight;
    count = count - drawn;
    last = Select(drawn, IntLanes{} + rank, last);
    if (kTrack) nearest.Insert(hit.zeta, IntLanes{} + record.id, drawn);
    if (stop != kStopNever) policy.UpdateStop(&state);
  }

  FloatLanes scale, rest, first, second;
  policy.End(state, &scale, &rest);
  policy.Save(state, &first, &second);
  const int tracked = work.options->tracked;
  for (int lane = 0; lane < kLanes; ++lane) {
    const std::int64_t pixel = group.pixel[lane];
    if (pixel < 0) continue;
    const float* background = view.background.data + pixel / view.width * view.background.y +
                              pixel % view.width * view.background.x;
    for (int c = 0; c < channels; ++c)
      view.out_features[pixel * channels + c] =
          color[c][lane] * scale[lane] + rest[lane] * background[c * view.background.c];
    view.out_depth[pixel] = depth[lane] * scale[lane];
    view.out_alpha[pixel] = share[lane] * scale[lane];
    view.counts[pixel] = count[lane];
    view.last[pixel] = last[lane];
    view.normalizer[2 * pixel] = first[lane];
    view.normalizer[2 * pixel + 1] = second[lane];
    for (int k = 0; k < tracked; ++k) view.ids[pixel * tracked + k] = nearest.ids[k][lane];
  }
}

template <typename Policy, int kChannels, typename Motion>
void ForwardTile(const Policy& policy, const BlockWork& work, const Tile& tile) {
  Workspace* space = work.workspace;
  auto* order = static_cast<std::int32_t*>(Grow(&space->group, sizeof(std::int32_t) * tile.count));
  const int tracked = work.options->tracked;
  Nearest nearest = {nullptr, nullptr, tracked};
  if (tracked > 0) {
    nearest.depths = static_cast<FloatLanes*>(
        Grow(&space->nearest, (sizeof(FloatLanes) + sizeof(IntLanes)) * tracked));
    nearest.ids = reinterpret_cast<IntLanes*>(nearest.depths + tracked);
  }
  for (int g = 0; g < tile.group_count; ++g) {
    const RayGroup& group = tile.groups[g];
    const std::int32_t n = Filter<Motion>(&group, 1, tile.list, tile.count, nullptr, order);
    if (tracked > 0)
      ForwardGroup<Policy, kChannels, Motion, true>(policy, work, tile, group, order, n, nearest);
    else
      ForwardGroup<Policy, kChannels, Motion, false>(policy, work, tile, group, order, n, nearest);
  }
}

}  // namespace
}  // namespace jaxrec
