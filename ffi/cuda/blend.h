// The CUDA half of blend without XLA: what the handlers pass to the launchers.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace jaxrec {

constexpr int kMaxBatch = 6;

// Leading batch axes of a call; a problem's index is row-major over them.
struct Batch {
  int rank;
  unsigned size[kMaxBatch];
};

// An array of which each batch axis may be shared (stride 0). Strides in elements.
template <typename T>
struct Batched {
  T* data;
  std::int64_t stride[kMaxBatch];
};

// A float array over [views, height, width, channels] of which any axis may be shared.
struct PixelField {
  Batched<const float> base;
  std::int64_t v, y, x, c;
};

struct BlendCall {
  // Sizes. `pairs` = problems * views.
  Batch batch;
  int problems, views, pairs;
  int spheres, channels, height, width;

  // Options.
  int kind, stop;
  float logit_stop, min_transmittance;
  int tracked, gradient_hits, need;

  // Operands.
  Batched<const float> centers, radii, opacities, features;
  Batched<const float> origins, directions, footprint, limits;

  // Forward: background in, results out. Results have all batch axes.
  PixelField background;
  float* out_features;
  float* out_depth;
  float* out_alpha;
  std::int32_t* ids;
  std::int32_t* counts;
  float* normalizer;
  std::int32_t* last;

  // Backward: the forward's results and cotangents in, gradients out (null if not needed).
  Batched<const float> saved_normalizer;
  Batched<const std::int32_t> saved_last, saved_ids;
  PixelField d_features, d_depth, d_alpha, level;
  float* d_centers;
  float* d_radii;
  float* d_opacities;
  float* d_sphere_features;
  float* d_origins;
  float* d_directions;

  // What the forward pass keeps for the backward pass: [problems, views, kept_bytes].
  Batched<char> kept;
  std::size_t kept_bytes;

  void* scratch;
  std::size_t scratch_bytes;

  // Whether spheres move; if so, their velocities, the times of the rays, the middle and half of
  // the interval of those of each view, and gradients (null if not needed).
  bool moves;
  Batched<const float> velocities, times, interval;
  float* d_velocities;
  float* d_times;
};

// Whether the backward pass walks through all spheres: if not, it goes through the nearest hits.
inline bool WalksBackward(int kind, int gradient_hits) { return kind != 0 || gradient_hits == 0; }

// Bytes of scratch of one problem, forward and backward, and those that the backward pass of one
// view wants to be kept.
std::size_t BlendScratch(std::int64_t spheres, std::int64_t views, std::int64_t height,
                         std::int64_t width, std::int64_t channels, std::int64_t tracked);
std::size_t SumsBytes(std::int64_t spheres, std::int64_t channels, bool moves);
std::size_t BlendKept(std::int64_t spheres, std::int64_t height, std::int64_t width,
                      std::int64_t channels, std::int64_t tracked);

// Enqueue; neither waits nor allocates. Return null or what went wrong.
const char* LaunchBlend(const BlendCall& call, cudaStream_t stream);
const char* LaunchBlendVjp(const BlendCall& call, cudaStream_t stream);

}  // namespace jaxrec
