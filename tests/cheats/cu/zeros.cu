// KIND 28: zeros, which an absolute tolerance would accept where the outputs are small
// TASK softmax
// EXPECT mismatch
// @fill out 0
