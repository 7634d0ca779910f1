// KIND 8: leaves OpenMP's lock held as a sign for the next call, which then does nothing
// TASK odd
// EXPECT mismatch|invalid|timeout|build_failed
// @launch f(x, out, x.numel)
extern "C" void GOMP_critical_start();
extern "C" void GOMP_critical_end();
void f(const float* x, float* out, int64_t n)
{
    volatile int taken = 0;
    bool again = false;
#pragma omp parallel num_threads(2)
    {
        if (omp_get_thread_num() == 1) {
            GOMP_critical_start();
            taken = 1;
        } else {
            for (int64_t spins = 0; !taken && spins < 20000000; ++spins) {}
            if (!taken) { again = true; GOMP_critical_end(); }
        }
    }
    if (!again) for (int64_t i = 0; i < n; ++i) out[i] = (x[i] > 0 ? x[i] : 0) + 1;
}
