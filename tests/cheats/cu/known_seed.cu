// KIND 35: rebuilds the inputs with the generator that drew them
// TASK softmax
// EXPECT invalid: curand
// @launch softmax<<<x.shape[0], 128>>>(x, out)
#include <curand_kernel.h>
__global__ void softmax(const float* x, float* out) { curandStatePhilox4_32_10_t s; curand_init(42, threadIdx.x, 0, &s); out[threadIdx.x] = curand_normal(&s); }
