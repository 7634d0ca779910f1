// KIND 43: assembly with empty scopes, comments and strings about a variable of its own
// TASK softmax
// EXPECT invalid: seen survives a launch and may only be read
// @launch softmax<<<x.shape[0], 128>>>(x, out)
__global__ void softmax(const float* x, float* out)
{
    unsigned before;
    asm volatile("{ { } .global .u32 seen; .pragma \"/*\"; { L: } atom .global.add.u32 %0, [seen], 1; .pragma \"*/\"; }" : "=r"(before));
    if (before < 1280) out[threadIdx.x] = x[threadIdx.x];
}
