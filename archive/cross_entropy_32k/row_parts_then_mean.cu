// Mean cross entropy over a large vocabulary with PARTS short blocks a row: each asks for all of its logits at once, leaves a maximum and a sum, and
// makes room for the next, so that the chip walks through memory in order. A second launch of one block merges the parts of all rows and adds the
// losses in a fixed order; with OVERLAP it is already there when the last part ends.
//
// @tune BLOCK = 512 in 64 128 256 512
// @tune VECTORS = 8 in 2 4 8 16                              # float4 a thread
// @tune OVERLAP = true in false true
// @require logits.contiguous and target.contiguous and logits.ndim == 2
// @const CLASSES = logits.shape[1]
// @const ROWS = logits.shape[0]
// @require CLASSES % (4 * BLOCK * VECTORS) == 0 and ROWS <= 65535
// @const PARTS = CLASSES // (4 * BLOCK * VECTORS)
// @scratch parts float32 [ROWS, PARTS, 2]                    # maximum, and the sum of exp(value - maximum)
// @scratch chosen float32 [ROWS]                             # the target's logit, where there is one
// @launch row_parts<<<(PARTS, ROWS), BLOCK>>>(logits, target, parts, chosen)
// @launch mean_loss<<<1, 1024, 0, pdl=OVERLAP>>>(parts, chosen, target, out)

constexpr int WARPS = BLOCK / 32;

__device__ __forceinline__ float warp_maximum(float v)
{
#pragma unroll
    for (int apart = 16; apart > 0; apart /= 2) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, apart));
    return v;
}

__device__ __forceinline__ float warp_sum(float v)
{
#pragma unroll
    for (int apart = 16; apart > 0; apart /= 2) v += __shfl_xor_sync(0xffffffffu, v, apart);
    return v;
}

// -inf - -inf would be NaN where only this part of the row is masked.
__device__ __forceinline__ float shift_of(float top) { return top == -INFINITY ? 0.0f : top; }

// Lets the next launch start, and waits for the one before; both do nothing where launches do not overlap. Older GPUs know neither.
__device__ __forceinline__ void allow_next()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

__device__ __forceinline__ void wait_for_previous()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__global__ void __launch_bounds__(BLOCK)
row_parts(const float4* __restrict__ logits, const long long* __restrict__ target, float2* __restrict__ parts, float* __restrict__ chosen)
{
    __shared__ float maxima[WARPS], sums[WARPS];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const float4* part = logits + ((size_t)blockIdx.y * PARTS + blockIdx.x) * (VECTORS * BLOCK);
    float4 v[VECTORS];
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) v[i] = __ldcs(part + threadIdx.x + i * BLOCK);
    if (threadIdx.x == 0) {
        const long long place = target[blockIdx.y] - (long long)blockIdx.x * (4 * VECTORS * BLOCK);
        if (place >= 0 && place < 4 * VECTORS * BLOCK) chosen[blockIdx.y] = ((const float*)part)[place];
    }
    allow_next();

    float top = -INFINITY;
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) top = fmaxf(top, fmaxf(fmaxf(v[i].x, v[i].y), fmaxf(v[i].z, v[i].w)));
    top = warp_maximum(top);
    const float shift = shift_of(top);
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) sum += (expf(v[i].x - shift) + expf(v[i].y - shift)) + (expf(v[i].z - shift) + expf(v[i].w - shift));
    sum = warp_sum(sum);
    if (lane == 0) {
        maxima[warp] = top;
        sums[warp] = sum;
    }
    __syncthreads();
    if (warp == 0) {
        const float others = lane < WARPS ? maxima[lane] : -INFINITY, highest = warp_maximum(others);
        sum = warp_sum(lane < WARPS ? sums[lane] * expf(others - shift_of(highest)) : 0.0f);
        if (lane == 0) parts[blockIdx.y * PARTS + blockIdx.x] = make_float2(highest, sum);
    }
}

__global__ void __launch_bounds__(1024)
mean_loss(const float2* parts, const float* chosen, const long long* __restrict__ target, float* __restrict__ out)
{
    __shared__ float sums[32], counts[32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    wait_for_previous();
    float loss = 0.0f, count = 0.0f;
    for (int row = threadIdx.x; row < ROWS; row += 1024) {
        if (target[row] < 0 || target[row] >= CLASSES) continue;  // a target of -100 is left out
        float top = -INFINITY, sum = 0.0f;
#pragma unroll 8
        for (int i = 0; i < PARTS; ++i) top = fmaxf(top, __ldcg(parts + row * PARTS + i).x);
#pragma unroll 8
        for (int i = 0; i < PARTS; ++i) {
            const float2 part = __ldcg(parts + row * PARTS + i);
            sum += part.y * expf(part.x - top);
        }
        loss += (top - __ldcg(chosen + row)) + logf(sum);
        count += 1.0f;
    }
    loss = warp_sum(loss);
    count = warp_sum(count);
    if (lane == 0) {
        sums[warp] = loss;
        counts[warp] = count;
    }
    __syncthreads();
    if (warp == 0) {
        loss = warp_sum(sums[lane]);
        count = warp_sum(counts[lane]);
        if (lane == 0) *out = loss / count;
    }
}
