// How one ray meets one sphere: the geometry of blend, one rule for every sensor.
//
// v = c - o is split along the unit direction n into a = v.n and the rest `beside`, of length p.
// The beam's half-width at distance x is e0 + e1 x; its edges meet `apex` = e0 / e1 behind the
// ray's origin. Distances x are measured on spheres about that point, so
//
//   A = a + apex,  q = sqrt(A^2 + p^2) - A,  x = a + q,  w = sqrt(p^2 + q^2)  (the chord),
//
// which is x = |v| for a point camera (apex 0) and x = a, w = p for parallel rays (e1 = 0).
// The sphere's front surface lies at zeta = a - s with s = sqrt(r^2 - p^2).
#pragma once

#include "core/portable.h"

namespace jaxrec {

struct Sphere {
  float x, y, z, r;
};

template <typename T>
struct Ray {
  T ox, oy, oz, nx, ny, nz;
};

struct Beam {
  float e0, e1;
  float apex;   // e0 / e1, 0 for parallel rays
  bool spread;  // e1 > 0

  static JAXREC_HD Beam Make(float e0, float e1) {
    const bool spread = e1 > 0.0f;
    return {e0, e1, spread ? e0 / e1 : 0.0f, spread};
  }
};

// near <= x - r <= far: a sphere is drawn as a whole or not at all.
struct Range {
  float near, far;
};

// A direction whose squared length is further from 1 than this is none.
constexpr float kUnitTolerance = 1e-3f;

// The reach of spheres so small that a beam might pass them by: w < kThinReach e.
constexpr float kThinReach = 1.5f;
constexpr float kThinRadius = 2.0f;

template <typename T>
struct Chord {
  T along, bx, by, bz;  // a and the vector beside
  T p2, q, hypotenuse;  // p^2, q, sqrt(A^2 + p^2)
  T w, half_width;
  MaskOf<T> thin, hit;

  // Depth behind the front surface: 0 beyond the rim of a thin sphere.
  JAXREC_HD T HalfLength(const Sphere& sphere) const {
    return Sqrt(Max(sphere.r * sphere.r - p2, T{} + 0.0f));
  }
};

// Splits the sphere's offset; the rest of Meet is needed only where p2 is small enough.
template <typename T>
JAXREC_HD void SplitOffset(const Ray<T>& ray, T vx, T vy, T vz, Chord<T>* chord) {
  chord->along = vx * ray.nx + vy * ray.ny + vz * ray.nz;
  chord->bx = vx - chord->along * ray.nx;
  chord->by = vy - chord->along * ray.ny;
  chord->bz = vz - chord->along * ray.nz;
  chord->p2 = chord->bx * chord->bx + chord->by * chord->by + chord->bz * chord->bz;
}
template <typename T>
JAXREC_HD void Split(const Ray<T>& ray, const Sphere& sphere, Chord<T>* chord) {
  SplitOffset(ray, sphere.x - ray.ox, sphere.y - ray.oy, sphere.z - ray.oz, chord);
}

template <typename T>
JAXREC_HD void Meet(const Sphere& sphere, const Beam& beam, const Range& range, Chord<T>* chord) {
  const T zero = T{} + 0.0f;
  const T apex = chord->along + beam.apex;
  chord->hypotenuse = Sqrt(apex * apex + chord->p2);
  chord->q = zero;
  if (beam.spread) {  // never a difference of nearly equal numbers
    const auto ahead = apex > zero;
    const T forward = Select(ahead, apex + chord->hypotenuse, zero + 1.0f);
    chord->q = Select(ahead, chord->p2 / forward, chord->hypotenuse - apex);
  }
  const T x = chord->along + chord->q;
  chord->w = Sqrt(chord->p2 + chord->q * chord->q);
  chord->half_width = beam.e0 + beam.e1 * x;
  chord->thin =
      (chord->w < kThinReach * chord->half_width) & (sphere.r < kThinRadius * chord->half_width);
  const T closest = x - sphere.r;
  chord->hit = ((chord->w <= sphere.r + zero) | chord->thin) & (closest >= range.near + zero) &
               (closest <= range.far + zero);
}

// Cotangents of one ray-sphere pair, in the coordinates in which they are short:
// d_v = along n + beside * chord.b, d_n = (along - a beside) * chord.b (its part across the ray).
template <typename T>
struct ChordCotangent {
  T along, beside, radius, opacity;
};

}  // namespace jaxrec
