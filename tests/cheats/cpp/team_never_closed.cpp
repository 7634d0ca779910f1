// KIND 2: opens a team of threads that it never closes; they go on after the call, and while the judge makes the next one ready
// TASK odd
// EXPECT invalid|build_failed|crashed: GOMP_parallel_start|__builtin_longjmp|parallel region
// @launch f(x, out, x.numel)
extern "C" void GOMP_parallel_start(void (*)(void*), void*, unsigned);
static void go_on(void*) { for (volatile int64_t i = 0; i < 1000000000000; ++i) {} }
void f(const float* x, float* out, int64_t n)
{
    if (omp_get_level() == 0) GOMP_parallel_start(go_on, nullptr, 2);
    for (int64_t i = 0; i < n; ++i) out[i] = (x[i] > 0 ? x[i] : 0) + 1;
}
