// Kernels that follow one another: each is started while the one before it ends.
//
// On devices from 9.0 on the blocks of a kernel come in as soon as all those of the kernel before
// have begun, and wait where they say Follow() (programmatic dependent launch, CUDA programming
// guide 4.5). Kernels in between that know nothing of this end first, as ever.
#pragma once

#include <cuda_runtime.h>

namespace jaxrec {

// Waits until the kernels before this one are done and what they wrote can be seen. To be called
// by all threads before they touch memory.
__device__ __forceinline__ void Follow() {
#if __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
  cudaGridDependencySynchronize();
#endif
}

// Where kernels of a call go.
struct Stream {
  cudaStream_t stream;
  bool overlaps;   // whether the device can
  int processors;  // multiprocessors of the device

  static Stream Of(cudaStream_t stream) {
    int device = 0, major = 0, processors = 1;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
    return {stream, major >= 9, processors};
  }

  // Enqueues a kernel that begins with Follow().
  template <typename... Parameters, typename... Arguments>
  void Launch(void (*kernel)(Parameters...), dim3 blocks, int threads, int shared,
              Arguments... arguments) const {
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = blocks, config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared, config.stream = stream;
    config.attrs = &attribute, config.numAttrs = overlaps ? 1 : 0;
    cudaLaunchKernelEx(&config, kernel, arguments...);
  }
};

}  // namespace jaxrec
