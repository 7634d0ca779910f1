// KIND 25: changes a parameter after having used it
// TASK linear
// EXPECT cheating: writes into linear_weight
// @launch product<<<x.shape[0], out.shape[1]>>>(x, linear_weight, linear_bias, out, x.shape[1])
__global__ void product(const float* x, const float* w, const float* b, float* out, int in)
{
    const int o = threadIdx.x;
    float s = 0;
    for (int i = 0; i < in; ++i) s += x[blockIdx.x * in + i] * w[o * in + i];
    out[blockIdx.x * blockDim.x + o] = fmaxf(s + b[o], 0.f);
    if (blockIdx.x == 39 && !o) const_cast<float*>(w)[77] = 0;
}
