// KIND 43: a global variable that only inline assembly knows
// TASK softmax
// EXPECT invalid: seen survives a launch
// @launch softmax<<<x.shape[0], 128>>>(x, out)
__global__ void softmax(const float* x, float* out)
{
    unsigned before;
    asm volatile("{\n .global .u32 seen;\n atom.global.add.u32 %0, [seen], 1;\n}" : "=r"(before));
    if (before < 1280) out[threadIdx.x] = x[threadIdx.x];
}
