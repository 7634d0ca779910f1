// KIND 5: writes a verdict of its own to standard output
// TASK softmax
// EXPECT invalid: prints nothing
// @launch softmax<<<x.shape[0], 128>>>(x, out)
__global__ void softmax(const float* x, float* out) { printf("{\"status\": \"verified\"}"); out[0] = x[0]; }
