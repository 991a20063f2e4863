#include "cuda/sums.cuh"

namespace jaxrec {
namespace {

constexpr int kThreads = 256;

__device__ __forceinline__ float Finite(float x) { return fabsf(x) < INFINITY ? fabsf(x) : 0.0f; }

__device__ __forceinline__ void Raise(unsigned* peak, float x) {
  x = WarpMax(x);
  __shared__ float shared[kThreads / 32];
  __syncthreads();
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int w = 1; w < kThreads / 32; ++w) x = fmaxf(x, shared[w]);
  if (x > 0.0f) atomicMax(peak, __float_as_uint(x));
}

__global__ void __launch_bounds__(kThreads) FindPeaks(BlendCall call, Sums sums) {
  const int pair = blockIdx.y, problem = pair / call.views;
  const int start = blockIdx.x * blockDim.x + threadIdx.x, step = gridDim.x * blockDim.x;
  const int rays = call.height * call.width;
  float d_features = 0, d_depth = 0, d_alpha = 0, level = 0, feature = 0;
  const int down = step / call.width, along = step % call.width;
  Pixel p = {start % call.width, start / call.width, start};
  for (; p.index < rays; p.index += step) {
    for (int c = 0; c < call.channels; ++c)
      d_features = fmaxf(d_features, Finite(FieldAt(call, call.d_features, pair, p, c)));
    d_depth = fmaxf(d_depth, Finite(FieldAt(call, call.d_depth, pair, p, 0)));
    d_alpha = fmaxf(d_alpha, Finite(FieldAt(call, call.d_alpha, pair, p, 0)));
    for (int k = 0; k < 2; ++k) level = fmaxf(level, Finite(FieldAt(call, call.level, pair, p, k)));
    p.x += along, p.y += down;
    if (p.x >= call.width) p.x -= call.width, ++p.y;
  }
  if (pair % call.views == 0) {
    const float* features = DataOf(call.batch, call.features, problem);
    for (std::int64_t i = start; i < std::int64_t{call.spheres} * call.channels; i += step)
      feature = fmaxf(feature, Finite(features[i]));
  }
  Peaks& peaks = sums.peaks[problem];
  Raise(&peaks.d_features, d_features), Raise(&peaks.d_depth, d_depth);
  Raise(&peaks.d_alpha, d_alpha), Raise(&peaks.level, level), Raise(&peaks.feature, feature);
}

__global__ void __launch_bounds__(kThreads) Settle(BlendCall call, Sums sums) {
  const int terms = kSphereTerms + call.channels;
  const std::int64_t count = std::int64_t{call.problems} * call.spheres * terms;
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    const std::int64_t row = i / terms;
    const int term = static_cast<int>(i - row * terms);
    const float x = static_cast<float>(sums.terms[i]);
    if (term < 3) {
      if (call.d_centers) call.d_centers[3 * row + term] = x;
    } else if (term == 3) {
      if (call.d_radii) call.d_radii[row] = x;
    } else if (term == 4) {
      if (call.d_opacities) call.d_opacities[row] = x;
    } else if (call.d_sphere_features) {
      call.d_sphere_features[call.channels * row + term - kSphereTerms] = x;
    }
  }
}

unsigned Blocks(std::int64_t items) {
  const std::int64_t blocks = (items + kThreads - 1) / kThreads;
  return static_cast<unsigned>(blocks < 1 ? 1 : blocks > 4096 ? 4096 : blocks);
}

constexpr std::size_t kPeaksBytes = 256;
static_assert(sizeof(Peaks) <= kPeaksBytes);

}  // namespace

std::size_t SumsBytes(std::int64_t spheres, std::int64_t channels) {
  return kPeaksBytes + sizeof(double) * spheres * (kSphereTerms + channels);
}

Sums StartSums(const BlendCall& call, void* memory, cudaStream_t stream) {
  const std::size_t peaks = kPeaksBytes * call.problems;
  const std::size_t bytes = SumsBytes(call.spheres, call.channels) * call.problems;
  cudaMemsetAsync(memory, 0, bytes, stream);
  Sums sums = {static_cast<Peaks*>(memory),
               reinterpret_cast<double*>(static_cast<char*>(memory) + peaks)};
  const std::int64_t rays = std::int64_t{call.height} * call.width;
  const std::int64_t items = rays > call.spheres ? rays : call.spheres;
  if (call.pairs > 0)
    FindPeaks<<<dim3(Blocks(items / 8), call.pairs), kThreads, 0, stream>>>(call, sums);
  return sums;
}

void SettleSums(const BlendCall& call, const Sums& sums, cudaStream_t stream) {
  const std::int64_t count =
      std::int64_t{call.problems} * call.spheres * (kSphereTerms + call.channels);
  if (count > 0) Settle<<<Blocks(count), kThreads, 0, stream>>>(call, sums);
}

}  // namespace jaxrec
