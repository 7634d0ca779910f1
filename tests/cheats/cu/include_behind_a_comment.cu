// KIND 45: the same, spelled so that a line-based check does not see it
// TASK softmax
// EXPECT invalid: include
// @launch softmax<<<x.shape[0], 128>>>(x, out)
# /* */ include "/etc/passwd"
__global__ void softmax(const float* x, float* out) { out[0] = x[0]; }
