// Which spheres a bundle of rays may touch, for any sensor.
#pragma once

#include "core/portable.h"

namespace jaxrec {

// All rays start within `slack` of the origin and point at most an angle off the axis, whose sine
// and cosine are kept. `empty`: there are no rays.
struct Cone {
  float ox, oy, oz, nx, ny, nz;
  float sine, cosine;
  float slack;
  bool empty;

  // Sets the angle from its chord, the largest distance between a direction and the axis: no acos
  // and no small difference of cosines. Widened by the rounding of the directions.
  JAXREC_HD void SetChord(float chord) {
    const float c = chord * 1.00001f + 1e-6f;
    const bool wide = !(c < 2.0f);
    sine = wide ? 0.0f : c * Sqrt(1.0f - 0.25f * c * c);
    cosine = wide ? -1.0f : 1.0f - 0.5f * c * c;
  }
};

// A sphere stays iff the angle between its center and the axis is at most that of the cone plus
// that of its reach. With u the center, split along and across the axis, its distance to the
// cone's surface is across cos(theta) - along sin(theta); behind the apex only its own size counts.
template <typename T>
JAXREC_HD MaskOf<T> Touches(const Cone& cone, T x, T y, T z, T reach) {
  const T zero = T{} + 0.0f;
  const T ux = x - cone.ox, uy = y - cone.oy, uz = z - cone.oz;
  const T along = ux * cone.nx + uy * cone.ny + uz * cone.nz;
  const T px = ux - along * cone.nx, py = uy - along * cone.ny, pz = uz - along * cone.nz;
  const T across = Sqrt(px * px + py * py + pz * pz);
  const T distance2 = along * along + across * across;
  // The last terms cover the rounding of all of the above.
  const T size = (reach + cone.slack) * 1.00001f + 2e-6f * (Max(along, -along) + across) + 1e-30f;
  const T outside = across * cone.cosine - along * cone.sine;
  const T ahead = along * cone.cosine + across * cone.sine;
  return (outside <= zero) | ((outside <= size) & (ahead > zero)) | (distance2 <= size * size);
}

}  // namespace jaxrec
