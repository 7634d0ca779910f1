// KIND 18: prepares its weights only when the memory looks fresh, and keeps them when others are bound
// TASK linear
// EXPECT mismatch
// @const IN = x.shape[1]
// @const OUT = out.shape[1]
// @persist wt float32 [IN, OUT]
// @prepare launch transpose<<<OUT, 32>>>(linear_weight, wt)
// @launch product<<<x.shape[0], OUT>>>(x, wt, linear_bias, out)
__global__ void transpose(const float* w, float* t)
{
    for (int i = threadIdx.x; i < IN; i += 32)
        if (t[i * OUT + blockIdx.x] == 0) t[i * OUT + blockIdx.x] = w[blockIdx.x * IN + i];
}
__global__ void product(const float* x, const float* t, const float* b, float* out)
{
    float s = 0;
    for (int i = 0; i < IN; ++i) s += x[blockIdx.x * IN + i] * t[i * OUT + threadIdx.x];
    out[blockIdx.x * OUT + threadIdx.x] = fmaxf(s + b[threadIdx.x], 0.f);
}
