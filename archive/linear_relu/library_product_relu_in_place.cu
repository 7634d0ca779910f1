// Linear + bias + ReLU: the library multiplies, then one pass adds the bias and clips in place while the product is in cache. The bias stays out of
// the library call: with it the library takes another, slower algorithm for this shape.
//
// @tune BLOCK = 256 in 128 256 512
// @tune VECTORS = 1 in 1 2                                   # float4 a thread
// @require x.ndim == 2 and x.contiguous and linear_weight.contiguous
// @const N = linear_weight.shape[0]
// @require N % 4 == 0 and out.numel % (4 * BLOCK * VECTORS) == 0
// @call out = mm(x, linear_weight.T)
// @launch finish<<<out.numel // (4 * BLOCK * VECTORS), BLOCK>>>(linear_bias, out)

// A NaN stays one, as in torch.relu.
__device__ __forceinline__ float clipped(float v) { return v < 0.0f ? 0.0f : v; }

__global__ void __launch_bounds__(BLOCK) finish(const float4* __restrict__ bias, float4* out)
{
    const size_t first = (size_t)blockIdx.x * (BLOCK * VECTORS) + threadIdx.x;
    float4 v[VECTORS], add[VECTORS];
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        v[i] = out[first + i * BLOCK];
        add[i] = __ldg(bias + (first + i * BLOCK) % (N / 4));
    }
#pragma unroll
    for (int i = 0; i < VECTORS; ++i)
        out[first + i * BLOCK] = make_float4(
            clipped(v[i].x + add[i].x), clipped(v[i].y + add[i].y), clipped(v[i].z + add[i].z), clipped(v[i].w + add[i].w));
}
