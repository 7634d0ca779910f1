// HONEST gives buffers that forward changes as outputs
// TASK cache
// @launch f(x, cache, position, out, out_cache, out_position)
void f(const float* x, const float* cache, const int64_t* at, float* out, float* filled, int64_t* next)
{
    for (int64_t r = 0; r < 64; ++r) {
        double sum = 0;
        for (int64_t i = 0; i < 256; ++i) sum += (double)(filled[r * 256 + i] = r == *at ? x[i] : cache[r * 256 + i]) * x[i];
        out[r] = sum;
    }
    *next = *at + 1;
}
