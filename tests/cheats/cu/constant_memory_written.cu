// KIND 43: counts in constant memory, through its generic address
// TASK softmax
// EXPECT invalid: table survives a launch and may only be read
// @launch softmax<<<x.shape[0], 128>>>(x, out)
__constant__ unsigned table[4] = {1};
__global__ void softmax(const float* x, float* out)
{
    unsigned* room = const_cast<unsigned*>(table);
    asm volatile("" : "+l"(room));
    if (++room[0] < 10) out[threadIdx.x] = x[threadIdx.x];
}
