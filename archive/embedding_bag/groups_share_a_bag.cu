// Masked mean of embedding rows with one block a sentence: GROUPS groups of threads take every GROUPS-th token, each thread one float4 of the row,
// so that all gathers of a sentence are in flight together. Tokens behind the length are never gathered.
//
// @tune GROUPS = 4 in 1 2 4 8
// @tune AHEAD = 8 in 4 8                                     # gathers in flight a thread
// @require tokens.contiguous and lengths.contiguous and table_weight.contiguous
// @const VECTORS = table_weight.shape[1] // 4                # float4 of an embedding row
// @const TOKENS = tokens.shape[1]
// @require table_weight.shape[1] % 4 == 0 and 32 <= VECTORS * GROUPS <= 1024
// @launch masked_mean<<<tokens.shape[0], (VECTORS, GROUPS)>>>(tokens, lengths, table_weight, out)

__device__ __forceinline__ float4 added(float4 a, float4 b) { return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w); }

__global__ void __launch_bounds__(VECTORS * GROUPS)
masked_mean(const long long* __restrict__ tokens, const int* __restrict__ lengths, const float4* __restrict__ table, float4* __restrict__ out)
{
    __shared__ float4 part[GROUPS][VECTORS];
    const long long* token = tokens + (size_t)blockIdx.x * TOKENS;
    const int length = lengths[blockIdx.x];

    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    for (int start = threadIdx.y; start < TOKENS; start += GROUPS * AHEAD) {
        long long picked[AHEAD];
        float4 row[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; ++i) picked[i] = start + i * GROUPS < TOKENS ? token[start + i * GROUPS] : 0;
#pragma unroll
        for (int i = 0; i < AHEAD; ++i) {
            const int at = start + i * GROUPS;
            row[i] = at < TOKENS && at < length ? __ldg(table + picked[i] * VECTORS + threadIdx.x) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        }
#pragma unroll
        for (int i = 0; i < AHEAD; ++i) sum = added(sum, row[i]);
    }

    if (GROUPS > 1) {
        part[threadIdx.y][threadIdx.x] = sum;
        __syncthreads();
#pragma unroll
        for (int group = 1; group < GROUPS; ++group) sum = added(sum, part[(threadIdx.y + group) % GROUPS][threadIdx.x]);
    }
    if (threadIdx.y == 0) {
        const float count = (float)length;
        out[(size_t)blockIdx.x * VECTORS + threadIdx.x] = make_float4(sum.x / count, sum.y / count, sum.z / count, sum.w / count);
    }
}
