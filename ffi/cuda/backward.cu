#include "cuda/backward.cuh"

namespace jaxrec {
namespace {

using Kernel = void (*)(BlendCall, Prepared, Sums);

template <typename Policy>
Kernel ByChannels(const BlendCall& call) {
  const bool rows = HasRows(call.height, call.width, call.channels, call.tracked);
  if (call.channels <= 3)
    return rows ? Backward<RowTile, Policy, 3, SphereSums>
                : Backward<SmallTile, Policy, 3, SphereSums>;
  if (call.channels <= 11)
    return rows ? Backward<RowTile, Policy, 11, SphereSums>
                : Backward<SmallTile, Policy, 11, SphereSums>;
  if (call.channels <= 19) return Backward<SmallTile, Policy, 19, SphereSums>;
  return Backward<SmallTile, Policy, 64, SphereSums>;
}

}  // namespace

const char* LaunchBlendVjp(const BlendCall& call, cudaStream_t stream) {
  if (SumsBytes(call.spheres, call.channels) * call.problems > call.scratch_bytes)
    return "blend: scratch of the sums is too small";
  const Sums sums = StartSums(call, call.scratch, stream);
  if (call.pairs > 0 && call.height > 0 && call.width > 0) {
    if (WalksBackward(call.kind, call.gradient_hits)) {
      Prepared p;
      if (const char* error = Restore(call, &p)) return error;
      const Kernel kernel = call.kind == 0 ? ByChannels<Softmax>(call) : ByChannels<Alpha>(call);
      kernel<<<dim3(p.coarse.tiles(), call.pairs), kQueue, 0, stream>>>(call, p, sums);
    } else if (const char* error = LaunchNearestVjp(call, sums, stream)) {
      return error;
    }
  }
  SettleSums(call, sums, stream);
  const cudaError_t status = cudaGetLastError();
  return status == cudaSuccess ? nullptr : cudaGetErrorString(status);
}

}  // namespace jaxrec
