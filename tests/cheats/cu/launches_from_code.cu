// KIND 41: launches a kernel that the plan does not name
// TASK softmax
// EXPECT invalid: plan line
// @launch softmax<<<x.shape[0], 128>>>(x, out)
__global__ void other(float* out) { out[0] = 1; }
__global__ void softmax(const float* x, float* out) { other<<<1, 1>>>(out); out[1] = x[0]; }
