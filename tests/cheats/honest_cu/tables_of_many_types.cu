// HONEST read-only tables in global memory: of half numbers, of structs, in an array class, in a function, and one that is chosen at run time
// TASK softmax
// @launch softmax<<<x.shape[0], 32>>>(x, out, x.shape[1])
#include <cuda/std/array>
#include <cuda_fp16.h>
struct Step {
    float scale, shift;
};
__device__ const __half HALVES[4] = {};
const Step STEPS[4] = {{1, 0}, {1, 0}, {1, 0}, {1, 0}};
constexpr cuda::std::array<float, 3> ZEROS{0, 0, 0};
constexpr float ONES[4] = {1, 1, 1, 1}, AGAIN[4] = {1, 1, 1, 1};
__device__ float one(int i)
{
    static const float units[4] = {1, 1, 1, 1};
    const float* row = i & 8 ? ONES : AGAIN;
    const Step& step = STEPS[i & 3];
    return units[i & 3] * row[i & 3] * step.scale + step.shift + __half2float(HALVES[i & 3]) + ZEROS[i % 3];
}
__global__ void softmax(const float* x, float* out, int cols)
{
    const float* a = x + blockIdx.x * cols;
    float m = -INFINITY, s = 0;
    for (int i = threadIdx.x; i < cols; i += 32) m = fmaxf(m, a[i] * one(i));
    for (int o = 16; o; o >>= 1) m = fmaxf(m, __shfl_xor_sync(~0u, m, o));
    for (int i = threadIdx.x; i < cols; i += 32) s += expf(a[i] - m);
    for (int o = 16; o; o >>= 1) s += __shfl_xor_sync(~0u, s, o);
    for (int i = threadIdx.x; i < cols; i += 32) out[blockIdx.x * cols + i] = expf(a[i] - m) * one(i) / s;
}
