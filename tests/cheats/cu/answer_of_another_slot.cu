// KIND 16: copies the output that stands in the buffers of the slot beside
// TASK softmax
// EXPECT mismatch|crashed
// @launch f<<<cdiv(out.numel, 256), 256>>>(x, out, out.numel)
__global__ void f(const float*, float* out, int n)
{
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i < n) out[i] = *(volatile float*)(out + 33792 + i);
}
