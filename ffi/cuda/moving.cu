// The kernels for spheres that move: of few channels, and of any number.
#include "cuda/backward.cuh"
#include "cuda/forward.cuh"

namespace jaxrec {
namespace {

constexpr int kFewChannels = 3, kAnyChannels = 64;

template <typename Policy>
Kernels ForwardOf(const BlendCall& call) {
  const bool few = call.channels <= kFewChannels;
  if (HasRows(call.height, call.width, call.channels, call.tracked))
    return few ? KernelsOf<RowTile, Policy, kFewChannels, 0, Linear>()
               : KernelsOf<RowTile, Policy, kAnyChannels, 0, Linear>();
  if (call.tracked > 0) return KernelsOf<SmallTile, Policy, kAnyChannels, 128, Linear>();
  return few ? KernelsOf<SmallTile, Policy, kFewChannels, 0, Linear>()
             : KernelsOf<SmallTile, Policy, kAnyChannels, 0, Linear>();
}

template <typename Policy>
BackwardKernel BackwardOf(const BlendCall& call) {
  const bool few = call.channels <= kFewChannels;
  if (HasRows(call.height, call.width, call.channels, call.tracked))
    return few ? BackwardKernelOf<RowTile, Policy, kFewChannels, 1, Linear>()
               : BackwardKernelOf<RowTile, Policy, kAnyChannels, 1, Linear>();
  return few ? BackwardKernelOf<SmallTile, Policy, kFewChannels, 1, Linear>()
             : BackwardKernelOf<SmallTile, Policy, kAnyChannels, 1, Linear>();
}

}  // namespace

Kernels MovingKernels(const BlendCall& call) {
  return call.kind == 0 ? ForwardOf<Softmax>(call) : ForwardOf<Alpha>(call);
}

BackwardKernel MovingBackwardKernel(const BlendCall& call) {
  return call.kind == 0 ? BackwardOf<Softmax>(call) : BackwardOf<Alpha>(call);
}

}  // namespace jaxrec
