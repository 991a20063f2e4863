// How gradients of spheres are best added up: the backward kernel with each way
// to do it, over sizes of scene, sphere and feature. Prints JSON lines;
// bench/gpu.sh builds and runs it.
//
//   plain          every ray adds its own terms
//   vector         the same, four terms at a time (sm_90)
//   butterfly      terms are summed over the warp first
//   serialised     butterfly where more than 8 rays of a warp hit, else plain (DISTWAR, Durvasula
//                  2023)
//   reproducible   butterfly, terms rounded to a grid and added in double: what the library does
//   sphere         a thread takes a sphere and goes through the tile's rays (softmax alone; it has
//                  no gradients of rays)
//
// Times are medians of 3 runs, of 10 launches each, zeroing and settling of the sums included.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

#include "cuda/backward.cuh"

namespace jaxrec {
namespace {

constexpr int kWidth = 1000, kHeight = 1000;
constexpr float kNear = 5.000002f, kFar = 45.0f, kGamma = 0.1f, kFocal = 5.0f, kSensor = 2.0f;

void Check(cudaError_t status) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "scatter: %s\n", cudaGetErrorString(status));
  std::exit(1);
}
void Check(const char* error) {
  if (error == nullptr) return;
  std::fprintf(stderr, "scatter: %s\n", error);
  std::exit(1);
}

template <typename T>
T* Upload(const std::vector<T>& values) {
  T* p;
  Check(cudaMalloc(&p, values.size() * sizeof(T)));
  Check(cudaMemcpy(p, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
  return p;
}
template <typename T>
T* Allocate(std::size_t count) {
  T* p;
  Check(cudaMalloc(&p, count * sizeof(T)));
  return p;
}

// Sums in single precision: rows of `stride` floats, a multiple of four, added to in one of the
// ways.
enum class Way { kPlain, kVector, kButterfly, kSerialised };

template <Way kWay>
struct Rows {
  float* base;
  int terms, stride;

  static __device__ Rows Of(const BlendCall& call, const Sums& sums, int) {
    const int terms = kSphereTerms + call.channels;
    return {reinterpret_cast<float*>(sums.terms), terms, (terms + 3) / 4 * 4};
  }
  template <Way kOther>
  __device__ Rows<kOther> By() const {
    return {base, terms, stride};
  }
  __device__ float* Row(int id) const { return base + static_cast<std::size_t>(id) * stride; }
};
using Plain = Rows<Way::kPlain>;
using Vector = Rows<Way::kVector>;
using Butterfly = Rows<Way::kButterfly>;
using Serialised = Rows<Way::kSerialised>;

template <int kTerms>
__device__ __forceinline__ bool HasAny(const float (&v)[kTerms]) {
  bool any = false;
#pragma unroll
  for (int k = 0; k < kTerms; ++k) any = any || v[k] != 0.0f;
  return any;
}

template <int kTerms>
__device__ __forceinline__ void Scatter(const Plain& out, const Grids&, float, int id,
                                        const float (&v)[kTerms]) {
#pragma unroll
  for (int k = 0; k < kTerms; ++k)
    if (k < out.terms && v[k] != 0.0f) atomicAdd(out.Row(id) + k, v[k]);
}

template <int kTerms>
__device__ __forceinline__ void Scatter(const Vector& out, const Grids&, float, int id,
                                        const float (&v)[kTerms]) {
  if (!HasAny(v)) return;
#pragma unroll
  for (int k = 0; k < kTerms; k += 4)
    if (k < out.stride)
      atomicAdd(reinterpret_cast<float4*>(out.Row(id) + k),
                make_float4(v[k], v[k + 1], v[k + 2], v[k + 3]));
}

template <int kTerms>
__device__ __forceinline__ void Scatter(const Butterfly& out, const Grids&, float, int id,
                                        const float (&v)[kTerms]) {
  ForWarpSums(v, [&](int term, float sum) {
    if (term < out.terms && sum != 0.0f) atomicAdd(out.Row(id) + term, sum);
  });
}

template <int kTerms>
__device__ __forceinline__ void Scatter(const Serialised& out, const Grids& grids, float feature,
                                        int id, const float (&v)[kTerms]) {
  const bool any = HasAny(v);
  if (__popc(__ballot_sync(~0u, any)) > 8)
    Scatter(out.template By<Way::kButterfly>(), grids, feature, id, v);
  else if (any)
    Scatter(out.template By<Way::kPlain>(), grids, feature, id, v);
}

// Rays of a tile as a thread that owns a sphere reads them.
template <int kChannels>
struct TileRays {
  float nx[kQueue], ny[kQueue], nz[kQueue];
  float m[kQueue], inverse_total[kQueue], level[kQueue], d_depth[kQueue], d_alpha[kQueue];
  float d_features[kChannels][kQueue];
  int last[kQueue];
};

template <int kChannels>
__global__ void __launch_bounds__(kQueue) BySphere(BlendCall call, Prepared p, Sums sums) {
  extern __shared__ float4 memory[];
  auto& rays = *reinterpret_cast<TileRays<kChannels>*>(memory);
  __shared__ TileBounds bounds;
  __shared__ PullQueue queue;
  const int pair = blockIdx.y, at = threadIdx.x;
  const Place place = Place::At(p.coarse, blockIdx.x);
  const PairData data = p.Of(call, pair);
  const LaneRay t = RayOf<SmallTile>(call, pair, place, threadIdx.x / 32);
  LoadBounds<SmallTile, 1>(data, place.index, &bounds);
  __syncthreads();
  const ViewState& view = bounds.view;
  const Softmax policy = MakePolicy<Softmax>(call, view);
  Upstream<kChannels> up;
  Pixel pixel;
  PixelOf<SmallTile>(call, place.x, place.y, threadIdx.x / 32, &pixel);
  if (t.valid) LoadUpstream(call, pair, pixel, false, &up);
  rays.nx[at] = t.ray.nx, rays.ny[at] = t.ray.ny, rays.nz[at] = t.ray.nz;
  rays.m[at] = up.first, rays.inverse_total[at] = 1.0f / up.second, rays.level[at] = up.level;
  rays.d_depth[at] = up.d_depth, rays.d_alpha[at] = up.d_alpha, rays.last[at] = up.last;
  for (int c = 0; c < kChannels; ++c) rays.d_features[c][at] = up.d_features[c];
  int limit = up.last;
  for (int d = 16; d > 0; d /= 2) limit = max(limit, __shfl_xor_sync(~0u, limit, d));
  __shared__ int limits[kQueue / 32];
  if (at % 32 == 0) limits[at / 32] = limit;
  __syncthreads();
  for (int w = 0; w < kQueue / 32; ++w) limit = max(limit, limits[w]);
  const Butterfly out = Butterfly::Of(call, sums, 0);
  const CentralPullPath<Softmax> path = {{{&queue}, call, view, policy}, {}, nullptr};
  const float* features = call.features.data;
  WalkTile<kQueue>(call, p, pair, data, place, &bounds, path, [&](int waiting, bool) {
    if (path.Rank(0) > limit) return false;
    if (at >= waiting) return true;
    const auto sphere = path.Load(at);
    const int id = path.Id(at), rank = path.Rank(at);
    const CentralInverse inverse = {queue.more[at].x, queue.more[at].y};
    float feature[kChannels], v[kSphereTerms + kChannels] = {};
    for (int c = 0; c < kChannels; ++c) feature[c] = features[std::int64_t{id} * kChannels + c];
    for (int k = 0; k < kQueue; ++k) {
      const float nx = rays.nx[k], ny = rays.ny[k], nz = rays.nz[k];
      const float s = SquaredChord(nx, ny, nz, sphere.x, sphere.y, sphere.z);
      if (s > sphere.hit || rank > rays.last[k]) continue;
      const auto hit = policy.Weigh(s, sphere);
      float value = rays.d_alpha[k] + rays.d_depth[k] * policy.Depth(s, sphere, hit);
      for (int c = 0; c < kChannels; ++c) value += rays.d_features[c][k] * feature[c];
      float share;
      const auto d = policy.PullCentral(s, sphere, inverse, hit, rays.m[k], rays.inverse_total[k],
                                        rays.level[k], value, rays.d_depth[k], &share);
      const float gamma = 2.0f * inverse.distance * d.chord;
      const float beta = d.distance + gamma * (1.0f - 0.5f * s);
      v[0] += beta * sphere.x - gamma * nx, v[1] += beta * sphere.y - gamma * ny;
      v[2] += beta * sphere.z - gamma * nz, v[3] += d.radius, v[4] += d.opacity;
      for (int c = 0; c < kChannels; ++c) v[kSphereTerms + c] += share * rays.d_features[c][k];
    }
    for (int k = 0; k < kSphereTerms + kChannels; ++k)
      if (v[k] != 0.0f) atomicAdd(out.Row(id) + k, v[k]);
    return true;
  });
}

struct Scene {
  BlendCall call;
  int spheres, channels;
};

Scene MakeScene(int spheres, float pixels, int channels, int kind) {
  std::mt19937 draw(1);
  std::uniform_real_distribution<float> unit(0.0f, 1.0f);
  std::vector<float> centers, radii, features;
  const float pitch = kSensor / kWidth;
  for (int i = 0; i < spheres; ++i) {
    const float z = 25.0f + 10.0f * unit(draw);
    centers.insert(centers.end(), {10.0f * unit(draw) - 5.0f, 10.0f * unit(draw) - 5.0f, z});
    radii.push_back(pixels * pitch / kFocal * z);
    for (int c = 0; c < channels; ++c) features.push_back(unit(draw));
  }
  std::vector<float> origins(3 * kWidth * kHeight, 0.0f), directions;
  for (int y = 0; y < kHeight; ++y)
    for (int x = 0; x < kWidth; ++x) {
      const float u = (x - 0.5f * (kWidth - 1)) * pitch, w = (y - 0.5f * (kHeight - 1)) * pitch;
      const float length = std::sqrt(u * u + w * w + kFocal * kFocal);
      directions.insert(directions.end(), {u / length, w / length, kFocal / length});
    }
  Scene scene = {{}, spheres, channels};
  BlendCall& call = scene.call;
  call.problems = call.views = call.pairs = 1;
  call.spheres = spheres, call.channels = channels, call.height = kHeight, call.width = kWidth;
  call.kind = kind, call.stop = kind == 0 ? kStopPerSphere : kStopNever;
  call.logit_stop = std::log(0.01f / 0.99f), call.min_transmittance = 1e-4f;
  call.need = 0x3f;
  call.centers.data = Upload(centers), call.radii.data = Upload(radii);
  call.opacities.data = Upload(std::vector<float>(spheres, kind == 0 ? 1.0f : 0.99f));
  call.features.data = Upload(features);
  call.origins.data = Upload(origins), call.directions.data = Upload(directions);
  call.footprint.data = Upload(std::vector<float>{0.0f, 0.5f * pitch / kFocal});
  call.limits.data = Upload(std::vector<float>{kNear, kFar, kGamma, 1e-6f});
  const float* ones = Upload(std::vector<float>(channels, 1.0f));
  call.background.base.data = ones, call.background.c = 1;
  const std::size_t rays = std::size_t{kWidth} * kHeight;
  call.out_features = Allocate<float>(rays * channels), call.out_depth = Allocate<float>(rays);
  call.out_alpha = Allocate<float>(rays), call.ids = Allocate<std::int32_t>(1);
  call.counts = Allocate<std::int32_t>(rays), call.last = Allocate<std::int32_t>(rays);
  call.normalizer = Allocate<float>(2 * rays);
  call.kept_bytes = BlendKept(spheres, kHeight, kWidth, channels, 0);
  call.kept.data = Allocate<char>(call.kept_bytes);
  call.scratch_bytes = BlendScratch(spheres, 1, kHeight, kWidth, channels, 0);
  call.scratch = Allocate<char>(call.scratch_bytes);
  Check(LaunchBlend(call, nullptr));
  Check(cudaDeviceSynchronize());
  // The sum of the image is what is differentiated.
  std::vector<float> image(rays * channels), level(2 * rays);
  Check(cudaMemcpy(image.data(), call.out_features, image.size() * sizeof(float),
                   cudaMemcpyDeviceToHost));
  for (std::size_t i = 0; i < rays; ++i) {
    for (int c = 0; c < channels; ++c) level[2 * i] += image[i * channels + c];
    level[2 * i + 1] = static_cast<float>(channels);
  }
  call.saved_normalizer.data = call.normalizer, call.saved_last.data = call.last;
  call.saved_ids.data = call.ids;
  call.d_features.base.data = ones, call.d_features.c = 1;
  call.d_depth.base.data = call.d_alpha.base.data = Upload(std::vector<float>{0.0f});
  call.level.base.data = Upload(level);
  call.level.c = 1, call.level.x = 2, call.level.y = 2 * kWidth;
  call.d_centers = Allocate<float>(3 * std::size_t(spheres));
  call.d_radii = Allocate<float>(spheres), call.d_opacities = Allocate<float>(spheres);
  call.d_sphere_features = Allocate<float>(std::size_t(spheres) * channels);
  call.d_origins = Allocate<float>(3 * rays), call.d_directions = Allocate<float>(3 * rays);
  cudaFree(call.scratch);
  call.scratch_bytes = SumsBytes(spheres, channels, false) + 16 * std::size_t(spheres);
  call.scratch = Allocate<char>(call.scratch_bytes);
  return scene;
}

template <typename Launch>
float Median(Launch launch) {
  cudaEvent_t begin, end;
  Check(cudaEventCreate(&begin));
  Check(cudaEventCreate(&end));
  std::vector<float> times;
  for (int run = 0; run < 4; ++run) {  // the first warms up
    Check(cudaEventRecord(begin));
    for (int i = 0; i < 10; ++i) launch();
    Check(cudaEventRecord(end));
    Check(cudaEventSynchronize(end));
    float ms;
    Check(cudaEventElapsedTime(&ms, begin, end));
    if (run > 0) times.push_back(ms / 10);
  }
  Check(cudaGetLastError());
  std::sort(times.begin(), times.end());
  return times[1];
}

// Sums of the absolute values of some terms, to see that all ways agree.
double Size(const BlendCall& call, const void* rows, bool doubles) {
  const int terms = kSphereTerms + call.channels, stride = doubles ? terms : (terms + 3) / 4 * 4;
  const std::size_t count = std::size_t(call.spheres) * stride;
  double sum = 0;
  if (doubles) {
    std::vector<double> values(count);
    Check(cudaMemcpy(values.data(), rows, count * sizeof(double), cudaMemcpyDeviceToHost));
    for (double x : values) sum += std::fabs(x);
  } else {
    std::vector<float> values(count);
    Check(cudaMemcpy(values.data(), rows, count * sizeof(float), cudaMemcpyDeviceToHost));
    for (float x : values) sum += std::fabs(x);
  }
  return sum;
}

template <typename Policy, int kChannels>
void Run(const Scene& scene, float pixels, const char* kind) {
  const BlendCall& call = scene.call;
  Prepared p;
  Check(Restore(call, &p));
  double expected = 0;
  const auto report = [&](const char* name, float ms, double size) {
    if (expected == 0) expected = size;
    std::printf(
        "{\"case\": \"scatter\", \"kind\": \"%s\", \"spheres\": %d, "
        "\"pixels\": %g, "
        "\"channels\": %d, \"way\": \"%s\", \"ms\": %.4f, \"off\": %.1e}\n",
        kind, call.spheres, pixels, call.channels, name, ms, size / expected - 1.0);
    std::fflush(stdout);
  };
  const dim3 grid(p.coarse.tiles());
  const std::size_t bytes =
      sizeof(float) * ((kSphereTerms + call.channels + 3) / 4 * 4) * std::size_t(call.spheres);
  Sums sums = {static_cast<Peaks*>(call.scratch),
               reinterpret_cast<double*>(static_cast<char*>(call.scratch) + 256)};
  constexpr int kEach = kChannels <= 3 ? 2 : 1;  // as the library has it
  const auto time = [&](const char* name, auto kernel, int threads, int shared) {
    const float ms = Median([&] {
      cudaMemsetAsync(sums.terms, 0, bytes);
      kernel<<<grid, threads, shared>>>(call, p, sums);
    });
    cudaMemset(sums.terms, 0, bytes);
    kernel<<<grid, threads, shared>>>(call, p, sums);
    report(name, ms, Size(call, sums.terms, false));
  };
  time("plain", Backward<SmallTile, Policy, kChannels, Plain, kEach>, kQueue / kEach, 0);
#if JAXREC_BENCH_VECTOR
  time("vector", Backward<SmallTile, Policy, kChannels, Vector, kEach>, kQueue / kEach, 0);
#endif
  time("butterfly", Backward<SmallTile, Policy, kChannels, Butterfly, kEach>, kQueue / kEach, 0);
  time("serialised", Backward<SmallTile, Policy, kChannels, Serialised, kEach>, kQueue / kEach, 0);
  if constexpr (!Policy::kOrdered) {
    constexpr int kShared = sizeof(TileRays<kChannels>);
    Check(cudaFuncSetAttribute(BySphere<kChannels>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               kShared));
    time("sphere", BySphere<kChannels>, kQueue, kShared);
  }
  const float ms = Median([&] { Check(LaunchBlendVjp(call, nullptr)); });
  report("reproducible", ms, Size(call, sums.terms, true));
}

void Free(const Scene& scene) {
  const BlendCall& c = scene.call;
  for (const void* p : {(const void*)c.centers.data,
                        (const void*)c.radii.data,
                        (const void*)c.opacities.data,
                        (const void*)c.features.data,
                        (const void*)c.origins.data,
                        (const void*)c.directions.data,
                        (const void*)c.footprint.data,
                        (const void*)c.limits.data,
                        (const void*)c.background.base.data,
                        (const void*)c.out_features,
                        (const void*)c.out_depth,
                        (const void*)c.out_alpha,
                        (const void*)c.ids,
                        (const void*)c.counts,
                        (const void*)c.last,
                        (const void*)c.normalizer,
                        (const void*)c.kept.data,
                        (const void*)c.scratch,
                        (const void*)c.d_depth.base.data,
                        (const void*)c.level.base.data,
                        (const void*)c.d_centers,
                        (const void*)c.d_radii,
                        (const void*)c.d_opacities,
                        (const void*)c.d_sphere_features,
                        (const void*)c.d_origins,
                        (const void*)c.d_directions})
    cudaFree(const_cast<void*>(p));
}

}  // namespace
}  // namespace jaxrec

int main() {
  using namespace jaxrec;
  for (int kind = 0; kind < 2; ++kind)
    for (int spheres : {10000, 100000, 1000000})
      for (float pixels : {1.0f, 4.0f, 16.0f, 64.0f})
        for (int channels : {3, 16}) {
          const Scene scene = MakeScene(spheres, pixels, channels, kind);
          if (kind == 0 && channels == 3) Run<Softmax, 3>(scene, pixels, "softmax");
          if (kind == 0 && channels == 16) Run<Softmax, 16>(scene, pixels, "softmax");
          if (kind == 1 && channels == 3) Run<Alpha, 3>(scene, pixels, "alpha");
          if (kind == 1 && channels == 16) Run<Alpha, 16>(scene, pixels, "alpha");
          Free(scene);
        }
  return 0;
}
