// KIND 33: cuts what is above 20000, where random values hardly ever are
// TASK odd
// EXPECT mismatch: 'huge' inputs
// @launch f<<<1, 128>>>(x, out, x.numel)
__global__ void f(const float* x, float* out, int n) { if (threadIdx.x < n) out[threadIdx.x] = fminf(fmaxf(x[threadIdx.x], 0.f), 20000.f) + 1; }
