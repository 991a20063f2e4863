// CPU handlers of blend: parse the buffers, prepare the views, share their blocks among threads.
#include "xla/blend.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <limits>
#include <new>
#include <vector>

#include "cpu/parallel.h"
#include "cpu/prepare.h"
#include "xla/targets.h"

namespace jaxrec {

namespace {

namespace ffi = xla::ffi;

const BlockKernels& Kernels() {
#if defined(JAXREC_X86_KERNELS)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl"))
    return Avx512Kernels();
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return Avx2Kernels();
#endif
  return BaselineKernels();
}

// One view of one problem of the batch.
struct Job {
  Spheres spheres;
  View view;
  std::int64_t problem;
};

struct Item {
  std::int64_t job;
  Rect rect;
};

// Views prepared at a time: bounds the memory of their sorted copies.
constexpr std::int64_t kSpheresAtATime = std::int64_t{1} << 23;
// Blocks whose sums are kept at a time.
constexpr std::int64_t kBlocksAtATime = 256;

std::vector<Item> Blocks(const std::vector<Job>& jobs, std::size_t first, std::size_t last,
                         int tile) {
  std::vector<Item> items;
  for (std::size_t j = first; j < last; ++j) {
    const View& view = jobs[j].view;
    const TileShape shape = TileShape::For(tile, view.height);
    for (int y = 0; y < view.height; y += shape.block_height)
      for (int x = 0; x < view.width; x += shape.block_width)
        items.push_back({static_cast<std::int64_t>(j),
                         {y, x, std::min(y + shape.block_height, view.height),
                          std::min(x + shape.block_width, view.width)}});
  }
  return items;
}

// Prepares all views, a bounded number at a time, and calls run(prepared, items) on each lot;
// prepared[item.job - items.front().job] belongs to an item.
template <typename Run>
void ForEachLot(ffi::ThreadPool& pool, std::vector<Job>* jobs, int tile, Run run) {
  if (jobs->empty()) return;
  const std::int64_t each = std::max<std::int64_t>(jobs->front().spheres.count, 1);
  const auto lot =
      static_cast<std::size_t>(std::clamp<std::int64_t>(kSpheresAtATime / each, 1, 256));
  for (std::size_t first = 0; first < jobs->size(); first += lot) {
    const std::size_t last = std::min(first + lot, jobs->size());
    std::vector<Prepared> prepared(last - first);
    ParallelFor(pool, last - first, [&](std::int64_t i, int) {
      Job& job = (*jobs)[first + i];
      Prepare(job.spheres, job.view, &prepared[i]);
      job.view.records = prepared[i].records.data();
      job.view.count = static_cast<std::int32_t>(prepared[i].records.size());
      job.view.slack = prepared[i].slack;
    });
    run(first, prepared, Blocks(*jobs, first, last, tile));
  }
}

// Fields of View that both passes share; pointers are those of the problem.
struct Inputs {
  F32 centers, radii, opacities, features, origins, directions, footprint;
  F32 velocities, times, interval, limits;
};

std::vector<Job> MakeJobs(const BlendShape& s, const Inputs& in) {
  std::vector<Job> jobs;
  const std::int64_t rays = s.height * s.width;
  for (std::int64_t b = 0; b < s.problems; ++b) {
    const auto at = [&](const F32& x, std::size_t own) {
      return x.typed_data() + s.Offset(x.dimensions(), own, b);
    };
    const float* limits = at(in.limits, 1);
    const bool moves = Moves(in.interval);
    const Spheres spheres = {static_cast<std::int32_t>(s.spheres),
                             static_cast<int>(s.channels),
                             at(in.centers, 2),
                             at(in.radii, 1),
                             at(in.opacities, 1),
                             at(in.features, 2),
                             moves ? at(in.velocities, 2) : nullptr};
    for (std::int64_t v = 0; v < s.views; ++v) {
      View view = {};
      view.height = static_cast<int>(s.height), view.width = static_cast<int>(s.width);
      view.channels = spheres.channels;
      view.origins = at(in.origins, 4) + 3 * rays * v;
      view.directions = at(in.directions, 4) + 3 * rays * v;
      const float* footprint = at(in.footprint, 2) + 2 * v;
      view.beam = Beam::Make(footprint[0], footprint[1]);
      view.range = {limits[0], limits[1]};
      view.gamma = limits[2], view.background_depth = limits[3];
      view.features = spheres.features;
      if (moves) {
        view.velocities = spheres.velocities, view.times = at(in.times, 3) + rays * v;
        const float* interval = at(in.interval, 2) + 2 * v;
        view.span = {interval[0], interval[1]};
      }
      jobs.push_back({spheres, view, b});
    }
  }
  return jobs;
}

// View `v` of problem `b` in an array [*B, V or 1, H or 1, W or 1, C or 1].
Pixels PixelsOf(const BlendShape& s, const F32& x, bool channels, std::int64_t b, std::int64_t v) {
  const Dimensions d = x.dimensions();
  const std::size_t own = channels ? 4 : 3, n = d.size();
  const std::int64_t c = channels ? d[n - 1] : 1;
  const std::int64_t w = d[n - (channels ? 2 : 1)], h = d[n - (channels ? 3 : 2)];
  const std::int64_t views = d[n - own];
  Pixels out;
  out.data = x.typed_data() + s.Offset(d, own, b) + (views == 1 ? 0 : v * h * w * c);
  out.c = c == 1 ? 0 : 1, out.x = w == 1 ? 0 : c, out.y = h == 1 ? 0 : w * c;
  return out;
}

ffi::Error MatchInputs(const BlendShape& s, const Inputs& in) {
  const std::int64_t n = s.spheres, v = s.views, h = s.height, w = s.width;
  JAXREC_RETURN_IF_ERROR(Match(s, in.radii.dimensions(), {n}, "radii"));
  JAXREC_RETURN_IF_ERROR(Match(s, in.opacities.dimensions(), {n}, "opacities"));
  JAXREC_RETURN_IF_ERROR(Match(s, in.origins.dimensions(), {v, h, w, 3}, "origins"));
  JAXREC_RETURN_IF_ERROR(Match(s, in.directions.dimensions(), {v, h, w, 3}, "directions"));
  JAXREC_RETURN_IF_ERROR(Match(s, in.footprint.dimensions(), {v, 2}, "footprint"));
  if (Moves(in.interval)) {
    JAXREC_RETURN_IF_ERROR(Match(s, in.velocities.dimensions(), {n, 3}, "velocities"));
    JAXREC_RETURN_IF_ERROR(Match(s, in.times.dimensions(), {v, h, w}, "times"));
    JAXREC_RETURN_IF_ERROR(Match(s, in.interval.dimensions(), {v, 2}, "interval"));
  }
  return Match(s, in.limits.dimensions(), {4}, "limits");
}

// Maps what may be thrown to an error: no exception leaves a handler.
template <typename F>
ffi::Error Guard(F f) noexcept {
  try {
    return f();
  } catch (const std::bad_alloc&) {
    return ffi::Error(ffi::ErrorCode::kResourceExhausted, "blend: out of memory");
  } catch (const std::exception& error) {
    return ffi::Error::Internal(std::string("blend: ") + error.what());
  }
}

ffi::Error Forward(ffi::ThreadPool pool, F32 centers, F32 radii, F32 opacities, F32 features,
                   F32 origins, F32 directions, F32 footprint, F32 velocities, F32 times,
                   F32 interval, F32 background, F32 limits, F32Result out_features,
                   F32Result out_depth, F32Result out_alpha, S32Result ids, S32Result counts,
                   F32Result normalizer, S32Result last, U8Result, U8Result, std::int32_t kind,
                   std::int32_t stop, float logit_stop, float min_transmittance,
                   std::int32_t tile) {
  const Inputs in = {centers,   radii,      opacities, features, origins, directions,
                     footprint, velocities, times,     interval, limits};
  BlendShape s;
  JAXREC_RETURN_IF_ERROR(BlendShape::Parse(&s, centers, features, origins, radii, opacities,
                                           directions, footprint, velocities, times, interval,
                                           background, limits));
  JAXREC_RETURN_IF_ERROR(MatchInputs(s, in));
  JAXREC_RETURN_IF_ERROR(Match(s, background.dimensions(), {-1, -1, -1, s.channels}, "background"));
  BlockOptions options = {};
  options.kind = kind, options.stop = stop, options.tile = tile;
  options.logit_stop = logit_stop, options.min_transmittance = min_transmittance;
  options.tracked = static_cast<int>(ids->dimensions().back());

  return Guard([&] {
    std::vector<Job> jobs = MakeJobs(s, in);
    const std::int64_t rays = s.height * s.width;
    for (std::size_t j = 0; j < jobs.size(); ++j) {
      View& view = jobs[j].view;
      const auto at = static_cast<std::int64_t>(j) * rays;  // results have all batch axes
      view.background = PixelsOf(s, background, true, jobs[j].problem, j % s.views);
      view.out_features = out_features->typed_data() + at * s.channels;
      view.out_depth = out_depth->typed_data() + at;
      view.out_alpha = out_alpha->typed_data() + at;
      view.ids = ids->typed_data() + at * options.tracked;
      view.counts = counts->typed_data() + at;
      view.normalizer = normalizer->typed_data() + 2 * at;
      view.last = last->typed_data() + at;
    }
    std::vector<Workspace> workspaces(Workers(pool));
    ForEachLot(pool, &jobs, tile, [&](std::size_t first, auto& prepared, const auto& items) {
      ParallelFor(pool, items.size(), [&](std::int64_t i, int worker) {
        const Item& item = items[i];
        const Prepared& p = prepared[item.job - first];
        const View& view = jobs[item.job].view;
        Kernels().forward(
            {&view, &options, item.rect, p.list, view.count, &workspaces[worker], nullptr});
      });
    });
    return ffi::Error::Success();
  });
}

// Where the cotangents of one problem's spheres are summed; null where not needed.
struct SphereCotangents {
  float* centers;
  float* radii;
  float* opacities;
  float* features;
  float* velocities;
};

// Adds the sums of one block of one view. Called in the order of blocks, so that the result does
// not depend on which thread did what.
void AddBlock(const BlockSums& block, const View& view, const SphereCotangents& out) {
  const int channels = view.channels, width = SumsOf(view);
  const auto* ranks = static_cast<const std::int32_t*>(block.ranks.data);
  const auto* sums = static_cast<const float*>(block.sums.data);
  for (std::int32_t i = 0; i < block.count; ++i, sums += width) {
    const std::int64_t id = view.records[ranks[i]].id;
    if (out.centers)
      for (int k = 0; k < 3; ++k) out.centers[3 * id + k] += sums[k];
    if (out.radii) out.radii[id] += sums[3];
    if (out.opacities) out.opacities[id] += sums[4];
    if (out.features)
      for (int c = 0; c < channels; ++c) out.features[channels * id + c] += sums[kSphereSums + c];
    if (out.velocities)
      for (int k = 0; k < 3; ++k) out.velocities[3 * id + k] += sums[kSphereSums + channels + k];
  }
}

ffi::Error Backward(ffi::ThreadPool pool, F32 centers, F32 radii, F32 opacities, F32 features,
                    F32 origins, F32 directions, F32 footprint, F32 velocities, F32 times,
                    F32 interval, F32 limits, F32 normalizer, S32 last, S32 ids, U8, F32 d_features,
                    F32 d_depth, F32 d_alpha, F32 level, F32Result d_centers, F32Result d_radii,
                    F32Result d_opacities, F32Result d_sphere_features, F32Result d_origins,
                    F32Result d_directions, F32Result d_velocities, F32Result d_times, U8Result,
                    std::int32_t kind, std::int32_t stop, float logit_stop, float min_transmittance,
                    std::int32_t tile, std::int32_t need, std::int32_t gradient_hits) {
  const Inputs in = {centers,   radii,      opacities, features, origins, directions,
                     footprint, velocities, times,     interval, limits};
  BlendShape s;
  JAXREC_RETURN_IF_ERROR(BlendShape::Parse(
      &s, centers, features, origins, radii, opacities, directions, footprint, velocities, times,
      interval, limits, normalizer, last, ids, d_features, d_depth, d_alpha, level));
  JAXREC_RETURN_IF_ERROR(MatchInputs(s, in));
  const std::int64_t v = s.views, h = s.height, w = s.width, rays = h * w;
  JAXREC_RETURN_IF_ERROR(Match(s, normalizer.dimensions(), {v, h, w, 2}, "normalizer"));
  JAXREC_RETURN_IF_ERROR(Match(s, last.dimensions(), {v, h, w}, "last"));
  JAXREC_RETURN_IF_ERROR(Match(s, ids.dimensions(), {v, h, w, -1}, "ids"));
  JAXREC_RETURN_IF_ERROR(Match(s, level.dimensions(), {v, h, w, 2}, "level"));
  BlockOptions options = {};
  options.kind = kind, options.stop = stop, options.tile = tile;
  options.logit_stop = logit_stop, options.min_transmittance = min_transmittance;
  options.tracked = static_cast<int>(ids.dimensions().back());
  options.gradient_hits = gradient_hits, options.need = need;

  return Guard([&] {
    std::vector<Job> jobs = MakeJobs(s, in);
    std::vector<SphereCotangents> cotangents(s.problems);
    for (std::int64_t b = 0; b < s.problems; ++b) {
      const auto zero = [&](F32Result& x, int bit, std::int64_t size) -> float* {
        if (!(need & (1 << bit))) return nullptr;
        float* data = x->typed_data() + b * size;
        std::fill(data, data + size, 0.0f);
        return data;
      };
      cotangents[b] = {zero(d_centers, 0, 3 * s.spheres), zero(d_radii, 1, s.spheres),
                       zero(d_opacities, 2, s.spheres),
                       zero(d_sphere_features, 3, s.channels * s.spheres),
                       zero(d_velocities, 6, 3 * s.spheres)};
    }
    for (std::size_t j = 0; j < jobs.size(); ++j) {
      View& view = jobs[j].view;
      const std::int64_t b = jobs[j].problem, k = j % s.views;
      const auto at = static_cast<std::int64_t>(j) * rays;
      const auto own = [&](const auto& x, std::size_t axes, std::int64_t each) {
        return x.typed_data() + s.Offset(x.dimensions(), axes, b) + k * rays * each;
      };
      // The forward's results: the kernel only reads them here.
      view.normalizer = const_cast<float*>(own(normalizer, 4, 2));
      view.last = const_cast<std::int32_t*>(own(last, 3, 1));
      view.ids = const_cast<std::int32_t*>(own(ids, 4, options.tracked));
      view.d_features = PixelsOf(s, d_features, true, b, k);
      view.d_depth = PixelsOf(s, d_depth, false, b, k);
      view.d_alpha = PixelsOf(s, d_alpha, false, b, k);
      view.level = PixelsOf(s, level, true, b, k);
      view.d_origins = need & 16 ? d_origins->typed_data() + 3 * at : nullptr;
      view.d_directions = need & 32 ? d_directions->typed_data() + 3 * at : nullptr;
      view.d_times = need & 128 ? d_times->typed_data() + at : nullptr;
    }
    std::vector<Workspace> workspaces(Workers(pool));
    ForEachLot(pool, &jobs, tile, [&](std::size_t first, auto& prepared, const auto& items) {
      const std::int64_t total = items.size();
      std::vector<BlockSums> sums(std::min(total, kBlocksAtATime));
      for (std::int64_t start = 0; start < total; start += kBlocksAtATime) {
        const std::int64_t count = std::min(kBlocksAtATime, total - start);
        ParallelFor(pool, count, [&](std::int64_t i, int worker) {
          const Item& item = items[start + i];
          const Prepared& p = prepared[item.job - first];
          const View& view = jobs[item.job].view;
          Kernels().backward(
              {&view, &options, item.rect, p.list, view.count, &workspaces[worker], &sums[i]});
        });
        for (std::int64_t i = 0; i < count; ++i) {
          const Job& job = jobs[items[start + i].job];
          AddBlock(sums[i], job.view, cotangents[job.problem]);
        }
      }
    });
    return ffi::Error::Success();
  });
}

}  // namespace

const char* BuiltFor() { return Kernels().name; }

// The threads have scratch of their own, and nothing is kept.
std::int64_t BlendScratchBytes(std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t,
                               std::int64_t) {
  return 0;
}
std::int64_t BlendVjpScratchBytes(std::int64_t, std::int64_t, bool) { return 0; }
std::int64_t BlendKeptBytes(std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t) {
  return 0;
}

}  // namespace jaxrec

XLA_FFI_DEFINE_HANDLER_SYMBOL(JaxrecBlend, jaxrec::Forward,
                              jaxrec::BindBlend<xla::ffi::ThreadPool>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(JaxrecBlendVjp, jaxrec::Backward,
                              jaxrec::BindBlendVjp<xla::ffi::ThreadPool>());
