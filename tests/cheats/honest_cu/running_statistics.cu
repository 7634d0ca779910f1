// HONEST double precision on the device, four outputs, one of them a single 64-bit integer
// TASK running
// @launch f<<<x.shape[1], 32>>>(x, norm_weight, norm_bias, norm_running_mean, norm_running_var, norm_num_batches_tracked, out,
// @+       out_norm_running_mean, out_norm_running_var, out_norm_num_batches_tracked, x.shape[0], x.shape[1])
__global__ void f(const float* x, const float* w, const float* b, const float* om, const float* ov, const long long* c, float* y, float* nm, float* nv,
                  long long* nc, int rows, int cols)
{
    const int j = blockIdx.x;
    double m = 0, v = 0;
    for (int r = threadIdx.x; r < rows; r += 32) m += x[r * cols + j];
    for (int o = 16; o; o >>= 1) m += __shfl_xor_sync(~0u, m, o);
    m /= rows;
    for (int r = threadIdx.x; r < rows; r += 32) v += (x[r * cols + j] - m) * (x[r * cols + j] - m);
    for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(~0u, v, o);
    v /= rows;
    if (!threadIdx.x) { nm[j] = 0.9 * om[j] + 0.1 * m; nv[j] = 0.9 * ov[j] + 0.1 * v * rows / (rows - 1); }
    if (!j && !threadIdx.x) *nc = *c + 1;
    for (int r = threadIdx.x; r < rows; r += 32) y[r * cols + j] = (float)((x[r * cols + j] - m) * rsqrt(v + 1e-5)) * w[j] + b[j];
}
