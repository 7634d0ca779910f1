// LayerNorm and exact GELU fused in plain loops: a two-pass mean and variance left to the vectoriser, then erff of the math library, scalar.
// A simple start for a search: correct, one pass over memory, no special stores.
//
// @tune CHUNK = 8 in 1 8 64                                  # rows a scheduling step
// @tune WIDTH = 32 in 8 16 32 64                             # partial sums
// @require x.contiguous and norm_weight.contiguous and norm_bias.contiguous
// @const COLUMNS = x.shape[-1]
// @require norm_weight.numel == COLUMNS and COLUMNS % WIDTH == 0
// @launch layernorm_gelu(x, norm_weight, norm_bias, out, x.numel // COLUMNS, 1e-5)

#include <math.h>
#include <stdint.h>

// Partial sums side by side: the order of additions is fixed, and the compiler can use vector registers for them.
template <bool SQUARED>
static inline float row_sum(const float* row, float shift) {
  float partial[WIDTH] = {};
  for (int j = 0; j < COLUMNS; j += WIDTH)
    for (int k = 0; k < WIDTH; ++k) {
      const float d = row[j + k] - shift;
      partial[k] += SQUARED ? d * d : d;
    }
  float sum = 0.0f;
  for (int k = 0; k < WIDTH; ++k) sum += partial[k];
  return sum;
}

void layernorm_gelu(const float* x, const float* weight, const float* bias, float* out, int64_t rows, float eps) {
#pragma omp parallel for schedule(static, CHUNK)
  for (int64_t i = 0; i < rows; ++i) {
    const float* row = x + i * COLUMNS;
    float* to = out + i * COLUMNS;
    const float mean = row_sum<false>(row, 0.0f) / COLUMNS;
    const float scale = 1.0f / sqrtf(row_sum<true>(row, mean) / COLUMNS + eps);
    for (int j = 0; j < COLUMNS; ++j) {
      const float v = (row[j] - mean) * scale * weight[j] + bias[j];
      to[j] = 0.5f * v * (1.0f + erff(v * 0.70710678f));
    }
  }
}
