// Pulsar's order-independent blend as a policy: softmax over front depths.
//
//   weight = o d exp(E),  E = o z / gamma,  z = (far - zeta) / (far - near),
//   d = 1 where thin, else max(1 - w / r, 0);   result = sum(weight f) / D,
//   D = sum(weight) + exp(background_depth / gamma).
//
// Sums are kept relative to e^m. m rises only with a hit's whole log weight (to the nearest power
// of two, which is cheap and as good), so D never becomes small and nothing overflows.
#pragma once

#include "core/chord.h"

namespace jaxrec {

struct Softmax {
  static constexpr bool kOrdered = false;  // gradients need neither order nor prefix

  Range range;
  float exponent_scale;  // 1 / (gamma (far - near))
  float start;           // background_depth / gamma
  float logit_stop;      // log odds of the stopping share

  template <typename T>
  struct State {
    T m, total;   // total is D relative to e^m
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

  // Log of the largest weight a sphere can have whose nearest point lies at x - r = `closest`.
  JAXREC_HD float LogBound(float closest) const { return (range.far - closest) * exponent_scale; }

  template <typename T>
  JAXREC_HD MaskOf<T> Open(const State<T>& state, float log_omitted) const {
    return state.threshold < T{} + log_omitted;
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

  // True where drawing the hit must first rescale what has been summed, by *scale.
  template <typename T>
  JAXREC_HD MaskOf<T> Raise(const Hit<T>& hit, float opacity, MaskOf<T> drawn, State<T>* state,
                            T* scale) const {
    const T m = Select(drawn, hit.exponent + FloorLog(opacity * hit.falloff), state->m);
    const auto higher = m > state->m;
    *scale = Exp(state->m - Max(m, state->m));
    state->m = Max(m, state->m);
    state->total = state->total * *scale;
    return higher;
  }

  // Whether any lane needs Raise: the exponent alone bounds the log weight.
  template <typename T>
  JAXREC_HD MaskOf<T> MayRaise(const Hit<T>& hit, const State<T>& state) const {
    return hit.exponent > state.m;
  }

  template <typename T>
  JAXREC_HD T Draw(const Hit<T>& hit, float opacity, MaskOf<T> drawn, State<T>* state) const {
    const T weight =
        Select(drawn, opacity * hit.falloff * Exp(hit.exponent - state->m), T{} + 0.0f);
    state->total = state->total + weight;
    return weight;
  }

  template <typename T>
  JAXREC_HD void UpdateStop(State<T>* state) const {
    state->threshold = state->m + Log(state->total) + logit_stop;
  }

  // Scale of all sums and the background's weight at the end of a ray.
  template <typename T>
  JAXREC_HD void End(const State<T>& state, T* scale, T* rest) const {
    *scale = 1.0f / state.total;
    *rest = Exp(start - state.m) * *scale;
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
    const T power = Select(chosen, Exp(hit.exponent - m) / total, zero);
    *share = opacity * hit.falloff * power;
    const T d_weight = (value - level) * power;  // over o d
    const T d_zeta = *share * (d_depth - (value - level) * (exponent_scale * opacity));
    const auto fades = Not(chord.thin) & (hit.falloff > zero);
    const T d_w = Select(fades, d_weight * (-opacity * inverse), zero);
    const T over_s = Select(hit.half_length > zero, 1.0f / hit.half_length, zero);
    const T over_w = Select(chord.w > zero, 1.0f / chord.w, zero);
    const T lean = Select(chord.hypotenuse > zero, chord.q / chord.hypotenuse, zero);
    ChordCotangent<T> out;
    out.along = d_zeta - d_w * lean * chord.q * over_w;
    out.beside = d_zeta * over_s + d_w * over_w * (1.0f + lean);
    out.radius = -(d_w * chord.w * inverse) - d_zeta * sphere.r * over_s;
    out.opacity = d_weight * hit.falloff * (1.0f + hit.exponent);
    return out;
  }
};

}  // namespace jaxrec
