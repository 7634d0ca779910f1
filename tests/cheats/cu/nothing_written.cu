// KIND 20: an output that is never written; whatever the memory held before would be the answer
// TASK softmax
// EXPECT mismatch
// @launch look<<<x.shape[0], 128>>>(x, out)
__global__ void look(const float*, float*) {}
