// Convolution + batch norm (eval) + ReLU: the normalisation is folded into weight and bias once when weights are bound; the library convolves with
// the bias, then one pass clips in place.
//
// @tune CHUNK = 16384 in 4096 16384 65536                    # elements a scheduling step
// @tune THREADED = true in false true
// @require conv_weight.contiguous
// @const CHANNELS = conv_weight.shape[0]
// @const PER_CHANNEL = conv_weight.numel // CHANNELS
// @persist weight float32 [CHANNELS, conv_weight.shape[1], conv_weight.shape[2], conv_weight.shape[3]]
// @persist bias float32 [CHANNELS]
// @prepare launch fold(conv_weight, bn_weight, bn_bias, bn_running_mean, bn_running_var, weight, bias, 1e-5)
// @call out = conv2d(x, weight, bias, padding=1)
// @launch clip(out, out.numel)

#include <math.h>
#include <stdint.h>

// In double: it is off the clock, and the folded weight is then correctly rounded.
void fold(const float* w, const float* gamma, const float* beta, const float* mean, const float* var, float* folded, float* bias, double eps) {
  for (int c = 0; c < CHANNELS; ++c) {
    const double scale = gamma[c] / sqrt(var[c] + eps);
    for (int k = 0; k < PER_CHANNEL; ++k) folded[c * PER_CHANNEL + k] = (float)(w[c * PER_CHANNEL + k] * scale);
    bias[c] = (float)(beta[c] - mean[c] * scale);
  }
}

void clip(float* out, int64_t n) {
#pragma omp parallel for schedule(static) if (THREADED)
  for (int64_t first = 0; first < n; first += CHUNK) {
    const int64_t end = first + CHUNK < n ? first + CHUNK : n;
#pragma omp simd
    for (int64_t j = first; j < end; ++j) out[j] = out[j] > 0.0f ? out[j] : 0.0f;
  }
}
