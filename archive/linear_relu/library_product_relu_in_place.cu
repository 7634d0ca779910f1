// Linear + bias + ReLU: the library multiplies and adds the bias straight into the output, then one pass clips it in place while it is in cache.
//
// @tune BLOCK = 256 in 128 256 512
// @tune VECTORS = 1 in 1 2                                   # float4 a thread
// @require x.ndim == 2 and x.contiguous and linear_weight.contiguous
// @require out.numel % (4 * BLOCK * VECTORS) == 0
// @call out = addmm(linear_bias, x, linear_weight.T)
// @launch clip<<<out.numel // (4 * BLOCK * VECTORS), BLOCK>>>(out)

// A NaN stays one, as in torch.relu.
__device__ __forceinline__ float clipped(float v) { return v < 0.0f ? 0.0f : v; }

__global__ void __launch_bounds__(BLOCK) clip(float4* out)
{
    const size_t first = (size_t)blockIdx.x * (BLOCK * VECTORS) + threadIdx.x;
    float4 v[VECTORS];
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) v[i] = out[first + i * BLOCK];
#pragma unroll
    for (int i = 0; i < VECTORS; ++i)
        out[first + i * BLOCK] = make_float4(clipped(v[i].x), clipped(v[i].y), clipped(v[i].z), clipped(v[i].w));
}
