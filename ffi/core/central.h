// How rays that share one origin meet a sphere: chord.h for a central camera (e0 = 0, e1 > 0).
//
// With u = v / d - n, d = |v|, and s = u.u the squared chord of the angle between center and ray,
//
//   x = d,  w = d sqrt(s),  q = d s / 2,  a = d (1 - s / 2),  p^2 = d^2 s (1 - s / 4),
//
// so that the range, the half-width of the beam and whether the sphere is thin are those of the
// sphere alone, and a hit is one comparison of s.
#pragma once

#include "core/chord.h"

namespace jaxrec {

// A sphere seen from the rays' origin.
struct CentralSphere {
  float x, y, z, distance;  // center = origin + distance (x, y, z)
  float r, opacity;
};

constexpr float kAllAround = 5.0f;  // more than s of any two directions

// Largest s at which a ray hits, and at which the sphere is thin (-1: never). Whether the sphere
// lies in range is not asked here.
struct CentralReach {
  float hit, thin;

  static JAXREC_HD CentralReach Of(float distance, float r, const Beam& beam) {
    const bool small = r < kThinRadius * beam.e1 * distance;
    const float edge = kThinReach * beam.e1, ratio = r / distance;
    CentralReach reach;
    reach.thin = small ? edge * edge : -1.0f;
    reach.hit = distance > 0.0f ? Max(ratio * ratio, reach.thin) : kAllAround;
    return reach;
  }
};

// The squared chord s.
template <typename T>
JAXREC_HD T SquaredChord(T nx, T ny, T nz, float x, float y, float z) {
  const T ux = x - nx, uy = y - ny, uz = z - nz;
  return ux * ux + uy * uy + uz * uz;
}

// Cotangents of s, at fixed distance and radius, and so on.
template <typename T>
struct CentralCotangent {
  T chord, distance, radius, opacity;
};

// 1 / d and 1 / r, 0 where there is none.
struct CentralInverse {
  float distance, radius;
};

}  // namespace jaxrec
