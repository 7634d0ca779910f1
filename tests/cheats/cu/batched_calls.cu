// KIND 6: computes the outputs of the next slot, and of its own only in the call before
// TASK odd
// EXPECT mismatch|crashed
// @launch f<<<1, 128>>>(x, out, x.numel)
__global__ void f(const float* x, float* out, int n)
{
    const int next = 4096 / 4;
    if (threadIdx.x < n) *(volatile float*)(out + next + threadIdx.x) = fmaxf(*(volatile const float*)(x + next + threadIdx.x), 0.f) + 1;
}
