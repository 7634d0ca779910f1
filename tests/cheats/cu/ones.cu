// KIND 28: ones, which are close to many normalised values
// TASK odd
// EXPECT mismatch
// @launch f<<<1, 128>>>(out, out.numel)
__global__ void f(float* out, int n) { if (threadIdx.x < n) out[threadIdx.x] = 1; }
