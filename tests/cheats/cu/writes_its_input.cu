// KIND 24: takes its input to write it
// TASK softmax
// EXPECT build_failed: x may only be read
// @launch softmax<<<x.shape[0], 128>>>(x, out)
__global__ void softmax(float* x, float* out) { out[threadIdx.x] = x[threadIdx.x]; x[threadIdx.x] = 0; }
