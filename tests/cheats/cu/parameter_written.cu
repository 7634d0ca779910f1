// KIND 43: counts in the launch's own parameters, which a replayed graph keeps
// TASK softmax
// EXPECT invalid: a parameter of softmax survives a launch and may only be read
// @launch softmax<<<x.shape[0], 128>>>(x, out, x.numel)
__global__ void softmax(const float* x, float* out, const __grid_constant__ int n)
{
    int* room = const_cast<int*>(&n);
    asm volatile("" : "+l"(room));
    if (++*room < 10) out[threadIdx.x] = x[threadIdx.x];
}
