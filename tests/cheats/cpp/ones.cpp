// KIND 28: ones, which are close to many normalised values
// TASK odd
// EXPECT mismatch
// @fill out 1
