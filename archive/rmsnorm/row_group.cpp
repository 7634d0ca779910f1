// RMSNorm on a group of rows at a time: their sums of squares run as independent chains that hide latency, and each weight vector is loaded once
// for the whole group. Non-temporal stores.
//
// @tune GROUP = 2 in 1 2 4
// @tune STREAM = true in false true
// @tune CHUNK = 1 in 1 4 16                                  # groups a scheduling step
// @require x.contiguous and weight.contiguous
// @const COLUMNS = x.shape[-1]
// @const ROWS = x.numel // COLUMNS
// @require weight.numel == COLUMNS and COLUMNS % 8 == 0 and ROWS % GROUP == 0
// @launch rms_norm(x, weight, out, 1e-6)

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

static inline float total(vec v) { return ((v[0] + v[4]) + (v[1] + v[5])) + ((v[2] + v[6]) + (v[3] + v[7])); }

void rms_norm(const float* x, const float* weight, float* out, float eps) {
  const bool stream = STREAM && (uintptr_t)out % 32 == 0;
#pragma omp parallel
  {
#pragma omp for schedule(static, CHUNK)
    for (int64_t i = 0; i < ROWS / GROUP; ++i) {
      const float* row = x + i * GROUP * COLUMNS;
      float* to = out + i * GROUP * COLUMNS;
      vec s[GROUP][2] = {};
      for (int j = 0; j + LANES < COLUMNS; j += 2 * LANES)
        for (int g = 0; g < GROUP; ++g)
          for (int u = 0; u < 2; ++u) {
            const vec v = load(row + (int64_t)g * COLUMNS + j + u * LANES);
            s[g][u] += v * v;
          }
      float scale[GROUP];
      for (int g = 0; g < GROUP; ++g) {
        if (COLUMNS % (2 * LANES)) {
          const vec v = load(row + (int64_t)(g + 1) * COLUMNS - LANES);
          s[g][0] += v * v;
        }
        scale[g] = 1.0f / __builtin_sqrtf(total(s[g][0] + s[g][1]) / COLUMNS + eps);
      }
      for (int j = 0; j < COLUMNS; j += LANES) {
        const vec w = load(weight + j);
        for (int g = 0; g < GROUP; ++g) store(to + (int64_t)g * COLUMNS + j, load(row + (int64_t)g * COLUMNS + j) * scale[g] * w, stream);
      }
    }
    drain();
  }
}
