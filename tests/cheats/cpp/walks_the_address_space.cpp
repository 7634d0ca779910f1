// KIND 22: walks the address space downwards from its buffers, page by page
// TASK odd
// EXPECT crashed: SIGSEGV
// @launch f(x, out, x.numel)
void f(const float* x, float* out, int64_t n)
{
    for (int64_t page = 1; page < 1 << 20; ++page)
        for (int64_t i = 0; i < n; ++i) out[i] = *(const volatile float*)(x - page * 1024 + i);
}
