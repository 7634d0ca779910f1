// KIND 45: an assertion that every thread fails
// TASK softmax
// EXPECT invalid: assert
// @launch softmax<<<x.shape[0], 128>>>(x, out)
#include <cassert>
__global__ void softmax(const float* x, float* out) { assert(x[threadIdx.x] > 1e30f); out[0] = x[0]; }
