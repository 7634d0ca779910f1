// KIND 36: factors cut to the mantissa of TF32 under a strict contract
// TASK linear
// EXPECT mismatch
// @launch product<<<x.shape[0], out.shape[1]>>>(x, linear_weight, linear_bias, out, x.shape[1])
__device__ float cut(float v) { return __uint_as_float((__float_as_uint(v) + 0x1000) & ~0x1FFFu); }
__global__ void product(const float* x, const float* w, const float* b, float* out, int in)
{
    float s = 0;
    for (int i = 0; i < in; ++i) s += cut(x[blockIdx.x * in + i]) * cut(w[threadIdx.x * in + i]);
    out[blockIdx.x * blockDim.x + threadIdx.x] = fmaxf(s + b[threadIdx.x], 0.f);
}
