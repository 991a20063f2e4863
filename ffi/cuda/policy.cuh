// The blending policies as a call sets them.
#pragma once

#include "cuda/tile.cuh"

namespace jaxrec {

template <typename Policy>
struct PolicyOf;

template <>
struct PolicyOf<Softmax> {
  static __device__ Softmax Make(const BlendCall& call, const ViewState& view) {
    return {view.range, 1.0f / (view.gamma * (view.range.far - view.range.near)),
            view.background_depth / view.gamma, call.logit_stop};
  }
};

template <>
struct PolicyOf<Alpha> {
  static __device__ Alpha Make(const BlendCall& call, const ViewState& view) {
    return {view.range, call.min_transmittance};
  }
};

}  // namespace jaxrec
