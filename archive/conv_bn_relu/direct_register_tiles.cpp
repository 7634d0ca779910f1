// 3 x 3 convolution + batch norm (eval) + ReLU, direct: weights are folded and packed in groups of four output channels when weights are bound,
// the input is copied once with a border of zeros, and tiles of 4 channels x 8 V pixels of a row are summed in registers.
//
// @tune V = 3 in 2 3
// @tune ROWS = 1 in 1 2 4                                    # output rows a task
// @const IN = conv_weight.shape[1]
// @const OUT = conv_weight.shape[0]
// @const BATCH = x.shape[0]
// @const HEIGHT = x.shape[2]
// @const WIDTH = x.shape[3]
// @const LINE = 8 * cdiv(WIDTH, 8) + 8                       # padded row: one zero left, at least one right
// @require x.contiguous and conv_weight.contiguous and OUT % 4 == 0 and WIDTH % 8 == 0
// @require conv_weight.shape[2] == 3 and conv_weight.shape[3] == 3 and out.shape[2] == HEIGHT and out.shape[3] == WIDTH
// @persist packed float32 [OUT // 4, IN, 9, 4]
// @persist folded_bias float32 [OUT]
// @prepare launch fold(conv_weight, bn_weight, bn_bias, bn_running_mean, bn_running_var, packed, folded_bias, 1e-5)
// @scratch bordered float32 [BATCH, IN, HEIGHT + 2, LINE]
// @launch border(x, bordered)
// @launch convolve(bordered, packed, folded_bias, out)

#include <math.h>
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

constexpr int PLANE = (HEIGHT + 2) * LINE;

// In double: it is off the clock, and the folded weight is then correctly rounded.
void fold(const float* w, const float* gamma, const float* beta, const float* mean, const float* var, float* packed, float* bias, double eps) {
  for (int o = 0; o < OUT; ++o) {
    const double scale = gamma[o] / sqrt(var[o] + eps);
    for (int k = 0; k < IN * 9; ++k) packed[(o / 4 * IN * 9 + k) * 4 + o % 4] = (float)(w[o * IN * 9 + k] * scale);
    bias[o] = (float)(beta[o] - mean[o] * scale);
  }
}

void border(const float* x, float* bordered) {
#pragma omp parallel for schedule(static)
  for (int p = 0; p < BATCH * IN; ++p) {
    float* plane = bordered + (int64_t)p * PLANE;
    memset(plane, 0, LINE * sizeof(float));
    memset(plane + (HEIGHT + 1) * LINE, 0, LINE * sizeof(float));
    for (int i = 0; i < HEIGHT; ++i) {
      float* line = plane + (i + 1) * LINE;
      line[0] = 0.0f;
      memcpy(line + 1, x + ((int64_t)p * HEIGHT + i) * WIDTH, WIDTH * sizeof(float));
      for (int j = WIDTH + 1; j < LINE; ++j) line[j] = 0.0f;
    }
  }
}

// Four output channels by N vectors of pixels of one row; `in` points at the upper left of the window of the first pixel.
template <int N>
static inline void tile(const float* in, const float* w, const float* bias, float* out) {
  vec sum[4][N];
#pragma GCC unroll 4
  for (int o = 0; o < 4; ++o)
#pragma GCC unroll 4
    for (int v = 0; v < N; ++v) sum[o][v] = splat(0.0f);
  for (int c = 0; c < IN; ++c, in += PLANE)
    for (int i = 0; i < 3; ++i)
#pragma GCC unroll 3
      for (int j = 0; j < 3; ++j, w += 4) {
        vec pixels[N];
#pragma GCC unroll 4
        for (int v = 0; v < N; ++v) pixels[v] = load(in + i * LINE + j + v * LANES);
#pragma GCC unroll 4
        for (int o = 0; o < 4; ++o)
#pragma GCC unroll 4
          for (int v = 0; v < N; ++v) sum[o][v] += pixels[v] * w[o];
      }
  for (int o = 0; o < 4; ++o)
    for (int v = 0; v < N; ++v) {
      const vec biased = sum[o][v] + bias[o];  // last, so that small terms are not rounded to the scale of the bias
      const vec positive = biased > 0.0f ? biased : splat(0.0f);
      memcpy(out + (int64_t)o * HEIGHT * WIDTH + v * LANES, &positive, sizeof positive);
    }
}

static inline void row(const float* in, const float* w, const float* bias, float* out) {
  constexpr int VECTORS = WIDTH / LANES;
  constexpr int FULL = VECTORS % V == 1 && VECTORS > V ? VECTORS / V - 1 : VECTORS / V;  // a rest of one would be bound by latency
  constexpr int REST = VECTORS - FULL * V, HALF = REST > V ? REST / 2 : 0;
  int v = 0;
  for (; v < FULL * V; v += V) tile<V>(in + v * LANES, w, bias, out + v * LANES);
  if constexpr (HALF > 0) tile<HALF>(in + v * LANES, w, bias, out + v * LANES);
  if constexpr (REST > HALF) tile<REST - HALF>(in + (v + HALF) * LANES, w, bias, out + (v + HALF) * LANES);
}

void convolve(const float* bordered, const float* packed, const float* bias, float* out) {
  constexpr int BLOCKS = (HEIGHT + ROWS - 1) / ROWS;
#pragma omp parallel for schedule(static)
  for (int item = 0; item < BATCH * BLOCKS; ++item) {
    const int b = item / BLOCKS, first = item % BLOCKS * ROWS;
    for (int o = 0; o < OUT; o += 4)
      for (int i = first; i < first + ROWS && i < HEIGHT; ++i) {
        const float* in = bordered + (int64_t)b * IN * PLANE + i * LINE;
        row(in, packed + (int64_t)o * IN * 9, bias + o, out + (((int64_t)b * OUT + o) * HEIGHT + i) * WIDTH);
      }
  }
}
