// KIND 39: torch inside the candidate
// TASK softmax
// EXPECT invalid: torch
// @launch softmax<<<x.shape[0], 128>>>(x, out)
#include <torch/extension.h>
__global__ void softmax(const float* x, float* out) { out[0] = x[0]; }
