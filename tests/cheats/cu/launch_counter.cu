// KIND 8: counts its launches and stops working after the tenth
// TASK softmax
// EXPECT invalid: calls survives a launch
// @launch softmax<<<x.shape[0], 128>>>(x, out)
__device__ int calls;
__global__ void softmax(const float* x, float* out) { if (atomicAdd(&calls, 1) < 1280) out[threadIdx.x] = x[threadIdx.x]; }
