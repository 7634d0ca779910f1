// HONEST all shapes from one file by constants; a launch that one shape leaves out; some rows written twice
// TASK shapes
// @const COLS = x.shape[1]
// @launch norm<COLS % 32 == 0><<<x.shape[0], 32>>>(x, out)
// @launch norm<COLS % 32 == 0><<<1, 32>>>(x, out) if x.shape[0] > 1
template <bool EVEN> __global__ void norm(const float* x, float* out)
{
    const float* a = x + blockIdx.x * COLS;
    float s = 0;
    for (int i = threadIdx.x; EVEN || i < COLS; i += 32) {
        s += a[i] * a[i];
        if (EVEN && i + 32 >= COLS) break;
    }
    for (int o = 16; o; o >>= 1) s += __shfl_xor_sync(~0u, s, o);
    const float k = rsqrtf(s / COLS + 1e-5f);
    for (int i = threadIdx.x; i < COLS; i += 32) out[blockIdx.x * COLS + i] = a[i] * k;
}
