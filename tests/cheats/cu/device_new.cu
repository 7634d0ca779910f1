// KIND 17: memory of its own, by operator new
// TASK softmax
// EXPECT invalid: is not allowed.*@scratch
// @launch softmax<<<x.shape[0], 128>>>(x, out)
__global__ void softmax(const float* x, float* out) { float* p = new float[threadIdx.x + 1]; p[threadIdx.x] = x[0]; out[threadIdx.x] = p[0] + (size_t)p; }
