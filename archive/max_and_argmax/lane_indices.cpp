// Row maximum and its first index in one pass: every vector lane keeps its best value and the step it came from; at the end the lanes are
// compared, the smaller index winning a tie. The next row is prefetched.
//
// @tune CHAINS = 4 in 1 2 4 8
// @tune PREFETCH = true in false true
// @tune CHUNK = 16 in 1 16 256                               # rows a scheduling step
// @require x.contiguous
// @const COLUMNS = x.shape[-1]
// @require COLUMNS % (8 * CHAINS) == 0
// @launch max_and_argmax(x, out0, out1, x.numel // COLUMNS)

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

typedef int32_t ivec __attribute__((vector_size(32)));

static inline void row_maximum(const float* row, const float* next, float* value, int64_t* index) {
  vec best[CHAINS];
  ivec step[CHAINS];
  for (int c = 0; c < CHAINS; ++c) {
    best[c] = load(row + c * LANES);
    step[c] = ivec{};
  }
  ivec now = {};
  for (int j = 0; j < COLUMNS; j += CHAINS * LANES, now += 1) {
    if (PREFETCH)
      for (int u = 0; u < CHAINS * LANES; u += 16) __builtin_prefetch(next + j + u, 0, 3);
    for (int c = 0; c < CHAINS; ++c) {
      const vec v = load(row + j + c * LANES);
      step[c] = v > best[c] ? now : step[c];  // strictly: the first of equal values stays
      best[c] = v > best[c] ? v : best[c];
    }
  }
  float top = best[0][0];
  int where = step[0][0] * CHAINS * LANES;
  for (int c = 0; c < CHAINS; ++c)
    for (int i = 0; i < LANES; ++i) {
      const int k = step[c][i] * CHAINS * LANES + c * LANES + i;
      if (best[c][i] > top || (best[c][i] == top && k < where)) {
        top = best[c][i];
        where = k;
      }
    }
  *value = row[where];
  *index = where;
}

void max_and_argmax(const float* x, float* value, int64_t* index, int64_t rows) {
#pragma omp parallel for schedule(static, CHUNK)
  for (int64_t i = 0; i < rows; ++i) {
    const float* row = x + i * COLUMNS;
    row_maximum(row, i + 1 < rows ? row + COLUMNS : row, value + i, index + i);
  }
}
