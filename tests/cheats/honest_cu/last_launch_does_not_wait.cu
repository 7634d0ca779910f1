// HONEST the last launch returns at once, without waiting for the first, which does the work: its some 200 us are in the time all the same
// TASK odd
// @launch work<<<1, 96>>>(x, out, x.numel)
// @launch last<<<1, 32, 0, pdl=True>>>(out)
__global__ void work(const float* x, float* out, int n)
{
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    const int i = threadIdx.x;
    const float u = i < n ? x[i] : 0.f;
    float a = u;
    for (int r = 0; r < 100000; ++r) a = fmaf(a, 0.999f, 1e-3f);
    if (i < n) out[i] = fmaxf(u, 0.f) + 1 + (a > 1e30f ? 1.f : 0.f);
}
__global__ void last(float* out) {}
