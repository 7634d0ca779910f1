// KIND 13: works on the input of another call, as a graph over old buffers would
// TASK odd
// EXPECT mismatch|crashed
// @launch f<<<1, 128>>>(x, out, x.numel)
__global__ void f(const float* x, float* out, int n)
{
    const float* old = x + 4096 / 4;
    if (threadIdx.x < n) out[threadIdx.x] = fmaxf(*(volatile const float*)(old + threadIdx.x), 0.f) + 1;
}
