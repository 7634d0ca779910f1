// Linear + bias + ReLU: the library multiplies and adds the bias straight into the output, then one pass clips it in place while it is in cache.
//
// @tune CHUNK = 16384 in 4096 16384 65536                    # elements a scheduling step
// @tune THREADED = true in false true
// @require x.ndim == 2 and x.contiguous and linear_weight.contiguous
// @call out = addmm(linear_bias, x, linear_weight.T)
// @launch clip(out, out.numel)

#include <stdint.h>

void clip(float* out, int64_t n) {
#pragma omp parallel for schedule(static) if (THREADED)
  for (int64_t first = 0; first < n; first += CHUNK) {
    const int64_t end = first + CHUNK < n ? first + CHUNK : n;
#pragma omp simd
    for (int64_t j = first; j < end; ++j) out[j] = out[j] > 0.0f ? out[j] : 0.0f;
  }
}
