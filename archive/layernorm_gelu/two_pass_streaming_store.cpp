// LayerNorm and exact GELU fused: the row stays in L1 for a two-pass mean and variance, then normalise, GELU by one branch-free polynomial,
// non-temporal stores. The next row is prefetched behind the arithmetic.
//
// @tune PREFETCH = true in false true
// @tune STREAM = true in false true
// @tune UNROLL = 4 in 2 4 8
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

// x * Phi(x), the exact GELU, without cancellation: 2 * Phi(-t) = 2^(t * R(t)) with a minimax polynomial R on [0, 6]; about two ulp for x > -1.
static inline vec gelu(vec x) {
  typedef int32_t ivec __attribute__((vector_size(32)));
  const vec zero = splat(0.0f), six = splat(6.0f), shifter = splat(12582912.0f);  // adding 1.5 * 2^23 rounds to an integer
  const vec size = x < zero ? -x : x;
  const vec t = size < six ? size : six;
  vec r = t * 3.006140985e-9f - 1.095141191e-7f;
  r = r * t + 1.768612696e-6f;
  r = r * t - 1.656903604e-5f;
  r = r * t + 9.695326399e-5f;
  r = r * t - 3.251446239e-4f;
  r = r * t + 5.997166858e-5f;
  r = r * t + 6.902748993e-3f;
  r = r * t - 5.242543944e-2f;
  r = r * t - 4.592227492e-1f;
  r = r * t - 1.151104226f;
  const vec e = r * t, shifted = e + shifter, f = e - (shifted - shifter);
  vec p = f * 1.547619129e-4f + 1.340055046e-3f;
  p = p * f + 9.618004405e-3f;
  p = p * f + 5.550327076e-2f;
  p = p * f + 2.402265134e-1f;
  p = p * f + 6.931472066e-1f;
  p = p * f + 1.0f;
  const vec half_power = (vec)(((ivec)shifted << 23) + (126 << 23));
  const vec tail = size < six ? p * half_power : zero;
  return x * (x < zero ? tail : 1.0f - tail);
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
  const bool stream = STREAM && COLUMNS % LANES == 0 && (uintptr_t)out % sizeof(vec) == 0;
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
      for (; j + 2 * LANES <= COLUMNS; j += 2 * LANES) {
        if (PREFETCH) __builtin_prefetch(next + j, 0, 3);
        for (int u = 0; u < 2 * LANES; u += LANES)
          store(to + j + u, gelu((load(row + j + u) - mean) * scale * load(weight + j + u) + load(bias + j + u)), stream);
      }
      for (; j < COLUMNS; j += LANES) {
        const int n = COLUMNS - j < LANES ? COLUMNS - j : LANES;
        const vec g = gelu((load_part(row + j, n, 0.0f) - mean) * scale * load_part(weight + j, n, 0.0f) + load_part(bias + j, n, 0.0f));
        memcpy(to + j, &g, n * sizeof(float));
      }
    }
    drain();
  }
}
