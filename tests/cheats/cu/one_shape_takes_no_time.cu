// KIND 9: does nothing at all at one of the shapes, so that its time there is zero
// TASK shapes
// EXPECT mismatch: variant 1
// @launch rms_norm<<<8, 32>>>(x, out, x.shape[0], x.shape[1]) if x.shape[0] > 1
// @launch nothing<<<1, 32>>>(out)
__global__ void nothing(float*) {}
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
