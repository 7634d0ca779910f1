// Half a megabyte of local memory a thread, for all threads that a GPU keeps resident.
// TASK softmax
// EXPECT resources|launch_failed|crashed
// @launch softmax<<<device.sm_count * 8, 256>>>(x, out, x.shape[1])
__global__ void softmax(const float* x, float* out, int cols)
{
    float kept[120000];
    for (int i = 0; i < 120000; ++i) kept[i] = x[(i * 7 + threadIdx.x) % cols];
    for (int i = 0; i < 120000; ++i) kept[(i * 31 + (int)kept[i]) % 120000] += 1;
    if (kept[threadIdx.x] < -1e9f) out[0] = kept[threadIdx.x];
}
