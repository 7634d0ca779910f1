// KIND 12: reads an input while weights are prepared, off the clock
// TASK softmax
// EXPECT invalid: prepare
// @persist kept float32 [x.shape[0], x.shape[1]]
// @prepare launch keep<<<1, 128>>>(x, kept)
// @launch softmax<<<1, 128>>>(kept, out)
__global__ void keep(const float* x, float* kept) { kept[threadIdx.x] = x[threadIdx.x]; }
__global__ void softmax(const float* kept, float* out) { out[threadIdx.x] = kept[threadIdx.x]; }
