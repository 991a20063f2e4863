// The kernels of blend for one instruction set. Compiled once for each, with JAXREC_KERNELS naming
// the function to define. Nothing here may be shared with other translation units except through
// that function: everything else is inlined or has internal linkage, and no standard template is
// instantiated, so that code for a newer machine never runs on an older one.
// First: templates in core/ find the functions on lanes only if these are declared before them.
#include "cpu/simd.h"

#include "core/alpha.h"
#include "core/softmax.h"
#include "cpu/backward.h"

namespace jaxrec {
namespace {

Candidates Room(Scratch* scratch, std::int32_t count, std::int32_t** slot) {
  const std::size_t padded = (static_cast<std::size_t>(count) + 2 * kLanes) / kLanes * kLanes;
  auto* p = static_cast<float*>(Grow(scratch, 9 * padded * sizeof(float)));
  *slot = reinterpret_cast<std::int32_t*>(p + 5 * padded);
  return {p,
          p + padded,
          p + 2 * padded,
          p + 3 * padded,
          reinterpret_cast<std::int32_t*>(p + 4 * padded),
          p + 6 * padded,
          p + 7 * padded,
          p + 8 * padded};
}

int GroupsOf(const View& view, const Rect& rect) {
  const int rows = GroupRows(view), columns = kLanes / rows;
  return ((rect.y1 - rect.y0 + rows - 1) / rows) * ((rect.x1 - rect.x0 + columns - 1) / columns);
}

Rect TileAt(const TileShape& shape, const Rect& block, int y, int x) {
  const int y1 = y + shape.tile_height, x1 = x + shape.tile_width;
  return {y, x, y1 < block.y1 ? y1 : block.y1, x1 < block.x1 ? x1 : block.x1};
}

// Calls visit(tile, position in the block's list of each of its candidates) for each tile.
template <typename Motion, typename Visit>
void ForEachTile(const BlockWork& work, const Candidates& list, std::int32_t count,
                 const RayGroup* groups, Visit visit) {
  const View& view = *work.view;
  const TileShape shape = TileShape::For(work.options->tile, view.height);
  std::int32_t* position;
  const Candidates room = Room(&work.workspace->tile, count, &position);
  for (int y = work.rect.y0; y < work.rect.y1; y += shape.tile_height) {
    for (int x = work.rect.x0; x < work.rect.x1; x += shape.tile_width) {
      const Rect rect = TileAt(shape, work.rect, y, x);
      Tile tile = {groups, GroupsOf(view, rect), room, 0, nullptr};
      tile.count = Filter<Motion>(groups, tile.group_count, list, count, &room, position);
      visit(tile, position);
      groups += tile.group_count;
    }
  }
}

// Loads the block's rays tile by tile and culls its candidates.
struct Block {
  const RayGroup* groups;
  int group_count;
  Candidates list;
  std::int32_t count;
};

template <typename Motion>
Block Open(const BlockWork& work) {
  const View& view = *work.view;
  const TileShape shape = TileShape::For(work.options->tile, view.height);
  const int bound = 16 * work.options->tile * work.options->tile / kLanes;
  auto* groups = static_cast<RayGroup*>(Grow(&work.workspace->rays, sizeof(RayGroup) * bound));
  int n = 0;
  for (int y = work.rect.y0; y < work.rect.y1; y += shape.tile_height) {
    for (int x = work.rect.x0; x < work.rect.x1; x += shape.tile_width) {
      const Rect rect = TileAt(shape, work.rect, y, x);
      n += LoadRays(view, rect, groups + n);
    }
  }
  std::int32_t* slot;
  Block block = {groups, n, Room(&work.workspace->block, work.count, &slot), 0};
  block.count = Filter<Motion>(groups, n, work.list, work.count, &block.list, nullptr);
  return block;
}

template <typename Policy, int kChannels, typename Motion>
void Forward(const Policy& policy, const BlockWork& work) {
  const Block block = Open<Motion>(work);
  ForEachTile<Motion>(
      work, block.list, block.count, block.groups, [&](Tile& tile, const std::int32_t*) {
        if (work.options->stop == kStopTotal && !Policy::kOrdered) {
          auto* bounds =
              static_cast<float*>(Grow(&work.workspace->bounds, sizeof(float) * tile.count));
          BoundRemaining(policy, *work.view, tile, bounds);
          tile.bounds = bounds;
        }
        ForwardTile<Policy, kChannels, Motion>(policy, work, tile);
      });
}

template <typename Policy, int kChannels, typename Motion>
void Backward(const Policy& policy, const BlockWork& work) {
  const Block block = Open<Motion>(work);
  const std::size_t width = SumsOf(*work.view);
  const std::size_t total = width * block.count;
  auto* sums = static_cast<float*>(Grow(&work.sums->sums, sizeof(float) * total));
  auto* ranks =
      static_cast<std::int32_t*>(Grow(&work.sums->ranks, sizeof(std::int32_t) * block.count));
  __builtin_memset(sums, 0, sizeof(float) * total);
  __builtin_memcpy(ranks, block.list.rank, sizeof(std::int32_t) * block.count);
  work.sums->count = block.count;
  ForEachTile<Motion>(work, block.list, block.count, block.groups,
                      [&](Tile& tile, const std::int32_t* position) {
                        BackwardTile<Policy, kChannels, Motion>(policy, work, tile, position, sums);
                      });
}

// Calls f(policy, channels and motion as types) for what the options ask for. What moves has no
// kernel of its own for three channels.
template <int kChannels>
struct Channels {};

template <typename F>
void Dispatch(const BlockWork& work, F f) {
  const View& view = *work.view;
  const BlockOptions& options = *work.options;
  const Softmax softmax =
      Softmax::Make(view.range, view.gamma, view.background_depth, options.logit_stop);
  const Alpha alpha = {view.range, options.min_transmittance};
  const auto run = [&](const auto& policy) {
    if (view.velocities != nullptr)
      f(policy, Channels<0>{}, Linear{});
    else
      view.channels == 3 ? f(policy, Channels<3>{}, Still{}) : f(policy, Channels<0>{}, Still{});
  };
  options.kind == 0 ? run(softmax) : run(alpha);
}

struct RunForward {
  const BlockWork& work;
  template <typename Policy, int kChannels, typename Motion>
  void operator()(const Policy& policy, Channels<kChannels>, Motion) const {
    Forward<Policy, kChannels, Motion>(policy, work);
  }
};

struct RunBackward {
  const BlockWork& work;
  template <typename Policy, int kChannels, typename Motion>
  void operator()(const Policy& policy, Channels<kChannels>, Motion) const {
    Backward<Policy, kChannels, Motion>(policy, work);
  }
};

void ForwardBlock(const BlockWork& work) { Dispatch(work, RunForward{work}); }
void BackwardBlock(const BlockWork& work) { Dispatch(work, RunBackward{work}); }

}  // namespace

const BlockKernels& JAXREC_KERNELS() {
  static const BlockKernels kernels = {JAXREC_ISA, &ForwardBlock, &BackwardBlock};
  return kernels;
}

}  // namespace jaxrec
