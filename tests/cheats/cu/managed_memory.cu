// KIND 19: memory that the host and later launches share
// TASK softmax
// EXPECT invalid: managed
// @launch softmax<<<x.shape[0], 128>>>(x, out)
__managed__ float kept[4];
__global__ void softmax(const float* x, float* out) { out[threadIdx.x] = kept[threadIdx.x & 3]++; }
