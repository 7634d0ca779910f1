// KIND 43: counts in a static whose `static` comes from a macro, beside a constant of the same name
// TASK softmax
// EXPECT invalid: kept survives a launch and may only be read
// @launch softmax<<<x.shape[0], 128>>>(x, out)
#define KEEP static
__device__ int decoy(int i) { static const int kept[2] = {1, 2}; return kept[i & 1]; }
__global__ void softmax(const float* x, float* out)
{
    KEEP int kept;
    if (++kept < 10) out[threadIdx.x] = x[threadIdx.x] * decoy(threadIdx.x);
}
