// LayerNorm and exact GELU fused in plain scalar code that the compiler vectorises (omp simd): two-pass mean and variance in partial sums, then a
// branch-free polynomial GELU. No intrinsics, ordinary stores: a simple start that is easy to change.
//
// @tune CHUNK = 8 in 1 8 64                                  # rows a scheduling step
// @tune WIDTH = 32 in 16 32 64                               # partial sums
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

// x * Phi(x), the exact GELU, as max(x, 0) - t * Phi(-t) with t = |x|; 2 * Phi(-t) = 2^(t * R(t)) with a minimax polynomial R on [0, 6].
static inline float gelu(float x) {
  const uint32_t size = __builtin_bit_cast(uint32_t, x) & 0x7fffffffu, six = __builtin_bit_cast(uint32_t, 6.0f);
  const float t = __builtin_bit_cast(float, size < six ? size : six);  // as integers: a choice of floats would stop the vectoriser
  float r = t * 3.006140985e-9f - 1.095141191e-7f;
  r = r * t + 1.768612696e-6f;
  r = r * t - 1.656903604e-5f;
  r = r * t + 9.695326399e-5f;
  r = r * t - 3.251446239e-4f;
  r = r * t + 5.997166858e-5f;
  r = r * t + 6.902748993e-3f;
  r = r * t - 5.242543944e-2f;
  r = r * t - 4.592227492e-1f;
  r = r * t - 1.151104226f;
  const float e = r * t, shifted = e + 12582912.0f;  // adding 1.5 * 2^23 rounds to an integer
  const float f = e - (shifted - 12582912.0f);
  float p = f * 1.547619129e-4f + 1.340055046e-3f;
  p = p * f + 9.618004405e-3f;
  p = p * f + 5.550327076e-2f;
  p = p * f + 2.402265134e-1f;
  p = p * f + 6.931472066e-1f;
  p = p * f + 1.0f;
  const float half_power = __builtin_bit_cast(float, (int32_t)(__builtin_bit_cast(uint32_t, shifted) << 23) + (126 << 23));
  return 0.5f * (x + fabsf(x)) - t * (p * half_power);
}

void layernorm_gelu(const float* x, const float* weight, const float* bias, float* out, int64_t rows, float eps) {
#pragma omp parallel for schedule(static, CHUNK)
  for (int64_t i = 0; i < rows; ++i) {
    const float* row = x + i * COLUMNS;
    float* to = out + i * COLUMNS;
    const float mean = row_sum<false>(row, 0.0f) / COLUMNS;
    const float scale = 1.0f / sqrtf(row_sum<true>(row, mean) / COLUMNS + eps);
#pragma omp simd
    for (int j = 0; j < COLUMNS; ++j) to[j] = gelu((row[j] - mean) * scale * weight[j] + bias[j]);
  }
}
