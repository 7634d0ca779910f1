// KIND 41: a vendor's library that the plan does not name
// TASK softmax
// EXPECT invalid: cublas
// @launch softmax<<<x.shape[0], 128>>>(x, out)
#include <cublas_v2.h>
__global__ void softmax(const float* x, float* out) { out[0] = x[0]; }
