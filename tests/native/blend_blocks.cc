// Drives the CPU kernels of blend without XLA or Python, for sanitizers: random
// scenes, image sizes that fit no tile, hidden and broken spheres, broken rays,
// spheres that move, all kinds and options, two threads.
#include <atomic>
#include <cmath>
#include <cstdio>
#include <limits>
#include <random>
#include <thread>
#include <vector>

#include "cpu/prepare.h"
#include "cpu/view.h"

using namespace jaxrec;

namespace {

struct Scene {
  std::vector<float> centers, radii, opacities, features, velocities, times, d_times;
  std::vector<float> origins, directions, background, normalizer, out, depth, alpha, d_rays[2];
  std::vector<std::int32_t> ids, counts, last;
};

Scene Make(int spheres, int height, int width, int channels, int tracked, unsigned seed) {
  std::mt19937 engine(seed);
  std::uniform_real_distribution<float> u(-1.0f, 1.0f);
  Scene s;
  for (int i = 0; i < spheres; ++i) {
    for (float scale : {5.0f, 3.0f, 4.0f}) s.centers.push_back(scale * u(engine));
    s.centers[3 * i + 2] += 9.0f;
    s.radii.push_back(i % 7 == 3 ? -1.0f : i % 11 == 5 ? 0.0f : 1.5f * std::fabs(u(engine)));
    s.opacities.push_back(i % 13 == 2 ? 1.0f : std::fabs(u(engine)));
    for (int c = 0; c < channels; ++c) s.features.push_back(u(engine));
    for (int k = 0; k < 3; ++k) s.velocities.push_back(10.0f * u(engine));
  }
  const float nan = std::numeric_limits<float>::quiet_NaN();
  if (spheres > 20)
    s.centers[3 * 17] = nan, s.features[channels * 18] = nan, s.velocities[3 * 19] = nan;
  const int rays = height * width;
  for (int i = 0; i < rays; ++i) {
    const float x = (i % width + 0.5f) / width - 0.5f, y = (i / width + 0.5f) / height - 0.5f;
    const float length = std::sqrt(x * x + y * y + 1.0f);
    for (float d : {x / length, y / length, 1.0f / length}) s.directions.push_back(d);
    for (int k = 0; k < 3; ++k) s.origins.push_back(0.0f);
    s.times.push_back(y);
  }
  s.d_times.resize(rays);
  if (rays > 5) s.directions[15] = nan;
  s.background.assign(channels, 0.5f);
  s.normalizer.resize(2 * rays), s.out.resize(rays * channels);
  s.depth.resize(rays), s.alpha.resize(rays);
  s.ids.resize(rays * tracked), s.counts.resize(rays), s.last.resize(rays);
  for (auto& d : s.d_rays) d.resize(3 * rays);
  return s;
}

template <typename Body>
void OnTwoThreads(int items, const Body& body) {
  std::atomic<int> next{0};
  const auto work = [&](int worker) {
    for (int i = next++; i < items; i = next++) body(i, worker);
  };
  std::thread other([&] { work(1); });
  work(0);
  other.join();
}

double Run(int spheres, int height, int width, int channels, bool moves,
           const BlockOptions& options) {
  Scene s = Make(spheres, height, width, channels, options.tracked, spheres + height);
  View view = {};
  view.height = height, view.width = width, view.channels = channels;
  view.origins = s.origins.data(), view.directions = s.directions.data();
  view.beam = Beam::Make(0.0f, 0.02f);
  view.range = {0.5f, 40.0f};
  view.gamma = 0.05f, view.background_depth = 1e-6f;
  view.features = s.features.data();
  view.background = {s.background.data(), 0, 0, 1};
  view.out_features = s.out.data(), view.out_depth = s.depth.data();
  view.out_alpha = s.alpha.data();
  view.ids = s.ids.data(), view.counts = s.counts.data(), view.last = s.last.data();
  view.normalizer = s.normalizer.data();
  view.d_features = {s.out.data(), width * channels, channels, 1};
  view.d_depth = {s.depth.data(), width, 1, 0};
  view.d_alpha = {s.background.data(), 0, 0, 0};
  view.level = {s.normalizer.data(), 2 * width, 2, 1};
  view.d_origins = s.d_rays[0].data(), view.d_directions = s.d_rays[1].data();
  if (moves) {
    view.velocities = s.velocities.data(), view.times = s.times.data();
    view.span = {0.0f, 0.5f};
    view.d_times = s.d_times.data();
  }

  Prepared prepared;
  Prepare({spheres, channels, s.centers.data(), s.radii.data(), s.opacities.data(),
           s.features.data(), view.velocities},
          view, &prepared);
  view.records = prepared.records.data(), view.slack = prepared.slack;
  view.count = static_cast<std::int32_t>(prepared.records.size());

  const TileShape shape = TileShape::For(options.tile, height);
  std::vector<Rect> blocks;
  for (int y = 0; y < height; y += shape.block_height)
    for (int x = 0; x < width; x += shape.block_width)
      blocks.push_back(
          {y, x, std::min(y + shape.block_height, height), std::min(x + shape.block_width, width)});
  std::vector<Workspace> spaces(2);
  std::vector<BlockSums> sums(blocks.size());
  const BlockKernels& kernels = JAXREC_KERNELS();
  const auto work = [&](int i, int worker) {
    return BlockWork{&view,      &options,        blocks[i], prepared.list,
                     view.count, &spaces[worker], &sums[i]};
  };
  const int count = static_cast<int>(blocks.size());
  OnTwoThreads(count, [&](int i, int worker) { kernels.forward(work(i, worker)); });
  OnTwoThreads(count, [&](int i, int worker) { kernels.backward(work(i, worker)); });
  double total = 0;
  for (float x : s.out) total += x;
  for (const BlockSums& block : sums)
    for (std::int64_t i = 0; i < std::int64_t{block.count} * SumsOf(view); ++i)
      total += static_cast<const float*>(block.sums.data)[i];
  return total;
}

}  // namespace

int main() {
  const int sizes[][2] = {{1, 1}, {1, 700}, {3, 50}, {37, 41}, {70, 130}};
  for (int kind = 0; kind < 2; ++kind)
    for (int stop = 0; stop < 3; ++stop)
      for (int channels : {1, 3, 64})
        for (int hits : {0, 4})
          for (int tile : {8, 16, 32})
            for (const auto& size : sizes)
              for (int spheres : {0, 1, 150})
                for (bool moves : {false, true}) {
                  if (channels == 64 && (tile != 16 || stop != 0)) continue;
                  if (moves && (tile != 16 || channels != 3)) continue;
                  const BlockOptions options = {
                      kind, stop, stop ? -3.0f : -INFINITY, 1e-4f, tile, hits, hits, 255};
                  const double total = Run(spheres, size[0], size[1], channels, moves, options);
                  if (!std::isfinite(total)) {
                    std::printf("not finite: kind %d, stop %d, channels %d\n", kind, stop,
                                channels);
                    return 1;
                  }
                }
  std::printf("ok\n");
  return 0;
}
