// KIND 29: the mean of the output, folded into a constant
// TASK softmax
// EXPECT mismatch
// @fill out 0.0019230769
