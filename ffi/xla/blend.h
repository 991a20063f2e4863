// Shape contract of blend: the same for every platform.
//
// All operands have the same number of leading batch axes, each of which is 1 or that of the
// results: an operand of size 1 along an axis is shared along it (stride 0).
#pragma once

#include <cstdint>
#include <vector>

#include "xla/check.h"
#include "xla/ffi/api/ffi.h"

namespace jaxrec {

using F32 = xla::ffi::Buffer<xla::ffi::F32>;
using S32 = xla::ffi::Buffer<xla::ffi::S32>;
using F32Result = xla::ffi::ResultBuffer<xla::ffi::F32>;
using S32Result = xla::ffi::ResultBuffer<xla::ffi::S32>;
using U8 = xla::ffi::Buffer<xla::ffi::U8>;
using U8Result = xla::ffi::ResultBuffer<xla::ffi::U8>;
using Dimensions = xla::ffi::Span<const std::int64_t>;

// Sizes of one problem of the batch, and the batch itself.
struct BlendShape {
  std::vector<std::int64_t> batch;
  std::int64_t problems = 1;
  std::int64_t spheres = 0, channels = 0, views = 0, height = 0, width = 0;

  // centers [*B, N, 3], features [*B, N, C], origins [*B, V, H, W, 3]; each batch axis 1 or B.
  // `operands` are the dimensions of all operands.
  static xla::ffi::Error Parse(Dimensions centers, Dimensions features, Dimensions origins,
                               const std::vector<Dimensions>& operands, BlendShape* shape) {
    const std::size_t rank = centers.size();
    JAXREC_RETURN_IF_ERROR(Check(rank >= 2 && centers[rank - 1] == 3 && features.size() == rank &&
                                     origins.size() == rank + 2,
                                 "blend: operands disagree in their number of axes"));
    for (std::size_t i = 0; i + 2 < rank; ++i) {
      std::int64_t size = 1;
      for (const Dimensions& dimensions : operands)
        if (i < dimensions.size() && dimensions[i] != 1) size = dimensions[i];
      shape->batch.push_back(size);
      shape->problems *= size;
    }
    shape->spheres = centers[rank - 2];
    shape->channels = features[rank - 1];
    shape->views = origins[rank - 2], shape->height = origins[rank - 1];
    shape->width = origins[rank];
    JAXREC_RETURN_IF_ERROR(Check(features[rank - 2] == shape->spheres && origins[rank + 1] == 3 &&
                                     shape->channels >= 1 && shape->channels <= 64,
                                 "blend: centers, features and rays disagree in shape"));
    return Check(shape->spheres < (std::int64_t{1} << 31) &&
                     shape->height * shape->width < (std::int64_t{1} << 31),
                 "blend: more than 2^31 spheres or rays in one view");
  }

  // The same with the other operands as buffers.
  template <typename... Buffers>
  static xla::ffi::Error Parse(BlendShape* shape, const F32& centers, const F32& features,
                               const F32& origins, const Buffers&... others) {
    return Parse(
        centers.dimensions(), features.dimensions(), origins.dimensions(),
        {centers.dimensions(), features.dimensions(), origins.dimensions(), others.dimensions()...},
        shape);
  }

  // Offset in elements of problem `index` in an operand, given its dimensions and how many of
  // them belong to one problem.
  std::int64_t Offset(Dimensions dimensions, std::size_t own, std::int64_t index) const {
    std::int64_t stride = 1, offset = 0;
    for (std::size_t i = 0; i < own; ++i) stride *= dimensions[dimensions.size() - 1 - i];
    for (std::size_t i = batch.size(); i-- > 0;) {
      const std::int64_t position = batch[i] == 0 ? 0 : index % batch[i];
      index = batch[i] == 0 ? 0 : index / batch[i];
      if (dimensions[i] != 1) offset += position * stride;
      stride *= dimensions[i];
    }
    return offset;
  }
};

// Checks that an operand has the batch's axes and `own`; -1 is any size.
inline xla::ffi::Error Match(const BlendShape& shape, Dimensions dimensions,
                             const std::vector<std::int64_t>& own, const char* name) {
  const std::size_t b = shape.batch.size();
  bool good = dimensions.size() == b + own.size();
  for (std::size_t i = 0; good && i < b; ++i)
    good = dimensions[i] == 1 || dimensions[i] == shape.batch[i];
  for (std::size_t i = 0; good && i < own.size(); ++i)
    good = own[i] < 0 || dimensions[b + i] == own[i];
  return Check(good, std::string("blend: wrong shape of ") + name);
}

// Whether spheres move: given the interval of the times of each view's rays, [*B, V, 2] if they do.
inline bool Moves(const F32& interval) {
  const Dimensions d = interval.dimensions();
  return d.size() >= 2 && d.back() == 2;
}

// What the handlers are called with; `Context` is the platform's stream or thread pool.
template <typename Context>
auto BindScene() {
  return xla::ffi::Ffi::Bind()
      .Ctx<Context>()
      .template Arg<F32>()  // centers
      .template Arg<F32>()  // radii
      .template Arg<F32>()  // opacities
      .template Arg<F32>()  // features
      .template Arg<F32>()  // origins
      .template Arg<F32>()  // directions
      .template Arg<F32>()  // footprint
      .template Arg<F32>()  // velocities, times and interval: empty if nothing moves
      .template Arg<F32>()
      .template Arg<F32>();
}

template <typename Context>
auto BindBlend() {
  return BindScene<Context>()
      .template Arg<F32>()  // background
      .template Arg<F32>()  // limits
      .template Ret<F32>()  // features
      .template Ret<F32>()  // depth
      .template Ret<F32>()  // alpha
      .template Ret<S32>()  // ids
      .template Ret<S32>()  // counts
      .template Ret<F32>()  // normalizer
      .template Ret<S32>()  // last
      .template Ret<U8>()   // kept
      .template Ret<U8>()   // scratch
      .template Attr<std::int32_t>("kind")
      .template Attr<std::int32_t>("stop")
      .template Attr<float>("logit_stop")
      .template Attr<float>("min_transmittance")
      .template Attr<std::int32_t>("tile");
}

template <typename Context>
auto BindBlendVjp() {
  return BindScene<Context>()
      .template Arg<F32>()  // limits
      .template Arg<F32>()  // normalizer
      .template Arg<S32>()  // last
      .template Arg<S32>()  // ids
      .template Arg<U8>()   // kept
      .template Arg<F32>()  // d_features
      .template Arg<F32>()  // d_depth
      .template Arg<F32>()  // d_alpha
      .template Arg<F32>()  // level
      .template Ret<F32>()  // d_centers
      .template Ret<F32>()  // d_radii
      .template Ret<F32>()  // d_opacities
      .template Ret<F32>()  // d_features
      .template Ret<F32>()  // d_origins
      .template Ret<F32>()  // d_directions
      .template Ret<F32>()  // d_velocities
      .template Ret<F32>()  // d_times
      .template Ret<U8>()   // scratch
      .template Attr<std::int32_t>("kind")
      .template Attr<std::int32_t>("stop")
      .template Attr<float>("logit_stop")
      .template Attr<float>("min_transmittance")
      .template Attr<std::int32_t>("tile")
      .template Attr<std::int32_t>("need")
      .template Attr<std::int32_t>("gradient_hits");
}

}  // namespace jaxrec
