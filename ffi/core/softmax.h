// Pulsar's order-independent blend as a policy: softmax over front depths.
//
//   weight = o d exp(E),  E = o z / gamma,  z = (far - zeta) / (far - near),
//   d = 1 where thin, else max(1 - w / r, 0);   result = sum(weight f) / D,
//   D = sum(weight) + exp(background_depth / gamma).
//
// Sums are kept relative to 2^m. Where a hit would weigh more than 2^kHeadroom, m rises to the
// hit's whole log weight (to the nearest power of two, which is cheap and as good): D never becomes
// small beside its terms, and nothing overflows.
#pragma once

#include "core/central.h"

namespace jaxrec {

struct Softmax {
  static constexpr bool kOrdered = false;  // gradients need neither order nor prefix
  static constexpr float kHeadroom = 30.0f;

  Range range;
  // All logarithms and exponents are to the base 2, so that E is scaled by log2(e).
  float exponent_scale;  // log2(e) / (gamma (far - near))
  float start;           // log2(e) background_depth / gamma
  float logit_stop;      // log2 of the odds of the stopping share

  static JAXREC_HD Softmax Make(const Range& range, float gamma, float background_depth,
                                float logit_stop) {
    return {range, kLog2E / (gamma * (range.far - range.near)), kLog2E * background_depth / gamma,
            kLog2E * logit_stop};
  }

  template <typename T>
  struct State {
    T m, total;   // total is D relative to 2^m
    T threshold;  // log weight below which a further sphere may be omitted
  };

  template <typename T>
  struct Hit {
    T half_length, zeta, falloff, exponent;
  };

  template <typename T>
  JAXREC_HD State<T> Begin() const {
    const T zero = T{} + 0.0f;
    return {zero + start, zero + 1.0f, zero + (start + logit_stop)};
  }

  // A ray that wants nothing.
  template <typename T>
  JAXREC_HD void Close(State<T>* state) const {
    state->threshold = T{} + 3e38f, state->total = T{} + INFINITY;
  }

  // A walk may count log weights from `start`: its rays begin at m = 0 and, as long as they are not
  // rescaled, draw with DrawAtStart and stop at a bound of the total.
  template <typename T>
  JAXREC_HD void CountFromStart(State<T>* state) const {
    state->m = state->m - start, state->threshold = state->threshold - start;
  }
  template <typename T>
  JAXREC_HD void CountFromZero(State<T>* state) const {
    state->m = state->m + start, state->threshold = state->threshold + start;
  }
  template <typename T>
  JAXREC_HD MaskOf<T> IsAtStart(const State<T>& state) const {
    return state.m == T{} + 0.0f;
  }
  // The total at which a sphere of this bound, counted from `start`, may be omitted.
  JAXREC_HD float LargestTotal(float bound) const { return Exp2(bound - logit_stop); }

  // Log of the largest weight a sphere can have whose nearest point lies at x - r = `closest`.
  JAXREC_HD float LogBound(float closest) const { return (range.far - closest) * exponent_scale; }

  template <typename T>
  JAXREC_HD MaskOf<T> Open(const State<T>& state, float log_omitted) const {
    return state.threshold < log_omitted;
  }

  template <typename T>
  JAXREC_HD MaskOf<T> Counts(const Chord<T>& chord) const {
    return chord.hit;
  }

  template <typename T>
  JAXREC_HD Hit<T> Weigh(const Chord<T>& chord, const Sphere& sphere, float opacity) const {
    const T zero = T{} + 0.0f;
    Hit<T> hit;
    hit.half_length = chord.HalfLength(sphere);
    hit.zeta = chord.along - hit.half_length;
    const float inverse = sphere.r > 0.0f ? 1.0f / sphere.r : 0.0f;
    hit.falloff = Select(chord.thin, zero + 1.0f, Max(1.0f - chord.w * inverse, zero));
    hit.exponent = (range.far - hit.zeta) * (exponent_scale * opacity);
    return hit;
  }

  template <typename T>
  JAXREC_HD T Depth(const Chord<T>&, const Hit<T>& hit) const {
    return hit.zeta;
  }

  // The same for a central ray: zeta = d (1 - g) with g = s / 2 + sqrt(r^2 - p^2) / d.
  struct Central {
    float x, y, z, hit;
    float thin, square, fade, distance;  // (r / d)^2 and d / r
    float offset, rate;                  // exponent = offset + rate g
    float opacity, bound;                // LogBound of the nearest point
  };

  JAXREC_HD Central Aim(const CentralSphere& sphere, const Beam& beam) const {
    const CentralReach reach = CentralReach::Of(sphere.distance, sphere.r, beam);
    const float d = sphere.distance, scale = exponent_scale * sphere.opacity;
    const float ratio = d > 0.0f ? sphere.r / d : 0.0f;
    return {sphere.x,
            sphere.y,
            sphere.z,
            reach.hit,
            reach.thin,
            ratio * ratio,
            sphere.r > 0.0f ? d / sphere.r : 0.0f,
            d,
            (range.far - d) * scale,
            d * scale,
            sphere.opacity,
            LogBound(d - sphere.r)};
  }
  JAXREC_HD Central CountFromStart(Central sphere) const {
    sphere.offset -= start, sphere.bound -= start;
    return sphere;
  }

  template <typename T>
  JAXREC_HD Hit<T> Weigh(T s, const Central& sphere) const {
    const T zero = T{} + 0.0f;
    Hit<T> hit;
    const T square = sphere.square + s * (0.25f * s - 1.0f);
    const T g = 0.5f * s + Sqrt(Max(square, zero));
    hit.half_length = zero;  // of gradients only
    hit.zeta = sphere.distance - sphere.distance * g;
    hit.falloff = Select(s < sphere.thin, zero + 1.0f, Ramp(Sqrt(s), sphere.fade));
    hit.exponent = sphere.offset + sphere.rate * g;
    return hit;
  }

  template <typename T>
  JAXREC_HD T Depth(T, const Central&, const Hit<T>& hit) const {
    return hit.zeta;
  }

  // True where drawing the hit must first rescale what has been summed, by *scale.
  template <typename T>
  JAXREC_HD MaskOf<T> Raise(const Hit<T>& hit, float opacity, MaskOf<T> drawn, State<T>* state,
                            T* scale) const {
    const T m = Select(drawn, hit.exponent + FloorLog2(opacity * hit.falloff), state->m);
    const auto higher = m > state->m;
    *scale = Exp2(state->m - Max(m, state->m));
    state->m = Max(m, state->m);
    state->total = state->total * *scale;
    return higher;
  }

  // Exponents above which Raise is due: they bound the log weight.
  template <typename T>
  JAXREC_HD T Ceiling(const State<T>& state) const {
    return state.m + kHeadroom;
  }
  template <typename T>
  JAXREC_HD MaskOf<T> MayRaise(const Hit<T>& hit, const State<T>& state) const {
    return hit.exponent > Ceiling(state);
  }

  template <typename T>
  JAXREC_HD T Draw(const Hit<T>& hit, float opacity, MaskOf<T> drawn, State<T>* state) const {
    const T weight =
        Select(drawn, opacity * hit.falloff * Exp2(hit.exponent - state->m), T{} + 0.0f);
    state->total = state->total + weight;
    return weight;
  }

  template <typename T>
  JAXREC_HD T DrawAtStart(const Hit<T>& hit, float opacity, State<T>* state) const {
    const T weight = opacity * hit.falloff * Exp2(hit.exponent);
    state->total = state->total + weight;
    return weight;
  }

  template <typename T>
  JAXREC_HD void UpdateStop(State<T>* state) const {
    state->threshold = state->m + Log2(state->total) + logit_stop;
  }

  // Scale of all sums and the background's weight at the end of a ray.
  template <typename T>
  JAXREC_HD void End(const State<T>& state, T* scale, T* rest) const {
    *scale = 1.0f / state.total;
    *rest = Exp2(start - state.m) * *scale;
  }

  template <typename T>
  JAXREC_HD void Save(const State<T>& state, T* first, T* second) const {
    *first = state.m;
    *second = state.total;
  }

  // Backward. `value` is d_output . (f, zeta, 1) of the hit, `level` that of the pixel's result.
  template <typename T>
  JAXREC_HD ChordCotangent<T> Pull(const Chord<T>& chord, const Hit<T>& hit, const Sphere& sphere,
                                   const Beam&, float opacity, MaskOf<T> chosen, T m, T total,
                                   T level, T value, T d_depth, T* share) const {
    const T zero = T{} + 0.0f;
    const float inverse = sphere.r > 0.0f ? 1.0f / sphere.r : 0.0f;
    const T power = Select(chosen, Exp2(hit.exponent - m) / total, zero);
    *share = opacity * hit.falloff * power;
    const T d_weight = (value - level) * power;  // over o d
    const T d_zeta = *share * (d_depth - (value - level) * (kLn2 * exponent_scale * opacity));
    const auto fades = Not(chord.thin) & (hit.falloff > zero);
    const T d_w = Select(fades, d_weight * (-opacity * inverse), zero);
    const T over_s = Select(hit.half_length > zero, 1.0f / hit.half_length, zero);
    const T over_w = Select(chord.w > zero, 1.0f / chord.w, zero);
    const T lean = Select(chord.hypotenuse > zero, chord.q / chord.hypotenuse, zero);
    ChordCotangent<T> out;
    out.along = d_zeta - d_w * lean * chord.q * over_w;
    out.beside = d_zeta * over_s + d_w * over_w * (1.0f + lean);
    out.radius = -(d_w * chord.w * inverse) - d_zeta * sphere.r * over_s;
    out.opacity = d_weight * hit.falloff * (1.0f + kLn2 * hit.exponent);
    return out;
  }

  // The same for a central ray, of chosen hits only. `inverse_total` is 1 / total.
  template <typename T>
  JAXREC_HD CentralCotangent<T> PullCentral(T s, const Central& sphere,
                                            const CentralInverse& inverse, const Hit<T>& hit, T m,
                                            T inverse_total, T level, T value, T d_depth,
                                            T* share) const {
    const T zero = T{} + 0.0f;
    const float d = sphere.distance, slope = kLn2 * sphere.rate * inverse.distance;
    const T power = Exp2(hit.exponent - m) * inverse_total;
    *share = sphere.opacity * hit.falloff * power;
    const T delta = value - level;
    const T d_zeta = *share * (d_depth - delta * slope);
    const auto fades = Not(s < sphere.thin) & (hit.falloff > zero);
    const T d_falloff = Select(fades, delta * power * sphere.opacity, zero);
    // h = sqrt(r^2 - p^2) / d, of which zeta = d (1 - s / 2 - h); 0 beyond the rim.
    const T square = sphere.square + s * (0.25f * s - 1.0f);
    const T over_h = Select(square > zero, InverseSqrt(Max(square, zero + 1e-30f)), zero);
    const T over_root = InverseSqrt(Max(s, zero + 1e-30f)), root = s * over_root;
    const T g = 0.5f * s + Max(square, zero) * over_h;
    CentralCotangent<T> out;
    out.chord = -0.5f * (d * d_zeta * (1.0f + (0.5f * s - 1.0f) * over_h) +
                         sphere.fade * d_falloff * over_root);
    const T across = d_falloff * root * inverse.radius;
    out.distance = d_zeta * (1.0f - g + sphere.square * over_h) - across;
    out.radius = across * sphere.fade - d_zeta * (sphere.square * sphere.fade) * over_h;
    out.opacity = delta * power * hit.falloff * (1.0f + kLn2 * hit.exponent);
    return out;
  }
};

}  // namespace jaxrec
