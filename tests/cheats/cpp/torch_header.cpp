// KIND 39: torch inside the candidate
// TASK softmax
// EXPECT invalid: torch
// @launch softmax(x, out)
#include <torch/extension.h>
void softmax(const float* x, float* out) { out[0] = x[0]; }
