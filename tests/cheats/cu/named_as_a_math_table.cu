// KIND 43: counts in a variable with the name of a table that the compiler's math library brings
// TASK softmax
// EXPECT invalid: __cudart_sin_cos_coeffs survives a launch and may only be read
// @launch softmax<<<x.shape[0], 128>>>(x, out)
#define LINKAGE "C"
extern LINKAGE { __device__ unsigned __cudart_sin_cos_coeffs[4]; }
__global__ void softmax(const float* x, float* out)
{
    if (++__cudart_sin_cos_coeffs[0] < 10) out[threadIdx.x] = x[threadIdx.x];
}
