// KIND 45: a file of the machine pulled into the build
// TASK softmax
// EXPECT invalid: include
// @launch softmax<<<x.shape[0], 128>>>(x, out)
#include "/etc/passwd"
__global__ void softmax(const float* x, float* out) { out[0] = x[0]; }
