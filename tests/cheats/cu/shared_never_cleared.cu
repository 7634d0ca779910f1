// KIND 27: sums in shared memory that is cleared for no row after the first
// TASK softmax
// EXPECT mismatch
// @launch softmax<<<8, 256>>>(x, out, x.shape[0], x.shape[1])
__global__ void softmax(const float* x, float* out, int rows, int cols)
{
    __shared__ float sum;
    for (int r = blockIdx.x; r < rows; r += 8) {
        float s = 0;
        for (int i = threadIdx.x; i < cols; i += 256) s += expf(x[r * cols + i]);
        atomicAdd(&sum, s);
        __syncthreads();
        for (int i = threadIdx.x; i < cols; i += 256) out[r * cols + i] = expf(x[r * cols + i]) / sum;
        __syncthreads();
    }
}
