#include "cuda/forward.cuh"

namespace jaxrec {
namespace {

template <typename Policy, int kChannels>
Kernels ByTracked(const BlendCall& call) {
  if constexpr (kChannels <= 8)
    if (HasRows(call.height, call.width, call.channels, call.tracked))
      return KernelsOf<RowTile, Policy, kChannels, 0>();
  if (call.tracked == 0) return KernelsOf<SmallTile, Policy, kChannels, 0>();
  if (call.tracked <= 8) return KernelsOf<SmallTile, Policy, kChannels, 8>();
  return KernelsOf<SmallTile, Policy, kChannels, 128>();
}

template <typename Policy>
Kernels ByChannels(const BlendCall& call) {
  if (call.channels <= 3) return ByTracked<Policy, 3>(call);
  if (call.channels <= 8) return ByTracked<Policy, 8>(call);
  if (call.channels <= 16) return ByTracked<Policy, 16>(call);
  if (call.channels <= 32) return ByTracked<Policy, 32>(call);
  return ByTracked<Policy, 64>(call);
}

}  // namespace

const char* LaunchBlend(const BlendCall& call, cudaStream_t stream) {
  if (call.pairs == 0 || call.height == 0 || call.width == 0) return nullptr;
  if (call.tracked > 128) return "blend: nearest and gradient_hits go up to 128 on a GPU";
  const Kernels kernels = call.moves       ? MovingKernels(call)
                          : call.kind == 0 ? ByChannels<Softmax>(call)
                                           : ByChannels<Alpha>(call);
  Prepared p;
  const Stream follow = Stream::Of(stream);
  if (const char* error = Prepare(call, follow, &p)) return error;
  for (const Kernel& kernel : {kernels.forward, kernels.pairs}) {
    if (kernel.run == nullptr) continue;
    // As many blocks as the device holds, or, of several views, more, for their tiles differ.
    const int all = follow.processors * kernel.blocks * (call.pairs > 1 ? 4 : 1);
    const int of_view = (all + call.pairs - 1) / call.pairs, tiles = p.coarse.tiles();
    const dim3 grid(of_view < tiles ? of_view : tiles, call.pairs);
    follow.Launch(kernel.run, grid, kernel.threads, 0, call, p);
  }
  const cudaError_t status = cudaGetLastError();
  return status == cudaSuccess ? nullptr : cudaGetErrorString(status);
}

}  // namespace jaxrec
