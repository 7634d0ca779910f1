// Convolution + batch norm (eval) + ReLU: the normalisation is folded into weight and bias once when weights are bound; the library convolves,
// then one pass adds the bias and clips in place. (A bias inside the convolution would be where 576 small terms are rounded.)
//
// @tune CHUNK = 4 in 1 4 16                                  # planes a scheduling step
// @tune THREADED = true in false true
// @require conv_weight.contiguous
// @const CHANNELS = conv_weight.shape[0]
// @const PER_CHANNEL = conv_weight.numel // CHANNELS
// @persist folded_weight float32 [CHANNELS, conv_weight.shape[1], conv_weight.shape[2], conv_weight.shape[3]]
// @persist folded_bias float32 [CHANNELS]
// @prepare launch fold(conv_weight, bn_weight, bn_bias, bn_running_mean, bn_running_var, folded_weight, folded_bias, 1e-5)
// @call out = conv2d(x, folded_weight, padding=1)
// @const PLANE = out.shape[2] * out.shape[3]
// @launch add_bias_and_clip(out, folded_bias, out.shape[0] * CHANNELS)

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

void add_bias_and_clip(float* out, const float* bias, int64_t planes) {
#pragma omp parallel for schedule(static, CHUNK) if (THREADED)
  for (int64_t p = 0; p < planes; ++p) {
    float* plane = out + p * PLANE;
    const float b = bias[p % CHANNELS];
#pragma omp simd
    for (int j = 0; j < PLANE; ++j) {
      const float v = plane[j] + b;
      plane[j] = v > 0.0f ? v : 0.0f;
    }
  }
}
