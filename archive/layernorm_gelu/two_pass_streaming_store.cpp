// LayerNorm and exact GELU fused: the row stays in L1 for a two-pass mean and variance, then normalise, GELU by one branch-free polynomial,
// non-temporal stores. The next row is prefetched behind the arithmetic.
//
// @tune PREFETCH = true in false true
// @tune STREAM = true in false true
// @tune UNROLL = 2 in 1 2 4
// @require x.contiguous and norm_weight.contiguous and norm_bias.contiguous
// @const COLUMNS = x.shape[-1]
// @require norm_weight.numel == COLUMNS
// @launch layernorm_gelu(x, norm_weight, norm_bias, out, x.numel // COLUMNS, 1e-5)

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

static inline float total(vec v) { return ((v[0] + v[4]) + (v[1] + v[5])) + ((v[2] + v[6]) + (v[3] + v[7])); }

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

// x * Phi(x), the exact GELU, as max(x, 0) - t * Phi(-t) with t = |x|; 2 * Phi(-t) = 2^(t * R(t)) with a minimax polynomial R on [0, 6].
template <int N>
INLINE pack<N> gelu(pack<N> x) {
  typedef int32_t ivec __attribute__((vector_size(32)));
  const vec zero = splat(0.0f), six = splat(6.0f), shifter = splat(12582912.0f);  // adding 1.5 * 2^23 rounds to an integer
  const pack<N> t = each<N>([&](int i) {
    const vec size = (vec)((ivec)x.v[i] & 0x7fffffff);
    return size < six ? size : six;
  });
  pack<N> r = each<N>([&](int i) { return t.v[i] * 3.006140985e-9f - 1.095141191e-7f; });
  r = horner<N>(r, t, 1.768612696e-6f);
  r = horner<N>(r, t, -1.656903604e-5f);
  r = horner<N>(r, t, 9.695326399e-5f);
  r = horner<N>(r, t, -3.251446239e-4f);
  r = horner<N>(r, t, 5.997166858e-5f);
  r = horner<N>(r, t, 6.902748993e-3f);
  r = horner<N>(r, t, -5.242543944e-2f);
  r = horner<N>(r, t, -4.592227492e-1f);
  r = horner<N>(r, t, -1.151104226f);
  const pack<N> e = each<N>([&](int i) { return r.v[i] * t.v[i]; });
  const pack<N> shifted = each<N>([&](int i) { return e.v[i] + shifter; });
  const pack<N> f = each<N>([&](int i) { return e.v[i] - (shifted.v[i] - shifter); });
  pack<N> p = each<N>([&](int i) { return f.v[i] * 1.547619129e-4f + 1.340055046e-3f; });
  p = horner<N>(p, f, 9.618004405e-3f);
  p = horner<N>(p, f, 5.550327076e-2f);
  p = horner<N>(p, f, 2.402265134e-1f);
  p = horner<N>(p, f, 6.931472066e-1f);
  p = horner<N>(p, f, 1.0f);
  const pack<N> tail = each<N>([&](int i) { return p.v[i] * (vec)(((ivec)shifted.v[i] << 23) + (126 << 23)); });
  return each<N>([&](int i) { return (x.v[i] > zero ? x.v[i] : zero) - t.v[i] * tail.v[i]; });
}

// The sum of (row - shift), or of its squares.
template <bool SQUARED>
static inline float row_sum(const float* row, float shift) {
  vec s[UNROLL];
  for (int u = 0; u < UNROLL; ++u) s[u] = splat(0.0f);
  int j = 0;
  for (; j + UNROLL * LANES <= COLUMNS; j += UNROLL * LANES)
    for (int u = 0; u < UNROLL; ++u) {
      const vec d = load(row + j + u * LANES) - shift;
      s[u] += SQUARED ? d * d : d;
    }
  for (; j < COLUMNS; j += LANES) {
    const vec d = load_part(row + j, COLUMNS - j < LANES ? COLUMNS - j : LANES, shift) - shift;
    s[0] += SQUARED ? d * d : d;
  }
  for (int u = 1; u < UNROLL; ++u) s[0] += s[u];
  return total(s[0]);
}

void layernorm_gelu(const float* x, const float* weight, const float* bias, float* out, int64_t rows, float eps) {
  const bool stream = STREAM && COLUMNS % LANES == 0 && (uintptr_t)out % 32 == 0;
#pragma omp parallel
  {
#pragma omp for schedule(static)
    for (int64_t i = 0; i < rows; ++i) {
      const float* row = x + i * COLUMNS;
      const float* next = i + 1 < rows ? row + COLUMNS : row;
      float* to = out + i * COLUMNS;
      const float mean = row_sum<false>(row, 0.0f) / COLUMNS;
      const float scale = 1.0f / __builtin_sqrtf(row_sum<true>(row, mean) / COLUMNS + eps);
      int j = 0;
      for (; j + UNROLL * LANES <= COLUMNS; j += UNROLL * LANES) {
        if (PREFETCH)
          for (int u = 0; u < UNROLL * LANES; u += 16) __builtin_prefetch(next + j + u, 0, 3);
        const pack<UNROLL> g = gelu(each<UNROLL>([&](int u) {
          const int k = j + u * LANES;
          return (load(row + k) - mean) * scale * load(weight + k) + load(bias + k);
        }));
        for (int u = 0; u < UNROLL; ++u) store(to + j + u * LANES, g.v[u], stream);
      }
      for (; j < COLUMNS; j += LANES) {
        const int n = COLUMNS - j < LANES ? COLUMNS - j : LANES;
        const vec v = (load_part(row + j, n, 0.0f) - mean) * scale * load_part(weight + j, n, 0.0f) + load_part(bias + j, n, 0.0f);
        const pack<1> g = gelu<1>({{v}});
        memcpy(to + j, &g, n * sizeof(float));
      }
    }
    drain();
  }
}
