#include "cuda/backward.cuh"

namespace jaxrec {
namespace {

// Few channels leave room for two rays in a thread, which share what a sphere costs a warp. Rows of
// a lidar share too few spheres for that.
template <typename Policy>
BackwardKernel ByChannels(const BlendCall& call) {
  const bool rows = HasRows(call.height, call.width, call.channels, call.tracked);
  if (call.channels <= 3)
    return rows ? BackwardKernelOf<RowTile, Policy, 3, 1>()
                : BackwardKernelOf<SmallTile, Policy, 3, 2>();
  if (call.channels <= 11)
    return rows ? BackwardKernelOf<RowTile, Policy, 11, 1>()
                : BackwardKernelOf<SmallTile, Policy, 11, 1>();
  if (call.channels <= 19) return BackwardKernelOf<SmallTile, Policy, 19, 1>();
  if (call.channels <= 35) return BackwardKernelOf<SmallTile, Policy, 35, 1>();
  return BackwardKernelOf<SmallTile, Policy, 64, 1>();
}

}  // namespace

const char* LaunchBlendVjp(const BlendCall& call, cudaStream_t stream) {
  if (SumsBytes(call.spheres, call.channels, call.moves) * call.problems > call.scratch_bytes)
    return "blend: scratch of the sums is too small";
  const Stream follow = Stream::Of(stream);
  const Sums sums = StartSums(call, call.scratch, follow);
  if (call.pairs > 0 && call.height > 0 && call.width > 0) {
    if (WalksBackward(call.kind, call.gradient_hits)) {
      Prepared p;
      if (const char* error = Restore(call, &p)) return error;
      const BackwardKernel kernel = call.moves       ? MovingBackwardKernel(call)
                                    : call.kind == 0 ? ByChannels<Softmax>(call)
                                                     : ByChannels<Alpha>(call);
      follow.Launch(kernel.run, dim3(p.coarse.tiles(), call.pairs), kernel.threads, 0, call, p,
                    sums);
    } else if (const char* error = LaunchNearestVjp(call, sums, follow)) {
      return error;
    }
  }
  SettleSums(call, sums, follow);
  const cudaError_t status = cudaGetLastError();
  return status == cudaSuccess ? nullptr : cudaGetErrorString(status);
}

}  // namespace jaxrec
