// Convolution + batch norm (eval) + ReLU: the normalisation is folded into weight and bias once when weights are bound; the library convolves,
// then one pass adds the bias and clips in place. (A bias that starts the accumulation would be where 576 small terms are rounded.)
//
// @tune BLOCK = 256 in 128 256 512
// @tune VECTORS = 1 in 1 2 4                                 # float4 a thread
// @require conv_weight.contiguous and x.contiguous
// @const CHANNELS = conv_weight.shape[0]
// @const PER_CHANNEL = conv_weight.numel // CHANNELS
// @persist folded_weight float32 [CHANNELS, conv_weight.shape[1], conv_weight.shape[2], conv_weight.shape[3]]
// @persist folded_bias float32 [CHANNELS]
// @prepare launch fold<<<CHANNELS, 128>>>(conv_weight, bn_weight, bn_bias, bn_running_mean, bn_running_var, folded_weight, folded_bias, 1e-5)
// @call out = conv2d(x, folded_weight, padding=1)
// @const PLANE = out.shape[2] * out.shape[3]
// @require PLANE % 4 == 0
// @const TOTAL = out.numel // 4                              # float4
// @launch add_bias_and_clip<<<cdiv(TOTAL, BLOCK * VECTORS), BLOCK>>>(out, folded_bias)

// In double: it is off the clock, and the folded weight is then correctly rounded.
__global__ void fold(const float* w, const float* gamma, const float* beta, const float* mean, const float* var, float* folded, float* bias,
                     double eps)
{
    const int c = blockIdx.x;
    const double scale = gamma[c] / sqrt(var[c] + eps);
    for (int k = threadIdx.x; k < PER_CHANNEL; k += blockDim.x) folded[c * PER_CHANNEL + k] = (float)(w[c * PER_CHANNEL + k] * scale);
    if (threadIdx.x == 0) bias[c] = (float)(beta[c] - mean[c] * scale);
}

// A NaN stays one, as in torch.relu.
__device__ __forceinline__ float clipped(float v) { return v < 0.0f ? 0.0f : v; }

__global__ void __launch_bounds__(BLOCK) add_bias_and_clip(float4* out, const float* __restrict__ bias)
{
    const int first = blockIdx.x * (BLOCK * VECTORS) + threadIdx.x;
    float4 v[VECTORS];
#pragma unroll
    for (int i = 0; i < VECTORS; ++i)
        if (first + i * BLOCK < TOTAL) v[i] = out[first + i * BLOCK];
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        const int at = first + i * BLOCK;
        if (at >= TOTAL) return;
        const float b = __ldg(bias + at / (PLANE / 4) % CHANNELS);
        out[at] = make_float4(clipped(v[i].x + b), clipped(v[i].y + b), clipped(v[i].z + b), clipped(v[i].w + b));
    }
}
