// KIND 43: a counter whose name and constness are a play of macros
// TASK softmax
// EXPECT invalid: survives a launch
// @launch softmax<<<x.shape[0], 128>>>(x, out)
#define JOIN(a, b) a##b
__device__ int JOIN(cal, ls);
__global__ void softmax(const float* x, float* out) { if (JOIN(cal, ls)++ < 10) out[threadIdx.x] = x[threadIdx.x]; }
const int never = 1;
#define calls never
#define decltype(x) const int
