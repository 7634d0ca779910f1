// KIND 28: NaN, which compares as neither larger nor smaller than any tolerance
// TASK odd
// EXPECT mismatch: NaN|nan
// @fill out nan
