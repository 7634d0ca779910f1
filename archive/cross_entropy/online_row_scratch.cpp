// Mean cross entropy in one pass over the logits: a running maximum and rescaled sum of exponentials by chunk, one loss a row into scratch,
// then a short sum in double. Nothing of the size of the logits is written.
//
// @tune CHUNK = 512 in 256 512 1024
// @tune PREFETCH = true in false true
// @tune UNROLL = 2 in 1 2 4
// @require logits.contiguous and target.contiguous and logits.ndim == 2
// @const CLASSES = logits.shape[1]
// @scratch losses float64 [logits.shape[0]]
// @launch row_losses(logits, target, losses, logits.shape[0])
// @launch mean_loss(losses, target, out, logits.shape[0])

#include <math.h>
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

typedef float vec __attribute__((vector_size(32)));
constexpr int LANES = 8;

static inline vec splat(float a) { return vec{} + a; }

static inline vec load(const float* p) {
  vec v;
  memcpy(&v, p, sizeof v);
  return v;
}

static inline vec load_part(const float* p, int n, float fill) {
  vec v = splat(fill);
  memcpy(&v, p, n * sizeof(float));
  return v;
}

static inline vec larger(vec a, vec b) { return a > b ? a : b; }

static inline float total(vec v) { return ((v[0] + v[4]) + (v[1] + v[5])) + ((v[2] + v[6]) + (v[3] + v[7])); }

static inline float highest(vec v) {
  float m = v[0];
  for (int i = 1; i < LANES; ++i) m = v[i] > m ? v[i] : m;
  return m;
}

#define INLINE __attribute__((always_inline)) static inline  // a call would pass packs through memory

// N vectors in lockstep: their instructions interleave, which hides the latency of a long polynomial.
template <int N>
struct pack {
  vec v[N];
};

template <int N, class F>
INLINE pack<N> each(F f) {
  pack<N> r;
#pragma GCC unroll 8
  for (int i = 0; i < N; ++i) r.v[i] = f(i);
  return r;
}

template <int N>
INLINE pack<N> horner(pack<N> p, pack<N> x, float c) {
  return each<N>([&](int i) { return p.v[i] * x.v[i] + c; });
}

// exp(x) for x <= 0 within about one ulp; results below the smallest normal number become 0.
template <int N>
INLINE pack<N> exp_nonpositive(pack<N> x) {
  typedef int32_t ivec __attribute__((vector_size(32)));
  const vec low = splat(-87.33f), shifter = splat(12582912.0f);  // adding 1.5 * 2^23 rounds to an integer
  const pack<N> y = each<N>([&](int i) { return larger(x.v[i], low); });
  const pack<N> t = each<N>([&](int i) { return y.v[i] * 1.44269504f + shifter; });
  pack<N> r = each<N>([&](int i) { return y.v[i] - (t.v[i] - shifter) * 0.693359375f; });
  r = each<N>([&](int i) { return r.v[i] + (t.v[i] - shifter) * 2.12194440e-4f; });
  pack<N> p = each<N>([&](int i) { return r.v[i] * 1.395171725e-3f + 8.369598410e-3f; });
  p = horner<N>(p, r, 4.166618728e-2f);
  p = horner<N>(p, r, 1.666651289e-1f);
  p = horner<N>(p, r, 5.0e-1f);
  p = each<N>([&](int i) { return p.v[i] * (r.v[i] * r.v[i]) + r.v[i]; });
  const pack<N> power = each<N>([&](int i) { return (vec)(((ivec)t.v[i] << 23) + (127 << 23)); });
  p = each<N>([&](int i) { return p.v[i] * power.v[i] + power.v[i]; });
  return each<N>([&](int i) { return x.v[i] < low ? splat(0.0f) : p.v[i]; });
}

static inline vec exp_nonpositive(vec x) { return exp_nonpositive<1>({{x}}).v[0]; }

static inline float chunk_maximum(const float* p, const float* next, int n) {
  vec m[4];
  for (int u = 0; u < 4; ++u) m[u] = splat(-__builtin_inff());
  int j = 0;
  for (; j + 4 * LANES <= n; j += 4 * LANES) {
    if (PREFETCH)
      for (int u = 0; u < 4 * LANES; u += 16) __builtin_prefetch(next + j + u, 0, 3);
    for (int u = 0; u < 4; ++u) m[u] = larger(m[u], load(p + j + u * LANES));
  }
  for (; j < n; j += LANES) m[0] = larger(m[0], load_part(p + j, n - j < LANES ? n - j : LANES, -__builtin_inff()));
  return highest(larger(larger(m[0], m[1]), larger(m[2], m[3])));
}

static inline float chunk_sum(const float* p, int n, float maximum) {
  vec s[UNROLL];
  for (int u = 0; u < UNROLL; ++u) s[u] = splat(0.0f);
  int j = 0;
  for (; j + UNROLL * LANES <= n; j += UNROLL * LANES) {
    const pack<UNROLL> e = exp_nonpositive(each<UNROLL>([&](int u) { return load(p + j + u * LANES) - maximum; }));
    for (int u = 0; u < UNROLL; ++u) s[u] += e.v[u];
  }
  for (; j < n; j += LANES) s[0] += exp_nonpositive(load_part(p + j, n - j < LANES ? n - j : LANES, -__builtin_inff()) - maximum);
  for (int u = 1; u < UNROLL; ++u) s[0] += s[u];
  return total(s[0]);
}

void row_losses(const float* logits, const int64_t* target, double* losses, int64_t rows) {
#pragma omp parallel for schedule(static)
  for (int64_t i = 0; i < rows; ++i) {
    const float* row = logits + i * CLASSES;
    const float* last = logits + rows * CLASSES - CHUNK;
    float maximum = -__builtin_inff();
    double sum = 0.0;
    for (int j = 0; j < CLASSES; j += CHUNK) {
      const int n = CLASSES - j < CHUNK ? CLASSES - j : CHUNK;
      const float* next = row + j + CHUNK < last ? row + j + CHUNK : row + j;
      const float here = chunk_maximum(row + j, next, n);
      if (here > maximum) {
        sum *= exp((double)maximum - here);
        maximum = here;
      }
      sum += chunk_sum(row + j, n, maximum);
    }
    losses[i] = target[i] >= 0 && target[i] < CLASSES ? ((double)maximum - row[target[i]]) + log(sum) : 0.0;
  }
}

// The mean over rows whose target is not ignored (-100).
void mean_loss(const double* losses, const int64_t* target, float* out, int64_t rows) {
  double sum = 0.0;
  int64_t counted = 0;
  for (int64_t i = 0; i < rows; ++i) {
    sum += losses[i];
    counted += target[i] >= 0;
  }
  *out = (float)(sum / (double)counted);
}
