// Front-to-back compositing as a policy.
//
//   alpha = o k,  k = (1 - p^2 / r^2)^2, or where thin the share r^2 / (6.75 e^2) of the beam that
//   the sphere covers (flat over w < 1.5 e, this has the integral of k);
//   weight = T alpha,  T <- T (1 - alpha).
//
// Backward, with R the composite of everything behind a hit, dotted with d_output:
//
//   d_alpha = T (value - R),  R <- alpha value + (1 - alpha) R,
//
// which never divides by 1 - alpha, so opaque spheres are exact. It runs back to front and needs
// each hit's T, which the caller parks on a forward sweep.
#pragma once

#include "core/central.h"

namespace jaxrec {

struct Alpha {
  static constexpr bool kOrdered = true;
  static constexpr float kThinArea = 6.75f;  // 3 * kThinReach^2

  Range range;
  float min_transmittance;

  template <typename T>
  struct State {
    T transmittance;
  };

  template <typename T>
  struct Hit {
    T zeta, bump, coverage;
  };

  template <typename T>
  JAXREC_HD State<T> Begin() const {
    return {T{} + 1.0f};
  }

  // A ray that wants nothing.
  template <typename T>
  JAXREC_HD void Close(State<T>* state) const {
    state->transmittance = T{} - 1.0f;
  }

  JAXREC_HD float LogBound(float) const { return 0.0f; }

  template <typename T>
  JAXREC_HD MaskOf<T> Open(const State<T>& state, float) const {
    return state.transmittance >= min_transmittance;
  }

  template <typename T>
  JAXREC_HD MaskOf<T> Counts(const Chord<T>& chord) const {
    return chord.hit & (chord.along > T{} + 0.0f);
  }

  template <typename T>
  JAXREC_HD Hit<T> Weigh(const Chord<T>& chord, const Sphere& sphere, float) const {
    const T zero = T{} + 0.0f;
    Hit<T> hit;
    hit.zeta = chord.along - chord.HalfLength(sphere);
    const float r2 = sphere.r * sphere.r;
    const float inverse = r2 > 0.0f ? 1.0f / r2 : 0.0f;
    hit.bump = Max(1.0f - chord.p2 * inverse, zero);
    const T area = kThinArea * chord.half_width * chord.half_width;
    hit.coverage =
        Select(chord.thin, r2 / Select(chord.thin, area, zero + 1.0f), hit.bump * hit.bump);
    return hit;
  }

  template <typename T>
  JAXREC_HD T Depth(const Chord<T>& chord, const Hit<T>&) const {
    return chord.along;
  }

  // The same for a central ray.
  struct Central {
    float x, y, z, hit;
    float thin, steep, area, distance;  // (d / r)^2 and the share of the beam that is covered
    float square, opacity;              // (r / d)^2
    float bound, unused;                // as in softmax.h: nothing to bound here
  };

  JAXREC_HD Central Aim(const CentralSphere& sphere, const Beam& beam) const {
    const CentralReach reach = CentralReach::Of(sphere.distance, sphere.r, beam);
    const float d = sphere.distance, ratio = d > 0.0f ? sphere.r / d : 0.0f;
    const float square = ratio * ratio;
    return {sphere.x,
            sphere.y,
            sphere.z,
            Min(reach.hit, 1.9999999f),  // a > 0
            reach.thin,
            square > 0.0f ? 1.0f / square : 0.0f,
            square / (kThinArea * beam.e1 * beam.e1),
            d,
            square,
            sphere.opacity,
            0.0f,
            0.0f};
  }

  template <typename T>
  JAXREC_HD Hit<T> Weigh(T s, const Central& sphere) const {
    const T zero = T{} + 0.0f;
    const T minus = s * (0.25f * s - 1.0f);  // -(p / d)^2
    Hit<T> hit;
    hit.bump = Ramp(-minus, sphere.steep);
    hit.coverage = Select(s < sphere.thin, zero + sphere.area, hit.bump * hit.bump);
    const T half_length = Sqrt(Max(sphere.square + minus, zero));
    hit.zeta = sphere.distance * (1.0f - 0.5f * s - half_length);
    return hit;
  }

  template <typename T>
  JAXREC_HD T Depth(T s, const Central& sphere, const Hit<T>&) const {
    return sphere.distance - 0.5f * sphere.distance * s;
  }

  template <typename T>
  JAXREC_HD T Ceiling(const State<T>& state) const {
    return state.transmittance;
  }
  template <typename T>
  JAXREC_HD MaskOf<T> MayRaise(const Hit<T>&, const State<T>& state) const {
    return state.transmittance > T{} + 2.0f;  // never: sums are absolute
  }

  template <typename T>
  JAXREC_HD MaskOf<T> Raise(const Hit<T>&, float, MaskOf<T> drawn, State<T>*, T* scale) const {
    *scale = T{} + 1.0f;
    return drawn;
  }

  template <typename T>
  JAXREC_HD T Draw(const Hit<T>& hit, float opacity, MaskOf<T> drawn, State<T>* state) const {
    const T weight = Select(drawn, state->transmittance * (opacity * hit.coverage), T{} + 0.0f);
    state->transmittance =
        Select(drawn, state->transmittance * (1.0f - opacity * hit.coverage), state->transmittance);
    return weight;
  }

  template <typename T>
  JAXREC_HD void UpdateStop(State<T>*) const {}

  template <typename T>
  JAXREC_HD void End(const State<T>& state, T* scale, T* rest) const {
    *scale = T{} + 1.0f;
    *rest = state.transmittance;
  }

  template <typename T>
  JAXREC_HD void Save(const State<T>& state, T* first, T* second) const {
    *first = state.transmittance;
    *second = T{} + 0.0f;
  }

  // Backward. `transmittance` is what reached the hit; *behind is R and steps over each drawn
  // hit. Only `chosen` hits get cotangents.
  template <typename T>
  JAXREC_HD ChordCotangent<T> Pull(const Chord<T>& chord, const Hit<T>& hit, const Sphere& sphere,
                                   const Beam& beam, float opacity, MaskOf<T> drawn,
                                   MaskOf<T> chosen, T transmittance, T* behind, T value, T d_depth,
                                   T* share) const {
    const T zero = T{} + 0.0f;
    const T alpha = opacity * hit.coverage;
    *share = Select(chosen, transmittance * alpha, zero);
    const T d_alpha = Select(chosen, transmittance * (value - *behind), zero);
    *behind = Select(drawn, alpha * value + (1.0f - alpha) * *behind, *behind);
    const float over_r = sphere.r > 0.0f ? 1.0f / sphere.r : 0.0f;
    const T d_coverage = d_alpha * opacity;
    const T d_bump = d_coverage * hit.bump * (4.0f * over_r * over_r);  // over p^2, halved
    const T e = Select(chord.thin, chord.half_width, zero + 1.0f);
    const T d_x = d_coverage * hit.coverage * (-2.0f * beam.e1) / e;
    const T over_hypotenuse = Select(chord.hypotenuse > zero, 1.0f / chord.hypotenuse, zero);
    ChordCotangent<T> out;
    const T depth = d_depth * *share;
    out.along = Select(chord.thin, depth + d_x * (1.0f - chord.q * over_hypotenuse), depth);
    out.beside = Select(chord.thin, beam.spread ? d_x * over_hypotenuse : zero, -d_bump);
    out.radius = Select(chord.thin, d_coverage * (2.0f / kThinArea * sphere.r) / (e * e),
                        d_bump * chord.p2 * over_r);
    out.opacity = d_alpha * hit.coverage;
    return out;
  }

  // The same for a central ray, of drawn hits only; `behind` is R.
  template <typename T>
  JAXREC_HD CentralCotangent<T> PullCentral(T s, const Central& sphere,
                                            const CentralInverse& inverse, const Hit<T>& hit,
                                            T transmittance, T behind, T value, T d_depth,
                                            T* share) const {
    const T zero = T{} + 0.0f;
    const auto thin = s < sphere.thin;
    *share = transmittance * (sphere.opacity * hit.coverage);
    const T d_alpha = transmittance * (value - behind), d_coverage = d_alpha * sphere.opacity;
    const T d_bump = Select(thin, zero, 2.0f * hit.bump * d_coverage);
    const T depth = d_depth * *share;
    const T square = s * (1.0f - 0.25f * s) * sphere.steep;  // (p / r)^2
    const T twice = 2.0f * Select(thin, d_coverage * sphere.area, d_bump * square);
    CentralCotangent<T> out;
    out.chord = -d_bump * (1.0f - 0.5f * s) * sphere.steep - 0.5f * sphere.distance * depth;
    out.distance = depth * (1.0f - 0.5f * s) - twice * inverse.distance;
    out.radius = twice * inverse.radius;
    out.opacity = d_alpha * hit.coverage;
    return out;
  }
};

}  // namespace jaxrec
