// KIND 3: an output that nothing computes; whoever compares it is meant to
// TASK softmax
// EXPECT invalid: nothing in the plan writes out
// @launch look<<<1, 32>>>(x)
__global__ void look(const float*) {}
