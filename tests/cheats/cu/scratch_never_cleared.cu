// KIND 27: adds onto scratch that was never cleared, which is zero in fresh memory
// TASK softmax
// EXPECT mismatch
// @nondeterministic
// @scratch total float32 [x.shape[0]]
// @launch sums<<<x.shape[0], 256>>>(x, total, x.shape[1])
// @launch divide<<<x.shape[0], 256>>>(x, total, out, x.shape[1])
__global__ void sums(const float* x, float* total, int cols)
{
    for (int i = threadIdx.x; i < cols; i += 256) atomicAdd(total + blockIdx.x, expf(x[blockIdx.x * cols + i]));
}
__global__ void divide(const float* x, const float* total, float* out, int cols)
{
    for (int i = threadIdx.x; i < cols; i += 256) out[blockIdx.x * cols + i] = expf(x[blockIdx.x * cols + i]) / total[blockIdx.x];
}
