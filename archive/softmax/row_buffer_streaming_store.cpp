// Softmax over contiguous rows: maximum, polynomial exp into a row buffer on the stack, then one scaling pass with non-temporal stores, so memory
// sees one read and one write an element. The next row is prefetched while this one is exponentiated.
//
// @tune PREFETCH = true in false true
// @tune STREAM = true in false true
// @tune UNROLL = 2 in 1 2 4
// @require x.contiguous
// @const COLUMNS = x.shape[-1]
// @require 8 <= COLUMNS <= 131072                            # a row is buffered on the stack
// @launch softmax_rows(x, out, x.numel // COLUMNS)

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

static inline float total(vec v) { return ((v[0] + v[4]) + (v[1] + v[5])) + ((v[2] + v[6]) + (v[3] + v[7])); }

static inline float highest(vec v) {
  float m = v[0];
  for (int i = 1; i < LANES; ++i) m = v[i] > m ? v[i] : m;
  return m;
}

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

static inline float row_maximum(const float* row) {
  vec m[UNROLL];
  for (int u = 0; u < UNROLL; ++u) m[u] = load(row);
  int j = 0;
  for (; j + UNROLL * LANES <= COLUMNS; j += UNROLL * LANES)
    for (int u = 0; u < UNROLL; ++u) m[u] = larger(m[u], load(row + j + u * LANES));
  for (; j < COLUMNS; j += LANES) m[0] = larger(m[0], load(row + (j + LANES <= COLUMNS ? j : COLUMNS - LANES)));
  for (int u = 1; u < UNROLL; ++u) m[0] = larger(m[0], m[u]);
  return highest(m[0]);
}

// Fills `buffer` with exp(row - maximum) and returns the sum.
static inline float exponentiate(const float* row, const float* next, float maximum, float* buffer) {
  vec s[UNROLL];
  for (int u = 0; u < UNROLL; ++u) s[u] = splat(0.0f);
  int j = 0;
  for (; j + UNROLL * LANES <= COLUMNS; j += UNROLL * LANES) {
    if (PREFETCH)
      for (int u = 0; u < UNROLL * LANES; u += 16) __builtin_prefetch(next + j + u, 0, 3);
    const pack<UNROLL> e = exp_nonpositive(each<UNROLL>([&](int u) { return load(row + j + u * LANES) - maximum; }));
    for (int u = 0; u < UNROLL; ++u) s[u] += e.v[u];
    memcpy(buffer + j, &e, sizeof e);
  }
  for (; j < COLUMNS; j += LANES) {
    const vec e = exp_nonpositive(load_part(row + j, COLUMNS - j < LANES ? COLUMNS - j : LANES, -__builtin_inff()) - maximum);
    s[0] += e;
    memcpy(buffer + j, &e, sizeof e);
  }
  for (int u = 1; u < UNROLL; ++u) s[0] += s[u];
  return total(s[0]);
}

void softmax_rows(const float* x, float* out, int64_t rows) {
  const bool stream = STREAM && COLUMNS % LANES == 0 && (uintptr_t)out % 32 == 0;
#pragma omp parallel
  {
    alignas(64) float buffer[(COLUMNS + LANES - 1) / LANES * LANES];
#pragma omp for schedule(static)
    for (int64_t i = 0; i < rows; ++i) {
      const float* row = x + i * COLUMNS;
      const float* next = i + 1 < rows ? row + COLUMNS : row;
      const float scale = 1.0f / exponentiate(row, next, row_maximum(row), buffer);
      int j = 0;
      for (; j + LANES <= COLUMNS; j += LANES) store(out + i * COLUMNS + j, load(buffer + j) * scale, stream);
      for (; j < COLUMNS; ++j) out[i * COLUMNS + j] = buffer[j] * scale;
    }
    drain();
  }
}
