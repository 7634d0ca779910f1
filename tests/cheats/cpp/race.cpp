// KIND 27: threads add into one place without a reduction
// TASK affine
// EXPECT mismatch
// @launch f(x, out0, out1, x.numel)
void f(const float* x, float* y, int64_t* i, int64_t n)
{
    memset(y, 0, n * 4);
#pragma omp parallel for
    for (int64_t k = 0; k < n; ++k) y[k % 7] += x[k];
    i[0] = 0;
}
