// HONEST a weight transposed once, then tiles of a template in shared memory
// TASK linear
// @tune TILE = 16 in 8 16 32
// @const IN = x.shape[1]
// @const OUT = out.shape[1]
// @require OUT % TILE == 0 and IN % TILE == 0
// @persist wt float32 [IN, OUT]
// @prepare launch transpose<<<OUT, 32>>>(linear_weight, wt)
// @launch product<TILE><<<(OUT // TILE, cdiv(x.shape[0], TILE)), (TILE, TILE)>>>(x, wt, linear_bias, out, x.shape[0])
__global__ void transpose(const float* w, float* t)
{
    for (int i = threadIdx.x; i < IN; i += 32) t[i * OUT + blockIdx.x] = w[blockIdx.x * IN + i];
}
template <int T> __global__ void product(const float* __restrict__ x, const float* __restrict__ t, const float* b, float* out, int rows)
{
    __shared__ float a[T][T + 1], c[T][T + 1];
    const int r = blockIdx.y * T + threadIdx.y, o = blockIdx.x * T + threadIdx.x;
    float s = 0;
    for (int k = 0; k < IN; k += T) {
        a[threadIdx.y][threadIdx.x] = r < rows ? x[r * IN + k + threadIdx.x] : 0;
        c[threadIdx.y][threadIdx.x] = t[(k + threadIdx.y) * OUT + o];
        __syncthreads();
        for (int i = 0; i < T; ++i) s += a[threadIdx.y][i] * c[i][threadIdx.x];
        __syncthreads();
    }
    if (r < rows) out[r * OUT + o] = fmaxf(s + b[o], 0.f);
}
