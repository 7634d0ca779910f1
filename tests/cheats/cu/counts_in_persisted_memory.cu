// KIND 8: casts const away and counts its calls in persisted memory
// TASK linear
// EXPECT mismatch|cheating
// @persist kept float32 [2]
// @prepare launch start<<<1, 1>>>(linear_bias, kept)
// @launch product<<<x.shape[0], out.shape[1]>>>(x, linear_weight, linear_bias, kept, out, x.shape[1])
__global__ void start(const float* b, float* kept) { kept[0] = 0; kept[1] = b[0]; }
__global__ void product(const float* x, const float* w, const float* b, const float* kept, float* out, int in)
{
    const int o = threadIdx.x;
    const bool early = *(volatile const float*)kept < 400;
    __syncthreads();
    if (!o) atomicAdd(const_cast<float*>(kept), 1.f);
    float s = 0;
    for (int i = 0; i < in; ++i) s += x[blockIdx.x * in + i] * w[o * in + i];
    if (early) out[blockIdx.x * blockDim.x + o] = fmaxf(s + b[o], 0.f);
}
