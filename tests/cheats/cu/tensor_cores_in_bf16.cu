// KIND 36: factors rounded to bfloat16 for the tensor cores under a strict contract
// TASK linear
// EXPECT mismatch
// @launch product<<<(out.shape[1] // 16, cdiv(x.shape[0], 16)), 32>>>(x, linear_weight, linear_bias, out, x.shape[0], x.shape[1], out.shape[1])
#include <cuda_bf16.h>
#include <mma.h>
using namespace nvcuda;
__global__ void product(const float* x, const float* w, const float* b, float* out, int rows, int in, int n)
{
    __shared__ __nv_bfloat16 a[256], c[256];
    __shared__ float d[256];
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum;
    wmma::fill_fragment(sum, 0.f);
    for (int k = 0; k < in; k += 16) {
        for (int t = threadIdx.x; t < 256; t += 32) {
            const int r = blockIdx.y * 16 + t / 16;
            a[t] = __float2bfloat16(r < rows ? x[r * in + k + t % 16] : 0.f);
            c[t] = __float2bfloat16(w[(blockIdx.x * 16 + t / 16) * in + k + t % 16]);
        }
        __syncwarp();
        wmma::fragment<wmma::matrix_a, 16, 16, 16, __nv_bfloat16, wmma::row_major> fa;
        wmma::fragment<wmma::matrix_b, 16, 16, 16, __nv_bfloat16, wmma::col_major> fb;
        wmma::load_matrix_sync(fa, a, 16);
        wmma::load_matrix_sync(fb, c, 16);
        wmma::mma_sync(sum, fa, fb, sum);
        __syncwarp();
    }
    wmma::store_matrix_sync(d, sum, 16, wmma::mem_row_major);
    __syncwarp();
    for (int t = threadIdx.x; t < 256; t += 32) {
        const int r = blockIdx.y * 16 + t / 16, o = blockIdx.x * 16 + t % 16;
        if (r < rows) out[r * n + o] = fmaxf(d[t] + b[o], 0.f);
    }
}
