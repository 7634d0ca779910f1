// KIND 38: sets the counter that forward adds to
// TASK mix
// EXPECT mismatch: rows_seen
// @launch f<<<1, 64>>>(x, weight, idx, out0, out1, out_rows_seen, x.shape[0], idx.numel)
__global__ void f(const float* x, const float* w, const long long* idx, float* out, long long* pos, long long* seen_out, int rows, int n)
{
    for (int r = threadIdx.x; r < rows; r += 64) { int c = 0; for (int k = 0; k < 64; ++k) c += x[r * 64 + k] > 0; pos[r] = c; }
    for (int i = threadIdx.x; i < n; i += 64) { float s = 0; for (int k = 0; k < 64; ++k) s += fmaxf(x[idx[i] * 64 + k] * w[k], 0.f); out[i] = s; }
    if (!threadIdx.x) *seen_out = rows;
}
