// Attention fused by head and block of queries: keys are transposed once into scratch, a block's scores stay in L1/L2, softmax in place with
// polynomial exp, and the product with the values is divided by the sum at the end. Register tiles of 6 rows x 16 columns.
//
// @tune BLOCK = 24 in 6 12 24 48                             # queries a task
// @tune UNROLL = 2 in 1 2 4
// @require q.contiguous and k.contiguous and v.contiguous
// @const DIM = q.shape[-1]
// @const QUERIES = q.shape[-2]
// @const KEYS = k.shape[-2]
// @const VALUES = v.shape[-1]
// @const HEADS = q.numel // (QUERIES * DIM)
// @require k.shape[-1] == DIM and v.shape[-2] == KEYS and k.numel == HEADS * KEYS * DIM and v.numel == HEADS * KEYS * VALUES
// @require KEYS % 16 == 0 and VALUES % 16 == 0 and KEYS <= 8192
// @scratch transposed float32 [HEADS, DIM, KEYS]
// @launch transpose(k, transposed)
// @launch attend(q, transposed, v, out, 1.0 / DIM ** 0.5)

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

constexpr int ROWS = 6, COLUMNS = 16, REST = QUERIES % ROWS;

void transpose(const float* k, float* transposed) {
#pragma omp parallel for schedule(static)
  for (int h = 0; h < HEADS; ++h)
    for (int first = 0; first < KEYS; first += 16)
      for (int d = 0; d < DIM; ++d)
        for (int j = first; j < first + 16; ++j) transposed[((int64_t)h * DIM + d) * KEYS + j] = k[((int64_t)h * KEYS + j) * DIM + d];
}

// out (N x 16) = scale[row] * a (N x inner) b (inner x 16); rows of b and of out are `stride` apart.
template <int N>
static inline void tile(const float* a, int inner, const float* b, int stride, const float* scale, float* out) {
  vec sum[N][2];
#pragma GCC unroll 8
  for (int r = 0; r < N; ++r) sum[r][0] = sum[r][1] = splat(0.0f);
  for (int k = 0; k < inner; ++k) {
    const vec left = load(b + (int64_t)k * stride), right = load(b + (int64_t)k * stride + LANES);
#pragma GCC unroll 8
    for (int r = 0; r < N; ++r) {
      sum[r][0] += left * a[(int64_t)r * inner + k];
      sum[r][1] += right * a[(int64_t)r * inner + k];
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < N; ++r) {
    const vec left = sum[r][0] * scale[r], right = sum[r][1] * scale[r];
    memcpy(out + (int64_t)r * stride, &left, sizeof left);
    memcpy(out + (int64_t)r * stride + LANES, &right, sizeof right);
  }
}

// out (rows x columns) = scale[row] * a b in tiles; a column strip of b is used for all rows while it is in L1.
static inline void product(const float* a, int inner, const float* b, int columns, const float* scale, float* out, int rows) {
  for (int j = 0; j < columns; j += COLUMNS) {
    int r = 0;
    for (; r + ROWS <= rows; r += ROWS) tile<ROWS>(a + (int64_t)r * inner, inner, b + j, columns, scale + r, out + (int64_t)r * columns + j);
    if constexpr (REST > 0)
      if (r < rows) tile<REST>(a + (int64_t)r * inner, inner, b + j, columns, scale + r, out + (int64_t)r * columns + j);
  }
}

// exp(row - maximum) in place; returns the reciprocal of the sum.
static inline float exponentiate(float* row) {
  vec m = load(row), s[UNROLL];
  for (int j = LANES; j < KEYS; j += LANES) m = larger(m, load(row + j));
  const float maximum = highest(m);
  for (int u = 0; u < UNROLL; ++u) s[u] = splat(0.0f);
  int j = 0;
  for (; j + UNROLL * LANES <= KEYS; j += UNROLL * LANES) {
    const pack<UNROLL> e = exp_nonpositive(each<UNROLL>([&](int u) { return load(row + j + u * LANES) - maximum; }));
    for (int u = 0; u < UNROLL; ++u) s[u] += e.v[u];
    memcpy(row + j, &e, sizeof e);
  }
  for (; j < KEYS; j += LANES) {
    const vec e = exp_nonpositive(load(row + j) - maximum);
    s[0] += e;
    memcpy(row + j, &e, sizeof e);
  }
  for (int u = 1; u < UNROLL; ++u) s[0] += s[u];
  return 1.0f / total(s[0]);
}

void attend(const float* q, const float* transposed, const float* v, float* out, float scale) {
  constexpr int BLOCKS = (QUERIES + BLOCK - 1) / BLOCK;
#pragma omp parallel for schedule(static)
  for (int item = 0; item < HEADS * BLOCKS; ++item) {
    const int h = item / BLOCKS, first = item % BLOCKS * BLOCK, rows = QUERIES - first < BLOCK ? QUERIES - first : BLOCK;
    alignas(64) float scores[BLOCK * KEYS], factor[BLOCK];
    for (int r = 0; r < rows; ++r) factor[r] = scale;
    const int64_t query = (int64_t)h * QUERIES + first;
    product(q + query * DIM, DIM, transposed + (int64_t)h * DIM * KEYS, KEYS, factor, scores, rows);
    for (int r = 0; r < rows; ++r) factor[r] = exponentiate(scores + r * KEYS);
    product(scores, KEYS, v + (int64_t)h * KEYS * VALUES, VALUES, factor, out + query * VALUES, rows);
  }
}
