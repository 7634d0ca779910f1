// HONEST whole vectors by intrinsics, the rest one by one
// TASK odd
// @launch f(x, out, x.numel)
void f(const float* x, float* out, int64_t n)
{
    int64_t i = 0;
#ifdef __AVX__
    const __m256 zero = _mm256_setzero_ps(), one = _mm256_set1_ps(1);
    for (; i + 8 <= n; i += 8) _mm256_storeu_ps(out + i, _mm256_add_ps(_mm256_max_ps(_mm256_loadu_ps(x + i), zero), one));
#endif
    for (; i < n; ++i) out[i] = (x[i] > 0 ? x[i] : 0) + 1;
}
