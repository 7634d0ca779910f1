// KIND 43: loads a library at run time
// TASK softmax
// EXPECT invalid|build_failed: dlfcn
// @launch softmax<<<x.shape[0], 128>>>(x, out)
#include <dlfcn.h>
__global__ void softmax(const float* x, float* out) { out[0] = dlopen("libtorch_cuda.so", 2) ? x[0] : 0; }
