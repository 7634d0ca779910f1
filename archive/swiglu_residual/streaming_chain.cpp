// The whole elementwise chain silu(gate) * up * scale + residual, clamped, in one pass: polynomial exp, one division, non-temporal stores,
// software prefetch of the three input streams.
//
// @tune STREAM = true in false true
// @tune AHEAD = 256 in 0 256 512 1024                        # elements of prefetch
// @tune UNROLL = 2 in 1 2 4
// @require gate.contiguous and up.contiguous and residual.contiguous
// @require gate.numel == out.numel and up.numel == out.numel and residual.numel == out.numel
// @launch swiglu_residual(gate, up, residual, out, out.numel, 0.5, 8.0)

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

typedef float vec __attribute__((vector_size(32)));
constexpr int LANES = 8;

static inline vec splat(float a) { return vec{} + a; }

static inline vec load(const float* p) {
  vec v;
  memcpy(&v, p, sizeof v);
  return v;
}

static inline void store(float* p, vec v, bool stream) {
#if defined(__AVX__)
  if (stream) return _mm256_stream_ps(p, (__m256)v);
#endif
  memcpy(p, &v, sizeof v);
}

// Streaming stores are weakly ordered; a thread makes its own visible before it ends.
static inline void drain() {
#if defined(__AVX__)
  _mm_sfence();
#endif
}

static inline vec load_part(const float* p, int n, float fill) {
  vec v = splat(fill);
  memcpy(&v, p, n * sizeof(float));
  return v;
}

static inline vec larger(vec a, vec b) { return a > b ? a : b; }

#define INLINE __attribute__((always_inline)) static inline  // a call would pass packs through memory

// N vectors in lockstep: their instructions interleave, which hides the latency of a long polynomial.
template <int N>
struct pack {
  vec v[N];
};

template <int N, class F>
INLINE pack<N> each(F f) {
  pack<N> r;
#pragma GCC unroll 8
  for (int i = 0; i < N; ++i) r.v[i] = f(i);
  return r;
}

template <int N>
INLINE pack<N> horner(pack<N> p, pack<N> x, float c) {
  return each<N>([&](int i) { return p.v[i] * x.v[i] + c; });
}

// exp(x) for x <= 0 within about one ulp; results below the smallest normal number become 0.
template <int N>
INLINE pack<N> exp_nonpositive(pack<N> x) {
  typedef int32_t ivec __attribute__((vector_size(32)));
  const vec low = splat(-87.33f), shifter = splat(12582912.0f);  // adding 1.5 * 2^23 rounds to an integer
  const pack<N> y = each<N>([&](int i) { return larger(x.v[i], low); });
  const pack<N> t = each<N>([&](int i) { return y.v[i] * 1.44269504f + shifter; });
  pack<N> r = each<N>([&](int i) { return y.v[i] - (t.v[i] - shifter) * 0.693359375f; });
  r = each<N>([&](int i) { return r.v[i] + (t.v[i] - shifter) * 2.12194440e-4f; });
  pack<N> p = each<N>([&](int i) { return r.v[i] * 1.395171725e-3f + 8.369598410e-3f; });
  p = horner<N>(p, r, 4.166618728e-2f);
  p = horner<N>(p, r, 1.666651289e-1f);
  p = horner<N>(p, r, 5.0e-1f);
  p = each<N>([&](int i) { return p.v[i] * (r.v[i] * r.v[i]) + r.v[i]; });
  const pack<N> power = each<N>([&](int i) { return (vec)(((ivec)t.v[i] << 23) + (127 << 23)); });
  p = each<N>([&](int i) { return p.v[i] * power.v[i] + power.v[i]; });
  return each<N>([&](int i) { return x.v[i] < low ? splat(0.0f) : p.v[i]; });
}

static inline vec exp_nonpositive(vec x) { return exp_nonpositive<1>({{x}}).v[0]; }

// x / (1 + exp(-x)), through exp(-|x|), which cannot overflow.
template <int N>
INLINE pack<N> silu(pack<N> x) {
  const vec zero = splat(0.0f);
  const pack<N> e = exp_nonpositive(each<N>([&](int i) { return x.v[i] > zero ? -x.v[i] : x.v[i]; }));
  return each<N>([&](int i) { return x.v[i] * (x.v[i] > zero ? splat(1.0f) : e.v[i]) / (1.0f + e.v[i]); });
}

static inline vec finish(vec s, vec up, vec residual, float scale, float bound) {
  const vec v = s * up * scale + residual, low = splat(-bound), high = splat(bound);
  return v > high ? high : (v < low ? low : v);
}

void swiglu_residual(const float* gate, const float* up, const float* residual, float* out, int64_t n, float scale, float bound) {
  constexpr int STEP = UNROLL * LANES;
  const bool stream = STREAM && (uintptr_t)out % sizeof(vec) == 0;
#pragma omp parallel
  {
#pragma omp for schedule(static)
    for (int64_t j = 0; j < n / STEP * STEP; j += STEP) {
      if (AHEAD > 0 && j + AHEAD + STEP <= n) {
        __builtin_prefetch(gate + j + AHEAD, 0, 3);
        __builtin_prefetch(up + j + AHEAD, 0, 3);
        __builtin_prefetch(residual + j + AHEAD, 0, 3);
      }
      const pack<UNROLL> s = silu(each<UNROLL>([&](int u) { return load(gate + j + u * LANES); }));
      for (int u = 0; u < UNROLL; ++u) {
        const int64_t k = j + u * LANES;
        store(out + k, finish(s.v[u], load(up + k), load(residual + k), scale, bound), stream);
      }
    }
    drain();
  }
  for (int64_t j = n / STEP * STEP; j < n; j += LANES) {
    const int rest = n - j < LANES ? (int)(n - j) : LANES;
    const pack<1> s = silu<1>({{load_part(gate + j, rest, 0.0f)}});
    const vec v = finish(s.v[0], load_part(up + j, rest, 0.0f), load_part(residual + j, rest, 0.0f), scale, bound);
    memcpy(out + j, &v, rest * sizeof(float));
  }
}
