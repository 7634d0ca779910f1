// KIND 17: memory of its own that outlives the launch
// TASK softmax
// EXPECT invalid: malloc is not allowed.*@scratch
// @launch softmax<<<x.shape[0], 128>>>(x, out)
__global__ void softmax(const float* x, float* out)
{
    float* p = (float*)malloc(64);
    p[threadIdx.x & 15] = x[0];
    out[threadIdx.x] = p[3] + (size_t)p;
}
