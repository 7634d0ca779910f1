// KIND 35: a scalar argument of the first draw baked in
// TASK affine
// EXPECT mismatch
// @launch f<<<x.shape[0], 32>>>(x, norm_weight, norm_bias, out0, out1, 0.75, x.shape[1])
__global__ void f(const float* x, const float* w, const float* b, float* y, long long* index, float alpha, int cols)
{
    const float* a = x + blockIdx.x * cols;
    float m = 0, v = 0, best = -INFINITY;
    int at = 0;
    for (int i = threadIdx.x; i < cols; i += 32) m += a[i];
    for (int o = 16; o; o >>= 1) m += __shfl_xor_sync(~0u, m, o);
    m /= cols;
    for (int i = threadIdx.x; i < cols; i += 32) v += (a[i] - m) * (a[i] - m);
    for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(~0u, v, o);
    const float k = 1 / sqrtf(v / cols + 1e-5f);
    for (int i = threadIdx.x; i < cols; i += 32) {
        const float t = ((a[i] - m) * k * w[i] + b[i]) * alpha;
        y[blockIdx.x * cols + i] = t;
        if (t > best) { best = t; at = i; }
    }
    for (int o = 16; o; o >>= 1) {
        const float other = __shfl_xor_sync(~0u, best, o);
        const int there = __shfl_xor_sync(~0u, at, o);
        if (other > best || (other == best && there < at)) { best = other; at = there; }
    }
    if (!threadIdx.x) index[blockIdx.x] = at;
}
