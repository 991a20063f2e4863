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

// Largest finite absolute value of an array.
__device__ __forceinline__ float PeakOf(const float* values, std::int64_t count, int start,
                                        int step) {
  float peak = 0;
#pragma unroll 4
  for (std::int64_t i = start; i < count; i += step) peak = fmaxf(peak, Finite(values[i]));
  return peak;
}
// The same of a view's part of a field, which lies in one piece: axes that are shared have no
// length.
__device__ __forceinline__ float PeakOf(const BlendCall& call, const PixelField& field, int pair,
                                        int channels, int start, int step) {
  const std::int64_t count = std::int64_t{field.y == 0 ? 1 : call.height} *
                             (field.x == 0 ? 1 : call.width) * (field.c == 0 ? 1 : channels);
  return PeakOf(FieldOf(call, field, pair, {0, 0, 0}), count, start, step);
}

// Zeroes the sums and finds the peaks.
template <typename Motion>
__global__ void __launch_bounds__(kThreads) FindPeaks(BlendCall call, Sums sums) {
  Follow();
  const int pair = blockIdx.y, problem = ProblemOf(call, pair);
  const int start = blockIdx.x * blockDim.x + threadIdx.x, step = gridDim.x * blockDim.x;
  const std::int64_t terms = std::int64_t{call.spheres} * (kFirstTerms<Motion> + call.channels);
  float feature = 0;
  if (ViewOf(call, pair) == 0) {
    double* zeroed = sums.terms + problem * terms;
    for (std::int64_t i = start; i < terms; i += step) zeroed[i] = 0;
    feature = PeakOf(DataOf(call.batch, call.features, problem),
                     std::int64_t{call.spheres} * call.channels, start, step);
  }
  Peaks& peaks = sums.peaks[problem];
  Raise(&peaks.feature, feature);
  Raise(&peaks.d_features, PeakOf(call, call.d_features, pair, call.channels, start, step));
  Raise(&peaks.d_depth, PeakOf(call, call.d_depth, pair, 1, start, step));
  Raise(&peaks.d_alpha, PeakOf(call, call.d_alpha, pair, 1, start, step));
  Raise(&peaks.level, PeakOf(call, call.level, pair, 2, start, step));
}

// A thread for each sphere.
template <typename Motion>
__global__ void __launch_bounds__(kThreads) Settle(BlendCall call, Sums sums) {
  Follow();
  const std::int64_t row = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (row >= std::int64_t{call.problems} * call.spheres) return;
  constexpr int kFirst = kFirstTerms<Motion>;
  const double* terms = sums.terms + row * (kFirst + call.channels);
  if (call.d_centers)
    for (int k = 0; k < 3; ++k) call.d_centers[3 * row + k] = static_cast<float>(terms[k]);
  if (call.d_radii) call.d_radii[row] = static_cast<float>(terms[3]);
  if (call.d_opacities) call.d_opacities[row] = static_cast<float>(terms[4]);
  if (call.d_sphere_features)
    for (int c = 0; c < call.channels; ++c)
      call.d_sphere_features[call.channels * row + c] = static_cast<float>(terms[kFirst + c]);
  if constexpr (Motion::kMoves)
    if (call.d_velocities)
      for (int k = 0; k < 3; ++k)
        call.d_velocities[3 * row + k] = static_cast<float>(terms[kSphereTerms + k]);
}

unsigned Blocks(std::int64_t items) {
  const std::int64_t blocks = (items + kThreads - 1) / kThreads;
  return static_cast<unsigned>(blocks < 1 ? 1 : blocks > 1056 ? 1056 : blocks);
}

constexpr std::size_t kPeaksBytes = 256;
static_assert(sizeof(Peaks) <= kPeaksBytes);

}  // namespace

std::size_t SumsBytes(std::int64_t spheres, std::int64_t channels, bool moves) {
  const int first = moves ? kFirstTerms<Linear> : kFirstTerms<Still>;
  return kPeaksBytes + sizeof(double) * spheres * (first + channels);
}

Sums StartSums(const BlendCall& call, void* memory, const Stream& stream) {
  const std::size_t peaks = kPeaksBytes * call.problems;
  // The sums are zeroed with the peaks, if there is a view.
  const std::size_t bytes =
      call.pairs > 0 ? peaks : SumsBytes(call.spheres, call.channels, call.moves) * call.problems;
  cudaMemsetAsync(memory, 0, bytes, stream.stream);
  Sums sums = {static_cast<Peaks*>(memory),
               reinterpret_cast<double*>(static_cast<char*>(memory) + peaks)};
  const std::int64_t rays = std::int64_t{call.height} * call.width;
  const std::int64_t items = rays > call.spheres ? rays : call.spheres;
  if (call.pairs > 0)
    stream.Launch(call.moves ? FindPeaks<Linear> : FindPeaks<Still>,
                  dim3(Blocks(items / 4), call.pairs), kThreads, 0, call, sums);
  return sums;
}

void SettleSums(const BlendCall& call, const Sums& sums, const Stream& stream) {
  const std::int64_t rows = std::int64_t{call.problems} * call.spheres;
  const unsigned blocks = static_cast<unsigned>((rows + kThreads - 1) / kThreads);
  if (rows > 0)
    stream.Launch(call.moves ? Settle<Linear> : Settle<Still>, blocks, kThreads, 0, call, sums);
}

}  // namespace jaxrec
