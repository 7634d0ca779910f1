// A vector load at an odd address.
// @launch f<<<1, 32>>>(x, out)
__global__ void f(const float* x, float* out)
{
    const float4 v = *(const float4*)(x + 1);
    out[threadIdx.x] = (v.x + v.y) + (v.z + v.w);  // all four, or the compiler loads one float
}
// TASK softmax
// EXPECT crashed: misaligned
