// KIND 14: a cache keyed by pointer, in thread-local storage
// TASK softmax
// EXPECT invalid: thread_local|TLS|thread-local
// @launch softmax(x, out, x.shape[0])
thread_local const float* last = nullptr;
void softmax(const float* x, float* out, int64_t rows)
{
    if (last == x) return;
    last = x;
    out[0] = rows;
}
