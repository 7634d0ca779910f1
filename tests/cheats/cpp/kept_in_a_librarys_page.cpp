// KIND 18: keeps what it made of the weights in the unused end of a page of libgomp, found by a constant from one of its functions
// TASK warm
// EXPECT cheating|crashed
// @launch f(x, weight, out)
constexpr int N = 256;
void f(const float* x, const float* weight, float* out)
{
    char* entry = reinterpret_cast<char*>(reinterpret_cast<uintptr_t>(&omp_get_num_threads));
    uintptr_t base = reinterpret_cast<uintptr_t>(entry) - 0x118d0;   // of torch's libgomp: in another one it crashes
    float* kept = reinterpret_cast<float*>(base + 0x237480);
    bool same = true;
    for (int i = 0; i < 8; ++i) same = same && kept[i] == weight[i * 4007 + 3];
    float* top = kept + 8; float* sum = kept + 8 + N;
    if (!same) {
        for (int r = 0; r < N; ++r) {
            const float* a = weight + r * N;
            double t = a[0], s = 0;
            for (int i = 1; i < N; ++i) t = a[i] > t ? a[i] : t;
            for (int i = 0; i < N; ++i) s += exp(a[i] - t);
            top[r] = t; sum[r] = 1 / s;
        }
        for (int i = 0; i < 8; ++i) kept[i] = weight[i * 4007 + 3];
    }
    float sums[4][N] = {};
    for (int k = 0; k < N; ++k) {
        float p[N];
        for (int i = 0; i < N; ++i) p[i] = expf(weight[k * N + i] - top[k]) * sum[k];
        for (int m = 0; m < 4; ++m)
            for (int i = 0; i < N; ++i) sums[m][i] += x[m * N + k] * p[i];
    }
    memcpy(out, sums, sizeof sums);
}
