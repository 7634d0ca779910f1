// RMSNorm: the sum of squares of a row in several vector accumulators, then scale and weight from the row that is still in L1, written with
// non-temporal stores. The next row is prefetched meanwhile.
//
// @tune PREFETCH = true in false true
// @tune STREAM = true in false true
// @tune UNROLL = 2 in 1 2 4
// @require x.contiguous and weight.contiguous
// @const COLUMNS = x.shape[-1]
// @require weight.numel == COLUMNS
// @launch rms_norm(x, weight, out, x.numel // COLUMNS, 1e-6)

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

static inline float sum_of_squares(const float* row) {
  vec s[UNROLL];
  for (int u = 0; u < UNROLL; ++u) s[u] = splat(0.0f);
  int j = 0;
  for (; j + UNROLL * LANES <= COLUMNS; j += UNROLL * LANES)
    for (int u = 0; u < UNROLL; ++u) s[u] += load(row + j + u * LANES) * load(row + j + u * LANES);
  for (; j < COLUMNS; j += LANES) {
    const vec v = load_part(row + j, COLUMNS - j < LANES ? COLUMNS - j : LANES, 0.0f);
    s[0] += v * v;
  }
  for (int u = 1; u < UNROLL; ++u) s[0] += s[u];
  return total(s[0]);
}

static inline void scale_row(const float* row, const float* next, const float* weight, float* to, float scale, bool stream) {
  int j = 0;
  for (; j + UNROLL * LANES <= COLUMNS; j += UNROLL * LANES) {
    if (PREFETCH)
      for (int u = 0; u < UNROLL * LANES; u += 16) __builtin_prefetch(next + j + u, 0, 3);
    for (int u = 0; u < UNROLL * LANES; u += LANES) store(to + j + u, load(row + j + u) * scale * load(weight + j + u), stream);
  }
  for (; j < COLUMNS; ++j) to[j] = row[j] * scale * weight[j];
}

void rms_norm(const float* x, const float* weight, float* out, int64_t rows, float eps) {
  const bool stream = STREAM && COLUMNS % LANES == 0 && (uintptr_t)out % 32 == 0;
#pragma omp parallel
  {
#pragma omp for schedule(static)
    for (int64_t i = 0; i < rows; ++i) {
      const float* row = x + i * COLUMNS;
      const float scale = 1.0f / __builtin_sqrtf(sum_of_squares(row) / COLUMNS + eps);
      scale_row(row, i + 1 < rows ? row + COLUMNS : row, weight, out + i * COLUMNS, scale, stream);
    }
    drain();
  }
}
