// Small calls of every path of the CUDA kernels, in buffers of exactly the right size, to be run
// under `compute-sanitizer`: both kinds; 3, 8, 16, 32 and 40 channels; a camera over large and over
// small spheres, rays that start in many places, parallel rays, long rows; spheres that move, seen
// by each of these; images of which no side is a multiple of a tile's; no ids, a few and many; two
// views of two problems; no sphere at all.
//
//   nvcc -arch=native -std=c++17 -Iffi tests/native/blend_paths.cu
//   ffi/cuda/{prepare,forward,...}.cu
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <tuple>
#include <vector>

#include "cuda/blend.h"

namespace jaxrec {
namespace {

void Check(cudaError_t status) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "blend_paths: %s\n", cudaGetErrorString(status));
  std::exit(1);
}
void Check(const char* error) {
  if (error == nullptr) return;
  std::fprintf(stderr, "blend_paths: %s\n", error);
  std::exit(1);
}

// Device memory that lives as long as the call.
struct Memory {
  std::vector<void*> pieces;

  ~Memory() {
    for (void* piece : pieces) cudaFree(piece);
  }
  template <typename T>
  T* Allocate(std::size_t count) {
    void* piece = nullptr;
    Check(cudaMalloc(&piece, count > 0 ? count * sizeof(T) : 1));
    pieces.push_back(piece);
    return static_cast<T*>(piece);
  }
  const float* Upload(const std::vector<float>& values) {
    float* piece = Allocate<float>(values.size());
    Check(cudaMemcpy(piece, values.data(), values.size() * sizeof(float), cudaMemcpyHostToDevice));
    return piece;
  }
};

enum class RaysOf { kCamera, kMoving, kParallel };

struct Case {
  const char* name;
  int kind, channels, tracked, width, height, spheres;
  float radius;
  RaysOf rays;
  bool moves = false;
};

constexpr int kProblems = 2, kViews = 2;

void AddRay(const Case& c, int x, int y, std::vector<float>* origins,
            std::vector<float>* directions) {
  const float u = (x + 0.5f) / c.width - 0.5f, v = (y + 0.5f) / c.height - 0.5f;
  const bool parallel = c.rays == RaysOf::kParallel;
  const float length = parallel ? 1.0f : std::sqrt(u * u + v * v + 1.0f);
  const float moved = c.rays == RaysOf::kMoving ? 0.1f * v : 0.0f;
  origins->insert(origins->end(), {parallel ? 4 * u : moved, parallel ? 4 * v : 0.0f, 0.0f});
  directions->insert(directions->end(),
                     {parallel ? 0.0f : u / length, parallel ? 0.0f : v / length, 1.0f / length});
}

void Run(const Case& c) {
  Memory memory;
  std::mt19937 draw(1);
  std::uniform_real_distribution<float> unit(0.0f, 1.0f);
  std::vector<float> centers, radii, opacities, features, velocities;
  std::vector<float> origins, directions, times;
  for (int i = 0; i < c.spheres * kProblems; ++i) {
    centers.insert(centers.end(), {4 * unit(draw) - 2, 4 * unit(draw) - 2, 3 + 3 * unit(draw)});
    radii.push_back(c.radius * unit(draw)), opacities.push_back(unit(draw));
    for (int k = 0; k < c.channels; ++k) features.push_back(unit(draw));
    for (int k = 0; c.moves && k < 3; ++k) velocities.push_back(4 * unit(draw) - 2);
  }
  for (int view = 0; view < kViews; ++view)
    for (int y = 0; y < c.height; ++y)
      for (int x = 0; x < c.width; ++x) {
        AddRay(c, x, y, &origins, &directions);
        if (c.moves) times.push_back(static_cast<float>(y) / c.height);
      }

  BlendCall call = {};
  call.batch.rank = 1, call.batch.size[0] = kProblems;
  call.problems = kProblems, call.views = kViews, call.pairs = kProblems * kViews;
  call.spheres = c.spheres, call.channels = c.channels;
  call.height = c.height, call.width = c.width;
  call.kind = c.kind, call.stop = 1, call.tracked = c.tracked, call.need = 0xff;
  call.logit_stop = std::log(0.01f / 0.99f), call.min_transmittance = 1e-4f;
  const auto batched = [&](const std::vector<float>& values, std::int64_t stride) {
    Batched<const float> array = {memory.Upload(values), {}};
    array.stride[0] = stride;
    return array;
  };
  call.centers = batched(centers, 3 * c.spheres), call.radii = batched(radii, c.spheres);
  call.opacities = batched(opacities, c.spheres);
  call.features = batched(features, std::int64_t{c.channels} * c.spheres);
  call.origins = batched(origins, 0), call.directions = batched(directions, 0);
  const float spread = c.rays == RaysOf::kParallel ? 0.0f : 0.5f / c.width;
  call.footprint = batched({0.5f / c.width - spread, spread, 0.5f / c.width - spread, spread}, 0);
  call.limits = batched({0.1f, 10.0f, 0.1f, 1e-6f}, 0);
  call.moves = c.moves;
  if (c.moves) {
    call.velocities = batched(velocities, 3 * c.spheres), call.times = batched(times, 0);
    call.interval = batched({0.5f, 0.5f, 0.5f, 0.5f}, 0);
  }
  const std::vector<float> ones(c.channels, 1.0f), zero(1, 0.0f);
  call.background.base = batched(ones, 0), call.background.c = 1;

  const std::size_t rays = std::size_t(c.width) * c.height * kViews * kProblems;
  call.out_features = memory.Allocate<float>(rays * c.channels);
  call.out_depth = memory.Allocate<float>(rays), call.out_alpha = memory.Allocate<float>(rays);
  call.ids = memory.Allocate<std::int32_t>(rays * c.tracked);
  call.counts = memory.Allocate<std::int32_t>(rays);
  call.last = memory.Allocate<std::int32_t>(rays);
  call.normalizer = memory.Allocate<float>(2 * rays);
  call.kept_bytes = BlendKept(c.spheres, c.height, c.width, c.channels, c.tracked);
  call.kept = {memory.Allocate<char>(call.kept_bytes * kViews * kProblems), {}};
  call.kept.stride[0] = call.kept_bytes * kViews;
  call.scratch_bytes =
      kProblems * BlendScratch(c.spheres, kViews, c.height, c.width, c.channels, c.tracked);
  call.scratch = memory.Allocate<char>(call.scratch_bytes);
  Check(LaunchBlend(call, nullptr));
  Check(cudaDeviceSynchronize());

  const std::int64_t of_problem = rays / kProblems;
  call.saved_normalizer = {call.normalizer, {2 * of_problem}};
  call.saved_last = {call.last, {of_problem}};
  call.saved_ids = {call.ids, {of_problem * c.tracked}};
  call.d_features.base = batched(ones, 0), call.d_features.c = 1;
  call.d_depth.base = call.d_alpha.base = batched(zero, 0);
  call.level.base = batched(std::vector<float>(2 * rays, 0.5f), 2 * of_problem);
  call.level.c = 1, call.level.x = 2, call.level.y = 2 * c.width;
  call.level.v = 2 * std::int64_t{c.width} * c.height;
  const std::size_t all = std::size_t(c.spheres) * kProblems;
  call.d_centers = memory.Allocate<float>(3 * all), call.d_radii = memory.Allocate<float>(all);
  call.d_opacities = memory.Allocate<float>(all);
  call.d_sphere_features = memory.Allocate<float>(c.channels * all);
  call.d_origins = memory.Allocate<float>(3 * rays);
  call.d_directions = memory.Allocate<float>(3 * rays);
  if (c.moves) {
    call.d_velocities = memory.Allocate<float>(3 * all);
    call.d_times = memory.Allocate<float>(rays);
  }
  call.scratch_bytes = kProblems * SumsBytes(c.spheres, c.channels, c.moves);
  call.scratch = memory.Allocate<char>(call.scratch_bytes);
  for (const int hits : {0, c.tracked}) {
    if (hits == 0 || c.tracked > 0) {
      call.gradient_hits = hits;
      Check(LaunchBlendVjp(call, nullptr));
    }
    Check(cudaDeviceSynchronize());
  }
  std::vector<float> gradient(3 * all);
  Check(cudaMemcpy(gradient.data(), call.d_centers, gradient.size() * sizeof(float),
                   cudaMemcpyDeviceToHost));
  double size = 0;
  for (const float g : gradient) size += std::fabs(g);
  std::printf("%-8s %s, %d channels, %d ids: gradient %.4g\n", c.name,
              c.kind == 0 ? "softmax" : "alpha", c.channels, c.tracked, size);
  if (!std::isfinite(size) || (c.spheres > 0 && size == 0)) {
    std::fprintf(stderr, "blend_paths: a gradient of %g, want a finite one that is not zero\n",
                 size);
    std::exit(1);
  }
}

}  // namespace
}  // namespace jaxrec

int main() {
  using jaxrec::RaysOf;
  for (const int kind : {0, 1}) {
    for (const int channels : {3, 8, 16, 32, 40})
      for (const auto& [name, radius, rays] :
           {std::tuple("large", 0.5f, RaysOf::kCamera), std::tuple("small", 0.02f, RaysOf::kCamera),
            std::tuple("moving", 0.2f, RaysOf::kMoving),
            std::tuple("parallel", 0.2f, RaysOf::kParallel)})
        for (const bool moves : {false, true})
          jaxrec::Run({name, kind, channels, 0, 57, 43, 1500, radius, rays, moves});
    for (const bool moves : {false, true}) {
      for (const int tracked : {5, 100})
        jaxrec::Run({"ids", kind, 3, tracked, 57, 43, 1500, 0.2f, RaysOf::kCamera, moves});
      for (const int channels : {3, 8})
        jaxrec::Run({"rows", kind, channels, 0, 300, 9, 1500, 0.05f, RaysOf::kMoving, moves});
      jaxrec::Run({"none", kind, 3, 0, 57, 43, 0, 0.0f, RaysOf::kCamera, moves});
      // More than one block sorts, and more than one fills lists.
      jaxrec::Run({"many", kind, 3, 0, 57, 43, 15000, 0.05f, RaysOf::kCamera, moves});
      // A thread takes several spheres.
      jaxrec::Run({"most", kind, 3, 0, 57, 43, 270000, 0.01f, RaysOf::kCamera, moves});
    }
  }
  return 0;
}
