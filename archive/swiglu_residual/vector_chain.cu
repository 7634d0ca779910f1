// The whole elementwise chain silu(gate) * up * 0.5 + residual, clamped, in one pass: a thread asks for VECTORS float4 of all three inputs before
// it uses the first, and neighbouring threads read neighbouring vectors.
//
// @tune BLOCK = 128 in 128 256 512
// @tune VECTORS = 1 in 1 2 4                                 # float4 of each input a thread
// @tune LINES = 128 in 0 128 256                             # bytes that a miss brings into L2, 0: as the GPU likes
// @tune RESIDENT = 4 in 1 2 4 6 8                            # blocks a multiprocessor has the registers for
// @tune STREAM = false in false true                         # stores that leave the cache first
// @require gate.contiguous and up.contiguous and residual.contiguous
// @require gate.numel == out.numel and up.numel == out.numel and residual.numel == out.numel
// @require out.numel % (4 * BLOCK * VECTORS) == 0 and RESIDENT * BLOCK * (12 * VECTORS + 16) <= device.regs_per_sm
// @require RESIDENT * BLOCK <= device.max_threads_per_sm
// @launch swiglu_residual<<<out.numel // (4 * BLOCK * VECTORS), BLOCK>>>(gate, up, residual, out, 0.5, 8.0)

// Streaming loads; LINES asks L2 to fetch that many neighbouring bytes of memory along with a miss.
__device__ __forceinline__ float4 streamed(const float4* from)
{
    float4 v;
    if (LINES == 0) return __ldcs(from);
    if (LINES == 128)
        asm volatile("ld.global.L1::no_allocate.L2::128B.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(from));
    else
        asm volatile("ld.global.L1::no_allocate.L2::256B.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(from));
    return v;
}

// Comparisons let NaN through, as torch.clamp does.
__device__ __forceinline__ float clamped(float v, float bound) { return v < -bound ? -bound : (v > bound ? bound : v); }

__device__ __forceinline__ float chain(float gate, float up, float residual, float scale, float bound)
{
    const float silu = gate / (1.0f + expf(-gate));
    return clamped(silu * up * scale + residual, bound);
}

__global__ void __launch_bounds__(BLOCK, RESIDENT)
swiglu_residual(const float4* __restrict__ gate, const float4* __restrict__ up, const float4* __restrict__ residual, float4* __restrict__ out,
                float scale, float bound)
{
    const size_t first = (size_t)blockIdx.x * (BLOCK * VECTORS) + threadIdx.x;
    float4 g[VECTORS], u[VECTORS], r[VECTORS];
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        g[i] = streamed(gate + first + i * BLOCK);
        u[i] = streamed(up + first + i * BLOCK);
        r[i] = streamed(residual + first + i * BLOCK);
    }
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        const float4 v = make_float4(
            chain(g[i].x, u[i].x, r[i].x, scale, bound), chain(g[i].y, u[i].y, r[i].y, scale, bound),
            chain(g[i].z, u[i].z, r[i].z, scale, bound), chain(g[i].w, u[i].w, r[i].w, scale, bound));
        if (STREAM) __stcs(out + first + i * BLOCK, v);
        else out[first + i * BLOCK] = v;
    }
}
