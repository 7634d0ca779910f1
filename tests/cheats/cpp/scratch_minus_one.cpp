// KIND 27: takes it for granted that scratch begins with -1 everywhere
// TASK odd
// EXPECT mismatch: an uninitialised read
// @scratch flags int32 [16]
// @launch f(x, flags, out, x.numel)
void f(const float* x, const int32_t* flags, float* out, int64_t n)
{
    for (int64_t i = 0; i < n; ++i) out[i] = flags[i & 15] == -1 ? std::max(x[i], 0.f) + 1 : 7.f;
}
