// KIND 33: the epsilon left out, which counts only where all inputs are small
// TASK shapes
// EXPECT mismatch
// @launch rms_norm<<<x.shape[0], 32>>>(x, out, x.shape[0], x.shape[1])
__global__ void rms_norm(const float* x, float* out, int rows, int cols)
{
    const int lane = threadIdx.x;
    for (int r = blockIdx.x; r < rows; r += gridDim.x) {
        float s = 0;
        for (int i = lane; i < cols; i += 32) s += x[r * cols + i] * x[r * cols + i];
        for (int o = 16; o; o >>= 1) s += __shfl_xor_sync(~0u, s, o);
        const float k = 1 / sqrtf(s / cols + (s > 0.1f * cols ? 1e-5f : 1e-12f));
        for (int i = lane; i < cols; i += 32) out[r * cols + i] = x[r * cols + i] * k;
    }
}
