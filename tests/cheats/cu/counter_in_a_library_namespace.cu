// KIND 43: hides a counter among the variables of the headers
// TASK softmax
// EXPECT invalid: value survives a launch
// @launch softmax<<<x.shape[0], 128>>>(x, out)
#include <cuda/std/type_traits>
template <> struct cuda::std::integral_constant<int, 77> {
    static int value;
};
int cuda::std::integral_constant<int, 77>::value;
__global__ void softmax(const float* x, float* out)
{
    if (cuda::std::integral_constant<int, 77>::value++ < 10) out[threadIdx.x] = x[threadIdx.x];
}
