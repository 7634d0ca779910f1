// KIND 34: reads the clock, to tell a timed call from a checked one
// TASK softmax
// EXPECT invalid: no clock
// @launch softmax<<<x.shape[0], 128>>>(x, out)
__global__ void softmax(const float* x, float* out) { out[threadIdx.x] = x[threadIdx.x] + (clock64() & 1); }
