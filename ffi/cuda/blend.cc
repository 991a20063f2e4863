// CUDA handlers of blend: parse the buffers, fill in what the launchers need. Nothing here waits,
// allocates or reads memory of the device, so that XLA may capture the handlers into a graph.
#include "cuda/blend.h"

#include <string>

#include "xla/blend.h"
#include "xla/targets.h"

namespace jaxrec {
namespace {

namespace ffi = xla::ffi;

template <typename T, typename Buffer>
Batched<T> BatchedOf(const BlendShape& s, const Buffer& x, std::size_t own) {
  Batched<T> out = {reinterpret_cast<T*>(x.typed_data()), {}};
  const Dimensions d = x.dimensions();
  std::int64_t stride = 1;
  for (std::size_t i = 0; i < own; ++i) stride *= d[d.size() - 1 - i];
  for (std::size_t i = s.batch.size(); i-- > 0;) {
    out.stride[i] = d[i] == 1 ? 0 : stride;
    stride *= d[i];
  }
  return out;
}

// An array [*B, V or 1, H or 1, W or 1] and, if `channels`, [C or 1].
PixelField FieldOf(const BlendShape& s, const F32& x, bool channels) {
  const Dimensions d = x.dimensions();
  const std::size_t own = channels ? 4 : 3, n = d.size();
  const std::int64_t c = channels ? d[n - 1] : 1;
  const std::int64_t w = d[n - (channels ? 2 : 1)], h = d[n - (channels ? 3 : 2)];
  PixelField out;
  out.base = BatchedOf<const float>(s, x, own);
  out.c = c == 1 ? 0 : 1, out.x = w == 1 ? 0 : c, out.y = h == 1 ? 0 : w * c;
  out.v = d[n - own] == 1 ? 0 : h * w * c;
  return out;
}

struct Inputs {
  F32 centers, radii, opacities, features, origins, directions, footprint;
  F32 velocities, times, interval, limits;
};

ffi::Error MakeCall(const BlendShape& s, const Inputs& in, U8Result& scratch, BlendCall* call) {
  JAXREC_RETURN_IF_ERROR(Check(s.batch.size() <= kMaxBatch, "blend: more than 6 batch axes"));
  JAXREC_RETURN_IF_ERROR(
      Check(s.problems * s.views < 65536, "blend: more than 65535 views in one call on a GPU"));
  *call = {};
  call->batch.rank = static_cast<int>(s.batch.size());
  for (std::size_t i = 0; i < s.batch.size(); ++i)
    call->batch.size[i] = static_cast<unsigned>(s.batch[i]);
  call->problems = static_cast<int>(s.problems), call->views = static_cast<int>(s.views);
  call->pairs = call->problems * call->views;
  call->spheres = static_cast<int>(s.spheres), call->channels = static_cast<int>(s.channels);
  call->height = static_cast<int>(s.height), call->width = static_cast<int>(s.width);
  call->centers = BatchedOf<const float>(s, in.centers, 2);
  call->radii = BatchedOf<const float>(s, in.radii, 1);
  call->opacities = BatchedOf<const float>(s, in.opacities, 1);
  call->features = BatchedOf<const float>(s, in.features, 2);
  call->origins = BatchedOf<const float>(s, in.origins, 4);
  call->directions = BatchedOf<const float>(s, in.directions, 4);
  call->footprint = BatchedOf<const float>(s, in.footprint, 2);
  call->limits = BatchedOf<const float>(s, in.limits, 1);
  call->moves = Moves(in.interval);
  if (call->moves) {
    call->velocities = BatchedOf<const float>(s, in.velocities, 2);
    call->times = BatchedOf<const float>(s, in.times, 3);
    call->interval = BatchedOf<const float>(s, in.interval, 2);
  }
  call->scratch = scratch->typed_data();
  call->scratch_bytes = scratch->element_count();
  return ffi::Error::Success();
}

ffi::Error Told(const char* error) {
  return error == nullptr ? ffi::Error::Success()
                          : ffi::Error::Internal(std::string("blend on CUDA: ") + error);
}

ffi::Error Forward(cudaStream_t stream, F32 centers, F32 radii, F32 opacities, F32 features,
                   F32 origins, F32 directions, F32 footprint, F32 velocities, F32 times,
                   F32 interval, F32 background, F32 limits, F32Result out_features,
                   F32Result out_depth, F32Result out_alpha, S32Result ids, S32Result counts,
                   F32Result normalizer, S32Result last, U8Result kept, U8Result scratch,
                   std::int32_t kind, std::int32_t stop, float logit_stop, float min_transmittance,
                   std::int32_t) {
  const Inputs in = {centers,   radii,      opacities, features, origins, directions,
                     footprint, velocities, times,     interval, limits};
  BlendShape s;
  JAXREC_RETURN_IF_ERROR(BlendShape::Parse(&s, centers, features, origins, radii, opacities,
                                           directions, footprint, velocities, times, interval,
                                           background, limits));
  BlendCall call;
  JAXREC_RETURN_IF_ERROR(MakeCall(s, in, scratch, &call));
  call.kind = kind, call.stop = stop;
  call.logit_stop = logit_stop, call.min_transmittance = min_transmittance;
  call.tracked = static_cast<int>(ids->dimensions().back());
  call.background = FieldOf(s, background, true);
  call.out_features = out_features->typed_data(), call.out_depth = out_depth->typed_data();
  call.out_alpha = out_alpha->typed_data(), call.ids = ids->typed_data();
  call.counts = counts->typed_data(), call.normalizer = normalizer->typed_data();
  call.last = last->typed_data();
  call.kept = BatchedOf<char>(s, *kept, 2), call.kept_bytes = kept->dimensions().back();
  return Told(LaunchBlend(call, stream));
}

ffi::Error Backward(cudaStream_t stream, F32 centers, F32 radii, F32 opacities, F32 features,
                    F32 origins, F32 directions, F32 footprint, F32 velocities, F32 times,
                    F32 interval, F32 limits, F32 normalizer, S32 last, S32 ids, U8 kept,
                    F32 d_features, F32 d_depth, F32 d_alpha, F32 level, F32Result d_centers,
                    F32Result d_radii, F32Result d_opacities, F32Result d_sphere_features,
                    F32Result d_origins, F32Result d_directions, F32Result d_velocities,
                    F32Result d_times, U8Result scratch, std::int32_t kind, std::int32_t stop,
                    float logit_stop, float min_transmittance, std::int32_t, std::int32_t need,
                    std::int32_t gradient_hits) {
  const Inputs in = {centers,   radii,      opacities, features, origins, directions,
                     footprint, velocities, times,     interval, limits};
  BlendShape s;
  JAXREC_RETURN_IF_ERROR(BlendShape::Parse(
      &s, centers, features, origins, radii, opacities, directions, footprint, velocities, times,
      interval, limits, normalizer, last, ids, kept, d_features, d_depth, d_alpha, level));
  BlendCall call;
  JAXREC_RETURN_IF_ERROR(MakeCall(s, in, scratch, &call));
  call.kind = kind, call.stop = stop;
  call.logit_stop = logit_stop, call.min_transmittance = min_transmittance;
  call.tracked = static_cast<int>(ids.dimensions().back());
  call.gradient_hits = gradient_hits, call.need = need;
  call.saved_normalizer = BatchedOf<const float>(s, normalizer, 4);
  call.saved_last = BatchedOf<const std::int32_t>(s, last, 3);
  call.saved_ids = BatchedOf<const std::int32_t>(s, ids, 4);
  call.kept = BatchedOf<char>(s, kept, 2), call.kept_bytes = kept.dimensions().back();
  call.d_features = FieldOf(s, d_features, true);
  call.d_depth = FieldOf(s, d_depth, false), call.d_alpha = FieldOf(s, d_alpha, false);
  call.level = FieldOf(s, level, true);
  const auto wanted = [&](F32Result& x, int bit) {
    return need & (1 << bit) ? x->typed_data() : nullptr;
  };
  call.d_centers = wanted(d_centers, 0), call.d_radii = wanted(d_radii, 1);
  call.d_opacities = wanted(d_opacities, 2);
  call.d_sphere_features = wanted(d_sphere_features, 3);
  call.d_origins = wanted(d_origins, 4), call.d_directions = wanted(d_directions, 5);
  call.d_velocities = wanted(d_velocities, 6), call.d_times = wanted(d_times, 7);
  return Told(LaunchBlendVjp(call, stream));
}

}  // namespace

const char* BuiltFor() { return JAXREC_CUDA_ARCHITECTURES; }

std::int64_t BlendScratchBytes(std::int64_t spheres, std::int64_t views, std::int64_t height,
                               std::int64_t width, std::int64_t channels, std::int64_t tracked) {
  return static_cast<std::int64_t>(BlendScratch(spheres, views, height, width, channels, tracked));
}

std::int64_t BlendVjpScratchBytes(std::int64_t spheres, std::int64_t channels, bool moves) {
  return static_cast<std::int64_t>(SumsBytes(spheres, channels, moves));
}

std::int64_t BlendKeptBytes(std::int64_t spheres, std::int64_t height, std::int64_t width,
                            std::int64_t channels, std::int64_t tracked) {
  return static_cast<std::int64_t>(BlendKept(spheres, height, width, channels, tracked));
}

}  // namespace jaxrec

XLA_FFI_DEFINE_HANDLER_SYMBOL(JaxrecBlend, jaxrec::Forward,
                              jaxrec::BindBlend<xla::ffi::PlatformStream<cudaStream_t>>(),
                              {xla::ffi::Traits::kCmdBufferCompatible});

XLA_FFI_DEFINE_HANDLER_SYMBOL(JaxrecBlendVjp, jaxrec::Backward,
                              jaxrec::BindBlendVjp<xla::ffi::PlatformStream<cudaStream_t>>(),
                              {xla::ffi::Traits::kCmdBufferCompatible});
