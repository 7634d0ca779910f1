// HONEST a row fetched by one bulk copy that an mbarrier waits for
// TASK softmax
// @const COLS = x.shape[1]
// @require COLS % 4 == 0 and x.contiguous
// @launch softmax<<<x.shape[0], 32>>>(x, out)
__global__ void softmax(const float* x, float* out)
{
    __shared__ alignas(128) float row[COLS];
    __shared__ alignas(8) unsigned long long arrived;
    const unsigned bar = __cvta_generic_to_shared(&arrived), to = __cvta_generic_to_shared(row);
    if (!threadIdx.x) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(bar) : "memory");
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(COLS * 4) : "memory");
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(x + blockIdx.x * COLS),
                     "r"(COLS * 4), "r"(bar) : "memory");
    }
    __syncwarp();
    for (unsigned done = 0; !done;)
        asm volatile("{\n .reg .pred p;\n mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0;\n selp.u32 %0, 1, 0, p;\n}" : "=r"(done) : "r"(bar) : "memory");
    float m = -INFINITY, s = 0;
    for (int i = threadIdx.x; i < COLS; i += 32) m = fmaxf(m, row[i]);
    for (int o = 16; o; o >>= 1) m = fmaxf(m, __shfl_xor_sync(~0u, m, o));
    for (int i = threadIdx.x; i < COLS; i += 32) s += row[i] = expf(row[i] - m);
    for (int o = 16; o; o >>= 1) s += __shfl_xor_sync(~0u, s, o);
    for (int i = threadIdx.x; i < COLS; i += 32) out[blockIdx.x * COLS + i] = row[i] / s;
}
