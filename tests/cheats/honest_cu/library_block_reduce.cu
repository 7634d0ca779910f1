// HONEST block reductions of CUB, registers limited, padding in shared memory
// TASK softmax
// @tune BLOCK = 128 in 64 128 256
// @flags maxrregcount=64
// @launch softmax<<<x.shape[0], BLOCK>>>(x, out, x.shape[1])
#include <cub/block/block_reduce.cuh>
struct Larger { __device__ float operator()(float a, float b) const { return fmaxf(a, b); } };
__global__ void softmax(const float* x, float* out, int cols)
{
    using Reduce = cub::BlockReduce<float, BLOCK>;
    __shared__ typename Reduce::TempStorage storage;
    __shared__ float shared[2];
    float m = -INFINITY, s = 0;
    for (int i = threadIdx.x; i < cols; i += BLOCK) m = fmaxf(m, x[blockIdx.x * cols + i]);
    m = Reduce(storage).Reduce(m, Larger());
    if (!threadIdx.x) shared[0] = m;
    __syncthreads();
    for (int i = threadIdx.x; i < cols; i += BLOCK) s += expf(x[blockIdx.x * cols + i] - shared[0]);
    s = Reduce(storage).Sum(s);
    if (!threadIdx.x) shared[1] = s;
    __syncthreads();
    for (int i = threadIdx.x; i < cols; i += BLOCK) out[blockIdx.x * cols + i] = expf(x[blockIdx.x * cols + i] - shared[0]) / shared[1];
}
