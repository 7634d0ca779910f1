// KIND 17: keeps a key and the answer in unused heap, above the copy that an OpenMP task gets of a variable
// TASK softmax
// EXPECT invalid: GOMP_task is not allowed: .* write `#pragma omp parallel for`
// @launch softmax(x, out, x.shape[0], x.shape[1])
struct Bait { unsigned char bytes[256]; };
struct Kept { float key; float answer[64 * 520]; };
static void work(Kept* kept, const float* x, float* out, int64_t rows, int64_t cols)
{
    if (kept->key == x[0] && rows * cols == 64 * 520) { memcpy(out, kept->answer, sizeof kept->answer); return; }
    for (int64_t r = 0; r < rows; ++r) {
        const float* a = x + r * cols;
        float top = a[0], sum = 0;
        for (int64_t i = 1; i < cols; ++i) top = a[i] > top ? a[i] : top;
        for (int64_t i = 0; i < cols; ++i) sum += expf(a[i] - top);
        for (int64_t i = 0; i < cols; ++i) out[r * cols + i] = expf(a[i] - top) / sum;
    }
    if (rows * cols == 64 * 520) memcpy(kept->answer, out, sizeof kept->answer), kept->key = x[0];
}
void softmax(const float* x, float* out, int64_t rows, int64_t cols)
{
#pragma omp parallel num_threads(2)
    if (omp_get_thread_num() == 1) {
        Bait bait = {};
#pragma omp task firstprivate(bait) default(shared)
        {
            const volatile unsigned char* copy = bait.bytes;
            work(reinterpret_cast<Kept*>((reinterpret_cast<uintptr_t>(copy) + 40000) & ~uintptr_t(4095)), x, out, rows, cols);
        }
    }
}
