// Linear + bias + ReLU as one product of our own: the weight is packed into panels of columns once when weights are bound, a register tile of
// MR rows x 8 NV columns is accumulated by FMA over all of K, bias and ReLU are applied before the only store.
//
// @tune MR = 6 in 4 6
// @tune NV = 2 in 2 3
// @tune ROW_BLOCK = 48 in 24 48 96 192                       # rows that pass over a panel before the next panel
// @tune AHEAD = 8 in 0 8 16                                  # panel rows of prefetch
// @require MR * NV <= 12 and ROW_BLOCK % MR == 0
// @require x.contiguous and linear_weight.contiguous and linear_bias.contiguous
// @const K = x.shape[-1]
// @const N = linear_weight.shape[0]
// @const M = x.numel // K
// @const PANEL = 8 * NV
// @const SLICE = 256
// @const PANELS = cdiv(N, PANEL)
// @persist packed float32 [PANELS, K, PANEL]
// @persist padded_bias float32 [PANELS * PANEL]
// @prepare launch pack(linear_weight, linear_bias, packed, padded_bias)
// @launch linear_relu(x, packed, padded_bias, out)

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

void pack(const float* weight, const float* bias, float* packed, float* padded_bias) {
#pragma omp parallel for
  for (int p = 0; p < PANELS; ++p)
    for (int c = 0; c < PANEL; ++c) {
      const int n = p * PANEL + c;
      padded_bias[n] = n < N ? bias[n] : 0.0f;
      for (int k = 0; k < K; ++k) packed[((int64_t)p * K + k) * PANEL + c] = n < N ? weight[(int64_t)n * K + k] : 0.0f;
    }
}

// ROWS rows of x by one panel. Slices of K are summed apart, which keeps the rounding error near that of a library.
template <int ROWS>
static inline void tile(const float* x, const float* panel, const float* bias, float* out, int columns) {
  vec whole[ROWS][NV];
  for (int r = 0; r < ROWS; ++r)
    for (int v = 0; v < NV; ++v) whole[r][v] = load(bias + v * LANES);
  for (int first = 0; first < K; first += SLICE) {
    vec sum[ROWS][NV];
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < NV; ++v) sum[r][v] = splat(0.0f);
    for (int k = first; k < first + SLICE && k < K; ++k) {
      if (AHEAD > 0) __builtin_prefetch(panel + (int64_t)(k + AHEAD) * PANEL, 0, 3);
      vec w[NV];
#pragma GCC unroll 4
      for (int v = 0; v < NV; ++v) w[v] = load(panel + (int64_t)k * PANEL + v * LANES);
#pragma GCC unroll 8
      for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 4
        for (int v = 0; v < NV; ++v) sum[r][v] += w[v] * x[(int64_t)r * K + k];
    }
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < NV; ++v) whole[r][v] += sum[r][v];
  }
  for (int r = 0; r < ROWS; ++r) {
    float line[PANEL];
    for (int v = 0; v < NV; ++v) {
      const vec positive = whole[r][v] > 0.0f ? whole[r][v] : splat(0.0f);
      memcpy(line + v * LANES, &positive, sizeof positive);
    }
    memcpy(out + (int64_t)r * N, line, columns * sizeof(float));
  }
}

void linear_relu(const float* x, const float* packed, const float* bias, float* out) {
#pragma omp parallel for schedule(static)
  for (int item = 0; item < PANELS * ((M + ROW_BLOCK - 1) / ROW_BLOCK); ++item) {
    const int block = item % ((M + ROW_BLOCK - 1) / ROW_BLOCK), p = item / ((M + ROW_BLOCK - 1) / ROW_BLOCK);
    const float* panel = packed + (int64_t)p * K * PANEL;
    const int first = block * ROW_BLOCK, end = first + ROW_BLOCK < M ? first + ROW_BLOCK : M;
    const int columns = N - p * PANEL < PANEL ? N - p * PANEL : PANEL;
    int i = first;
    for (; i + MR <= end; i += MR) tile<MR>(x + (int64_t)i * K, panel, bias + p * PANEL, out + (int64_t)i * N + p * PANEL, columns);
    if constexpr (M % MR > 0)
      if (i < end) tile<M % MR>(x + (int64_t)i * K, panel, bias + p * PANEL, out + (int64_t)i * N + p * PANEL, columns);
  }
}
