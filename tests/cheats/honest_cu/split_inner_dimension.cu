// HONEST the inner dimension split over blocks, parts added by a second launch in a fixed order
// TASK linear
// @tune SPLIT = 3 in 2 3 4
// @require x.shape[1] % SPLIT == 0
// @scratch part float32 [SPLIT, x.shape[0], out.shape[1]]
// @launch partial<<<(x.shape[0], SPLIT), out.shape[1]>>>(x, linear_weight, part, x.shape[1])
// @launch join<<<x.shape[0], out.shape[1]>>>(part, linear_bias, out, out.numel)
__global__ void partial(const float* x, const float* w, float* part, int in)
{
    const int o = threadIdx.x, width = in / SPLIT;
    float s = 0;
    for (int i = blockIdx.y * width; i < (blockIdx.y + 1) * width; ++i) s += x[blockIdx.x * in + i] * w[o * in + i];
    part[(blockIdx.y * gridDim.x + blockIdx.x) * blockDim.x + o] = s;
}
__global__ void join(const float* part, const float* b, float* out, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    float s = b[threadIdx.x];
    for (int k = 0; k < SPLIT; ++k) s += part[k * n + i];
    out[i] = fmaxf(s, 0.f);
}
