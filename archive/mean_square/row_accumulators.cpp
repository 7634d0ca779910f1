// Mean square over a middle dimension: rows stream through a small accumulator array that stays in L1, several rows a step so that each
// accumulator is loaded and stored once for all of them. Columns can be split for more parallel work.
//
// @tune ROWS_PER_STEP = 4 in 1 2 4 8
// @tune TILE = 1024 in 256 512 1024 2048                     # columns a task
// @tune AHEAD = 4 in 0 4 8                                   # rows of prefetch
// @require x.contiguous and x.ndim >= 2
// @const REDUCED = x.shape[1]
// @const INNER = x.numel // (x.shape[0] * REDUCED)
// @launch mean_square(x, out, x.shape[0])

#include <stdint.h>

static inline void add_squares(const float* x, int rows, int width, float* sum) {
#pragma omp simd
  for (int j = 0; j < width; ++j) {
    float s = 0.0f;
    for (int r = 0; r < rows; ++r) s += x[(int64_t)r * INNER + j] * x[(int64_t)r * INNER + j];
    sum[j] += s;
  }
}

void mean_square(const float* x, float* out, int64_t outer) {
#pragma omp parallel for collapse(2) schedule(static)
  for (int64_t i = 0; i < outer; ++i)
    for (int64_t first = 0; first < INNER; first += TILE) {
      const int width = INNER - first < TILE ? INNER - first : TILE;
      const float* tile = x + i * REDUCED * INNER + first;
      alignas(64) float sum[TILE] = {};
      int r = 0;
      for (; r + ROWS_PER_STEP <= REDUCED; r += ROWS_PER_STEP) {
        if (AHEAD > 0 && r + AHEAD + ROWS_PER_STEP <= REDUCED)
          for (int k = 0; k < ROWS_PER_STEP; ++k)
            for (int j = 0; j < width; j += 16) __builtin_prefetch(tile + (int64_t)(r + AHEAD + k) * INNER + j, 0, 3);
        add_squares(tile + (int64_t)r * INNER, ROWS_PER_STEP, width, sum);
      }
      for (; r < REDUCED; ++r) add_squares(tile + (int64_t)r * INNER, 1, width, sum);
      for (int j = 0; j < width; ++j) out[i * INNER + first + j] = sum[j] * (1.0f / REDUCED);
    }
}
