// KIND 27: takes it for granted that scratch begins with -1 everywhere
// TASK odd
// EXPECT mismatch: an uninitialised read
// @scratch flags int32 [32]
// @launch f<<<1, 128>>>(x, flags, out, x.numel)
__global__ void f(const float* x, const int* flags, float* out, int n)
{
    if (threadIdx.x < n) out[threadIdx.x] = flags[threadIdx.x & 31] == -1 ? fmaxf(x[threadIdx.x], 0.f) + 1 : 7.f;
}
