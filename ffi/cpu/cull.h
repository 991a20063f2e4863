// Rays of a block as lanes, the cones that bound them and the culling of spheres by cones.
// Part of blocks.cc, which is compiled once for each instruction set.
#pragma once

#include "cpu/simd.h"
// The rest after it: see blocks.cc.
#include "core/cone.h"
#include "cpu/view.h"

namespace jaxrec {
namespace {

// kLanes neighbouring rays. Lanes outside the image or without a direction are not valid.
struct RayGroup {
  Ray<FloatLanes> ray;
  IntLanes valid;
  std::int32_t pixel[kLanes];  // y * width + x, -1 outside the image
  FloatLanes time;             // from the middle of the view's, if spheres move
};

inline RayGroup LoadGroup(const View& view, int y0, int x0, int rows, const Rect& rect) {
  RayGroup g;
  alignas(64) float lanes[6][kLanes];
  const int columns = kLanes / rows;
  for (int i = 0; i < kLanes; ++i) {
    const int y = y0 + i / columns, x = x0 + i % columns;
    const bool inside = y < rect.y1 && x < rect.x1;
    const std::int64_t pixel = inside ? std::int64_t{y} * view.width + x : 0;
    g.pixel[i] = inside ? static_cast<std::int32_t>(pixel) : -1;
    for (int k = 0; k < 3; ++k) {
      lanes[k][i] = view.origins[3 * pixel + k];
      lanes[3 + k][i] = view.directions[3 * pixel + k];
    }
  }
  FloatLanes* field[6] = {&g.ray.ox, &g.ray.oy, &g.ray.oz, &g.ray.nx, &g.ray.ny, &g.ray.nz};
  IntLanes inside;
  for (int i = 0; i < kLanes; ++i) inside[i] = g.pixel[i] < 0 ? 0 : -1;
  FloatLanes finite = FloatLanes{};
  for (int k = 0; k < 6; ++k) {
    *field[k] = Load(lanes[k]);
    finite = finite + *field[k] * 0.0f;  // NaN where anything is not finite
  }
  const FloatLanes square = g.ray.nx * g.ray.nx + g.ray.ny * g.ray.ny + g.ray.nz * g.ray.nz - 1.0f;
  g.valid = inside & (finite == 0.0f) & (square <= kUnitTolerance) & (square >= -kUnitTolerance);
  for (int k = 0; k < 6; ++k) *field[k] = Select(g.valid, *field[k], FloatLanes{});
  g.time = FloatLanes{};
  if (view.times != nullptr) {
    for (int i = 0; i < kLanes; ++i)
      if (g.pixel[i] >= 0) g.time[i] = view.times[g.pixel[i]] - view.span.middle;
    g.time = Select(g.valid, g.time, FloatLanes{});
  }
  return g;
}

inline Velocity VelocityOf(const View& view, const Record& record) {
  const float* v = view.velocities + 3 * std::int64_t{record.id};
  return {v[0], v[1], v[2]};
}

inline int GroupRows(const View& view) { return view.height >= 4 ? 4 : view.height >= 2 ? 2 : 1; }

// Loads the rays of a rectangle in groups, row by row of groups; returns how many groups.
inline int LoadRays(const View& view, const Rect& rect, RayGroup* out) {
  const int rows = GroupRows(view), columns = kLanes / rows;
  int n = 0;
  for (int y = rect.y0; y < rect.y1; y += rows)
    for (int x = rect.x0; x < rect.x1; x += columns) out[n++] = LoadGroup(view, y, x, rows, rect);
  return n;
}

// The cone of the groups' valid rays.
inline Cone Bound(const RayGroup* groups, int n) {
  Cone cone = {};
  FloatLanes count = {}, nx = {}, ny = {}, nz = {}, ox = {}, oy = {}, oz = {};
  float fx = 0, fy = 0, fz = 0;  // an origin to measure from, so that equal ones stay exact
  bool found = false;
  for (int g = 0; g < n && !found; ++g) {
    const std::uint32_t bits = Bits(groups[g].valid);
    if (bits == 0) continue;
    const int i = __builtin_ctz(bits);
    fx = groups[g].ray.ox[i], fy = groups[g].ray.oy[i], fz = groups[g].ray.oz[i];
    found = true;
  }
  cone.empty = !found;
  if (!found) return cone;
  for (int g = 0; g < n; ++g) {
    const Ray<FloatLanes>& r = groups[g].ray;
    const IntLanes valid = groups[g].valid;
    count = count + Select(valid, Splat(1.0f), FloatLanes{});
    nx = nx + r.nx, ny = ny + r.ny, nz = nz + r.nz;
    ox = ox + Select(valid, r.ox - fx, FloatLanes{});
    oy = oy + Select(valid, r.oy - fy, FloatLanes{});
    oz = oz + Select(valid, r.oz - fz, FloatLanes{});
  }
  const float inverse = 1.0f / Sum(count);
  cone.ox = fx + Sum(ox) * inverse, cone.oy = fy + Sum(oy) * inverse;
  cone.oz = fz + Sum(oz) * inverse;
  cone.nx = Sum(nx) * inverse, cone.ny = Sum(ny) * inverse, cone.nz = Sum(nz) * inverse;
  const float length = __builtin_sqrtf(cone.nx * cone.nx + cone.ny * cone.ny + cone.nz * cone.nz);
  const bool aimless = !(length > 1e-3f);  // directions cancel: the cone is all of space
  if (!aimless) cone.nx /= length, cone.ny /= length, cone.nz /= length;
  FloatLanes chord = {}, shift = {};
  for (int g = 0; g < n; ++g) {
    const Ray<FloatLanes>& r = groups[g].ray;
    const FloatLanes dx = r.nx - cone.nx, dy = r.ny - cone.ny, dz = r.nz - cone.nz;
    const FloatLanes sx = r.ox - cone.ox, sy = r.oy - cone.oy, sz = r.oz - cone.oz;
    const IntLanes valid = groups[g].valid;
    chord = Max(chord, Select(valid, dx * dx + dy * dy + dz * dz, FloatLanes{}));
    shift = Max(shift, Select(valid, sx * sx + sy * sy + sz * sz, FloatLanes{}));
  }
  float chord2 = 0, shift2 = 0;
  for (int i = 0; i < kLanes; ++i) {
    chord2 = chord[i] > chord2 ? chord[i] : chord2;
    shift2 = shift[i] > shift2 ? shift[i] : shift2;
  }
  cone.SetChord(aimless ? 2.0f : __builtin_sqrtf(chord2));
  cone.slack = __builtin_sqrtf(shift2) * 1.00001f;
  return cone;
}

// The times of the groups' valid rays, of which there is one.
inline TimeSpan SpanOf(const RayGroup* groups, int n) {
  const float infinity = __builtin_inff();
  FloatLanes first = Splat(infinity), last = Splat(-infinity);
  for (int g = 0; g < n; ++g) {
    first = Min(first, Select(groups[g].valid, groups[g].time, Splat(infinity)));
    last = Max(last, Select(groups[g].valid, groups[g].time, Splat(-infinity)));
  }
  float low = first[0], high = last[0];
  for (int i = 1; i < kLanes; ++i) {
    low = first[i] < low ? first[i] : low;
    high = last[i] > high ? last[i] : high;
  }
  return {0.5f * low + 0.5f * high, 0.5f * high - 0.5f * low};
}

// Keeps the candidates that the groups' rays may touch. `slot`, if not null, gets their positions
// in `in`. Reads whole vectors: `in` has room for them.
template <typename Motion>
std::int32_t Filter(const RayGroup* groups, int group_count, const Candidates& in,
                    std::int32_t count, const Candidates* out, std::int32_t* slot) {
  std::int32_t n = 0;
  const Cone cone = Bound(groups, group_count);
  if (cone.empty) return 0;
  TimeSpan span = {0, 0};
  if (Motion::kMoves) span = SpanOf(groups, group_count);
  for (std::int32_t i = 0; i < count; i += kLanes) {
    FloatLanes x = Load(in.x + i), y = Load(in.y + i), z = Load(in.z + i);
    FloatLanes reach = Load(in.reach + i);
    if constexpr (Motion::kMoves) {  // what the sphere sweeps meanwhile, with a margin for rounding
      const FloatLanes vx = Load(in.vx + i), vy = Load(in.vy + i), vz = Load(in.vz + i);
      const FloatLanes size = Max(x, -x) + Max(y, -y) + Max(z, -z);
      reach = reach + SweptReach(Sqrt(vx * vx + vy * vy + vz * vz), span) + 3e-7f * size;
      x = x + vx * span.middle, y = y + vy * span.middle, z = z + vz * span.middle;
    }
    std::uint32_t bits = Bits(Touches(cone, x, y, z, reach));
    if (count - i < kLanes) bits &= (1u << (count - i)) - 1u;
    for (; bits != 0; bits &= bits - 1) {
      const std::int32_t k = i + __builtin_ctz(bits);
      if (slot != nullptr) slot[n] = k;
      if (out != nullptr) {
        out->x[n] = in.x[k], out->y[n] = in.y[k], out->z[n] = in.z[k];
        out->reach[n] = in.reach[k], out->rank[n] = in.rank[k];
        if constexpr (Motion::kMoves)
          out->vx[n] = in.vx[k], out->vy[n] = in.vy[k], out->vz[n] = in.vz[k];
      }
      ++n;
    }
  }
  return n;
}

}  // namespace
}  // namespace jaxrec
