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
  const int pair = blockIdx.y, problem = ProblemOf(call, pair);
  const int start = blockIdx.x * blockDim.x + threadIdx.x, step = gridDim.x * blockDim.x;
  const int rays = call.height * call.width;
  float d_features = 0, d_depth = 0, d_alpha = 0, level = 0, feature = 0;
  const Pixel first = {0, 0, 0};
  const float* of_features = FieldOf(call, call.d_features, pair, first);
  const float* of_depth = FieldOf(call, call.d_depth, pair, first);
  const float* of_alpha = FieldOf(call, call.d_alpha, pair, first);
  const float* of_level = FieldOf(call, call.level, pair, first);
  const int down = step / call.width, along = step % call.width;
  Pixel p = {start % call.width, start / call.width, start};
  for (; p.index < rays; p.index += step) {
    const std::int64_t at = p.y * call.d_features.y + p.x * call.d_features.x;
    for (int c = 0; c < call.channels; ++c)
      d_features = fmaxf(d_features, Finite(of_features[at + c * call.d_features.c]));
    d_depth = fmaxf(d_depth, Finite(of_depth[p.y * call.d_depth.y + p.x * call.d_depth.x]));
    d_alpha = fmaxf(d_alpha, Finite(of_alpha[p.y * call.d_alpha.y + p.x * call.d_alpha.x]));
    const float* levels = of_level + p.y * call.level.y + p.x * call.level.x;
    level = fmaxf(level, fmaxf(Finite(levels[0]), Finite(levels[call.level.c])));
    p.x += along, p.y += down;
    if (p.x >= call.width) p.x -= call.width, ++p.y;
  }
  if (ViewOf(call, pair) == 0) {
    const float* features = DataOf(call.batch, call.features, problem);
    for (std::int64_t i = start; i < std::int64_t{call.spheres} * call.channels; i += step)
      feature = fmaxf(feature, Finite(features[i]));
  }
  Peaks& peaks = sums.peaks[problem];
  Raise(&peaks.d_features, d_features), Raise(&peaks.d_depth, d_depth);
  Raise(&peaks.d_alpha, d_alpha), Raise(&peaks.level, level), Raise(&peaks.feature, feature);
}

// A thread for each sphere.
__global__ void __launch_bounds__(kThreads) Settle(BlendCall call, Sums sums) {
  const std::int64_t row = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (row >= std::int64_t{call.problems} * call.spheres) return;
  const double* terms = sums.terms + row * (kSphereTerms + call.channels);
  if (call.d_centers)
    for (int k = 0; k < 3; ++k) call.d_centers[3 * row + k] = static_cast<float>(terms[k]);
  if (call.d_radii) call.d_radii[row] = static_cast<float>(terms[3]);
  if (call.d_opacities) call.d_opacities[row] = static_cast<float>(terms[4]);
  if (call.d_sphere_features)
    for (int c = 0; c < call.channels; ++c)
      call.d_sphere_features[call.channels * row + c] = static_cast<float>(terms[kSphereTerms + c]);
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
    FindPeaks<<<dim3(Blocks(items / 2), call.pairs), kThreads, 0, stream>>>(call, sums);
  return sums;
}

void SettleSums(const BlendCall& call, const Sums& sums, cudaStream_t stream) {
  const std::int64_t rows = std::int64_t{call.problems} * call.spheres;
  const unsigned blocks = static_cast<unsigned>((rows + kThreads - 1) / kThreads);
  if (rows > 0) Settle<<<blocks, kThreads, 0, stream>>>(call, sums);
}

}  // namespace jaxrec
