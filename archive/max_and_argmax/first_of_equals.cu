// Row maximum and its first index with THREADS threads a row: each looks at its elements in rising order and takes only what is better, then
// pairs (value, index) are reduced by shuffles, the smaller index winning among equals. NaN counts as the highest value, as in torch.
//
// @tune THREADS = 64 in 32 64 128 256                        # a row
// @tune ROWS = 4 in 1 2 4                                    # a block
// @require x.contiguous
// @const COLUMNS = x.shape[-1]
// @require COLUMNS % (4 * THREADS) == 0 and COLUMNS <= 64 * THREADS
// @require (x.numel // COLUMNS) % ROWS == 0 and THREADS * ROWS >= 64
// @launch max_and_argmax<<<x.numel // (COLUMNS * ROWS), (THREADS, ROWS)>>>(x, out0, out1)

constexpr int VECTORS = COLUMNS / (4 * THREADS);  // float4 a thread
constexpr int WARPS = THREADS / 32;               // a row

struct Best {
    float value;
    int index;
};

__device__ __forceinline__ bool better(float a, float b) { return a > b || (a != a && b == b); }

__device__ __forceinline__ void take(Best& best, float value, int index)
{
    if (better(value, best.value)) best = {value, index};
}

__device__ __forceinline__ Best merged(Best a, Best b)
{
    if (better(b.value, a.value)) return b;
    if (better(a.value, b.value)) return a;
    return b.index < a.index ? b : a;
}

__global__ void __launch_bounds__(THREADS * ROWS)
max_and_argmax(const float4* __restrict__ x, float* __restrict__ values, long long* __restrict__ indices)
{
    __shared__ float top[ROWS][WARPS];
    __shared__ int where[ROWS][WARPS];
    const size_t row = (size_t)blockIdx.x * ROWS + threadIdx.y;
    const float4* first = x + row * (COLUMNS / 4) + threadIdx.x;

    float4 v[VECTORS];
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) v[i] = __ldcs(first + i * THREADS);
    Best best = {v[0].x, (int)threadIdx.x * 4};
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        const int index = (i * THREADS + threadIdx.x) * 4;
        take(best, v[i].x, index);
        take(best, v[i].y, index + 1);
        take(best, v[i].z, index + 2);
        take(best, v[i].w, index + 3);
    }
#pragma unroll
    for (int apart = 16; apart > 0; apart /= 2) {
        const Best other = {__shfl_xor_sync(0xffffffffu, best.value, apart), __shfl_xor_sync(0xffffffffu, best.index, apart)};
        best = merged(best, other);
    }

    if (WARPS > 1) {
        if (threadIdx.x % 32 == 0) {
            top[threadIdx.y][threadIdx.x / 32] = best.value;
            where[threadIdx.y][threadIdx.x / 32] = best.index;
        }
        __syncthreads();
        if (threadIdx.x == 0) {
#pragma unroll
            for (int i = 1; i < WARPS; ++i) best = merged(best, {top[threadIdx.y][i], where[threadIdx.y][i]});
        }
    }
    if (threadIdx.x == 0) {
        values[row] = best.value;
        indices[row] = best.index;
    }
}
