// KIND 45: an include in what some compilers take for the rest of a comment
// TASK softmax
// EXPECT invalid: blanks behind the backslash
// @launch softmax<<<x.shape[0], 128>>>(x, out)
// a comment \ 
#include "/etc/passwd"
__global__ void softmax(const float* x, float* out) { out[threadIdx.x] = x[threadIdx.x]; }
