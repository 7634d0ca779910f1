// HONEST a table in constant memory and one that is constexpr, both filled in the file
// TASK softmax
// @launch softmax<<<x.shape[0], 64>>>(x, out, x.shape[1])
__constant__ double ROOTS[4] = {1.0, 1.189207115002721, 1.4142135623730951, 1.6817928305074291};
constexpr double FACTORS[8] = {1, 1, 0.5, 1.0 / 6, 1.0 / 24, 1.0 / 120, 1.0 / 720, 1.0 / 5040};
__device__ double exponential(double v)
{
    if (v < -700) return 0;
    const double whole = floor(v * 5.770780163555854 + 0.5), r = (v - whole * 0.17328679513998632);
    double p = 0;
    for (int k = 7; k >= 0; --k) p = p * r + FACTORS[k];
    const int n = (int)whole;
    return ldexp(ROOTS[n & 3] * p, n >> 2);
}
__global__ void softmax(const float* x, float* out, int cols)
{
    __shared__ double part[2];
    const float* a = x + blockIdx.x * cols;
    float m = -INFINITY;
    double s = 0;
    for (int i = threadIdx.x & 31; i < cols; i += 32) m = fmaxf(m, a[i]);
    for (int o = 16; o; o >>= 1) m = fmaxf(m, __shfl_xor_sync(~0u, m, o));
    for (int i = threadIdx.x; i < cols; i += 64) s += exponential((double)a[i] - m);
    for (int o = 16; o; o >>= 1) s += __shfl_xor_sync(~0u, s, o);
    if (!(threadIdx.x & 31)) part[threadIdx.x / 32] = s;
    __syncthreads();
    s = part[0] + part[1];
    for (int i = threadIdx.x; i < cols; i += 64) out[blockIdx.x * cols + i] = exponential((double)a[i] - m) / s;
}
