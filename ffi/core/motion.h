// Spheres that move on a line while the rays of a view are measured.
//
// Their centers are those in the middle of the view's times, from which the times of its rays
// count: a ray at time t meets the sphere at m = c - o + v t, and all else is as in chord.h. With
// the cotangent d_m of that, those of the velocity and of the time are t d_m and v . d_m.
#pragma once

#include "core/chord.h"

namespace jaxrec {

// Whether spheres move: types, so that nothing is paid for motion where there is none.
struct Still {
  static constexpr bool kMoves = false;
};
struct Linear {
  static constexpr bool kMoves = true;
};

struct Velocity {
  float x, y, z;

  JAXREC_HD float Speed() const { return Sqrt(x * x + y * y + z * z); }
};

// The times of a view's rays: the middle, and how far they go from it.
struct TimeSpan {
  float middle, half;
};

// How far a sphere gets from where it is in the middle of a span, with a margin for the rounding of
// times and ways.
template <typename T>
JAXREC_HD T SweptReach(T speed, const TimeSpan& span) {
  const float middle = span.middle < 0.0f ? -span.middle : span.middle;
  return speed * (1.00001f * span.half + 3e-7f * middle);
}

template <typename T>
JAXREC_HD void Split(const Ray<T>& ray, const Sphere& sphere, const Velocity& velocity, T time,
                     Chord<T>* chord) {
  SplitOffset(ray, (sphere.x - ray.ox) + velocity.x * time, (sphere.y - ray.oy) + velocity.y * time,
              (sphere.z - ray.oz) + velocity.z * time, chord);
}

// How far x of a hit may fall below the distance of a sphere that moves by up to `sweep` and is hit
// within `reach` of its center. `exact`: x is the distance.
JAXREC_HD float SweptDrop(float distance, float reach, float sweep, bool exact) {
  const float nearest = distance - sweep;
  const float rest = Sqrt(Max(nearest * nearest - reach * reach, 0.0f));
  const bool inside = (sweep > 0.0f) & (nearest < reach);
  return sweep + (exact ? 0.0f : inside ? reach : nearest - rest);
}

}  // namespace jaxrec
