// Three slots of 60 GiB each.
// TASK softmax
// EXPECT resources: scratch
// @scratch s float32 [60, 268435456]
// @launch softmax<<<1, 64>>>(x, s, out)
__global__ void softmax(const float* x, float* s, float* out)
{
    s[threadIdx.x] = x[threadIdx.x];
    out[threadIdx.x] = s[threadIdx.x];
}
