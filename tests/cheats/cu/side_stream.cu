// KIND 1: makes a stream of its own, which the events do not see
// TASK softmax
// EXPECT build_failed|invalid: cudaStream
// @launch softmax<<<x.shape[0], 128>>>(x, out)
__global__ void softmax(const float* x, float* out) { cudaStream_t s; cudaStreamCreateWithFlags(&s, 1); out[0] = x[0]; }
