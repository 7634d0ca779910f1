// KIND 17: allocates through the runtime API
// TASK softmax
// EXPECT build_failed: cudaMalloc.*plan lines
// @launch softmax<<<x.shape[0], 128>>>(x, out)
__global__ void softmax(const float* x, float* out) { void* p; cudaMalloc(&p, 64); out[0] = x[0]; }
