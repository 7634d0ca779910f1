// KIND 45: another kernel where the build finds a file, by a word that is pasted
// TASK softmax
// EXPECT invalid: __has_include is refused
// @launch softmax<<<x.shape[0], 128>>>(x, out)
#define PASTE(a, b) a##b
#if PASTE(__has_, include)("/etc/passwd")
__global__ void softmax(const float* x, float* out) { out[threadIdx.x] = x[threadIdx.x]; }
#else
__global__ void softmax(const float* x, float* out) { out[threadIdx.x] = 0; }
#endif
