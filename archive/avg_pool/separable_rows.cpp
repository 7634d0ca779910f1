// Average pooling as a separable sum: the rows of a window are added into a padded line (contiguous, vectorised), then neighbours in the line.
// Padding counts as zeros. Parallel over planes.
//
// @const KERNEL = 3
// @const STRIDE = 2
// @const PADDING = 1
// @tune AHEAD = 2 in 0 2 4                                   # input rows of prefetch
// @tune CHUNK = 1 in 1 4 16                                  # planes a scheduling step
// @tune STREAM = true in false true
// @require x.contiguous and x.ndim >= 3
// @const HEIGHT = x.shape[-2]
// @const WIDTH = x.shape[-1]
// @const OUT_HEIGHT = (HEIGHT + 2 * PADDING - KERNEL) // STRIDE + 1
// @const OUT_WIDTH = (WIDTH + 2 * PADDING - KERNEL) // STRIDE + 1
// @require out.shape[-2] == OUT_HEIGHT and out.shape[-1] == OUT_WIDTH
// @launch avg_pool(x, out, x.numel // (HEIGHT * WIDTH))

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

static inline void write_line(const float* line, float* to, bool stream) {
  int j = 0;
#if defined(__AVX__)
  for (; stream && j + 8 <= OUT_WIDTH; j += 8) _mm256_stream_ps(to + j, _mm256_loadu_ps(line + j));
#endif
  memcpy(to + j, line + j, (OUT_WIDTH - j) * sizeof(float));
}

static inline void pool_row(const float* plane, int first, float* sums, float* pooled) {
  float* line = sums + PADDING;
  const int low = first < 0 ? 0 : first, high = first + KERNEL < HEIGHT ? first + KERNEL : HEIGHT;
  for (int j = 0; j < WIDTH; ++j) line[j] = plane[(int64_t)low * WIDTH + j];
  for (int r = low + 1; r < high; ++r)
    for (int j = 0; j < WIDTH; ++j) line[j] += plane[(int64_t)r * WIDTH + j];
#pragma omp simd
  for (int j = 0; j < OUT_WIDTH; ++j) {
    float s = 0.0f;
    for (int k = 0; k < KERNEL; ++k) s += sums[j * STRIDE + k];
    pooled[j] = s * (1.0f / (KERNEL * KERNEL));
  }
}

void avg_pool(const float* x, float* out, int64_t planes) {
  const bool stream = STREAM && OUT_WIDTH % 8 == 0 && (uintptr_t)out % 32 == 0;
#pragma omp parallel
  {
    alignas(64) float sums[WIDTH + 2 * PADDING] = {}, pooled[OUT_WIDTH];
#pragma omp for schedule(static, CHUNK)
    for (int64_t p = 0; p < planes; ++p)
      for (int i = 0; i < OUT_HEIGHT; ++i) {
        const float* plane = x + p * HEIGHT * WIDTH;
        const int first = i * STRIDE - PADDING;
        if (AHEAD > 0 && (p + 1 < planes || first + KERNEL + AHEAD + STRIDE <= HEIGHT))
          for (int j = 0; j < STRIDE * WIDTH; j += 16) __builtin_prefetch(plane + (int64_t)(first + KERNEL + AHEAD) * WIDTH + j, 0, 3);
        pool_row(plane, first, sums, pooled);
        write_line(pooled, out + (p * OUT_HEIGHT + i) * OUT_WIDTH, stream);
      }
#if defined(__AVX__)
    _mm_sfence();
#endif
  }
}
