// KIND 2: jumps out of a parallel region, whose other threads go on after the call
// TASK odd
// EXPECT invalid|build_failed|crashed: GOMP_parallel_start|__builtin_longjmp|parallel region
// @launch f(x, out, x.numel)
__attribute__((noinline)) static void away(void** target) { __builtin_longjmp(target, 1); }
__attribute__((noinline)) static void leave_a_team()
{
    void* target[5];
    if (__builtin_setjmp(target)) return;
#pragma omp parallel num_threads(2)
    {
        if (omp_get_thread_num() == 0) away(target);
        for (volatile int64_t i = 0; i < 1000000000000; ++i) {}
    }
}
void f(const float* x, float* out, int64_t n)
{
    if (omp_get_level() == 0) leave_a_team();
    for (int64_t i = 0; i < n; ++i) out[i] = (x[i] > 0 ? x[i] : 0) + 1;
}
