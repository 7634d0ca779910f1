// HONEST works on what is valid only, so that its time depends on the data
// TASK lengths
// @launch f<<<x.shape[0], 1024>>>(x, lengths, out, x.shape[1])
__global__ void f(const float* x, const long long* lengths, float* out, int cols)
{
    const float* a = x + (long long)blockIdx.x * cols;
    float* b = out + (long long)blockIdx.x * cols;
    for (int i = threadIdx.x; i < cols; i += 1024) b[i] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < lengths[blockIdx.x]; i += 1024) b[i] = expf(sinf(a[i]));
}
