// HONEST everything in float32 with a reciprocal square root; padded partial sums
// TASK shapes
// @launch f(x, out, x.shape[0], x.shape[1])
void f(const float* x, float* out, int64_t rows, int64_t cols)
{
#pragma omp parallel for if (rows > 4)
    for (int64_t r = 0; r < rows; ++r) {
        const float* a = x + r * cols;
        float part[8][16] = {};
        for (int64_t i = 0; i < cols; ++i) part[i & 7][0] += a[i] * a[i];
        float s = 0;
        for (int k = 0; k < 8; ++k) s += part[k][0];
        const float inv = 1.0f / sqrtf(s / (float)cols + 1e-5f);
        for (int64_t i = 0; i < cols; ++i) out[r * cols + i] = a[i] * inv;
    }
}
