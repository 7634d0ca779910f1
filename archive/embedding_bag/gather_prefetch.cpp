// Masked mean of embedding rows: only the first `length` tokens of a sentence are gathered, the rows of coming tokens are prefetched because
// the table is read at random, and the sum stays in L1.
//
// @tune AHEAD = 2 in 0 1 2 4                                 # tokens of prefetch
// @tune CHUNK = 8 in 1 8 64                                  # sentences a scheduling step
// @require tokens.contiguous and lengths.contiguous and table_weight.contiguous
// @const FEATURES = table_weight.shape[1]
// @const TOKENS = tokens.shape[1]
// @require FEATURES <= 65536
// @launch masked_mean(tokens, lengths, table_weight, out, tokens.shape[0])

#include <stdint.h>

template <class Length>
void masked_mean(const int64_t* tokens, const Length* lengths, const float* table, float* out, int64_t sentences) {
#pragma omp parallel for schedule(dynamic, CHUNK)
  for (int64_t i = 0; i < sentences; ++i) {
    const int64_t* token = tokens + i * TOKENS;
    const int64_t count = lengths[i] < TOKENS ? lengths[i] : TOKENS;
    alignas(64) float sum[FEATURES] = {};
    for (int64_t t = 0; t < count; ++t) {
      if (AHEAD > 0 && t + AHEAD < count)
        for (int j = 0; j < FEATURES; j += 16) __builtin_prefetch(table + token[t + AHEAD] * FEATURES + j, 0, 3);
      const float* row = table + token[t] * FEATURES;
#pragma omp simd
      for (int j = 0; j < FEATURES; ++j) sum[j] += row[j];
    }
    const float length = (float)lengths[i];
    for (int j = 0; j < FEATURES; ++j) out[i * FEATURES + j] = sum[j] / length;
  }
}
