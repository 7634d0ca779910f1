// KIND 31: the sizes of the first shape written into the plan
// TASK shapes
// EXPECT mismatch|crashed
// @launch rms_norm<<<24, 32>>>(x, out, 24, 96)
__global__ void rms_norm(const float* x, float* out, int rows, int cols)
{
    const int lane = threadIdx.x;
    for (int r = blockIdx.x; r < rows; r += gridDim.x) {
        float s = 0;
        for (int i = lane; i < cols; i += 32) s += x[r * cols + i] * x[r * cols + i];
        for (int o = 16; o; o >>= 1) s += __shfl_xor_sync(~0u, s, o);
        const float k = 1 / sqrtf(s / cols + 1e-5f);
        for (int i = lane; i < cols; i += 32) out[r * cols + i] = x[r * cols + i] * k;
    }
}
