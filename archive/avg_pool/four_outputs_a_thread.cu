// Average pooling (3 x 3, stride 2, padding 1, padding counts) with a float4 of neighbouring outputs and ROWS output rows a thread: two float4 and
// one float of every input row, and the row that two output rows share is read once.
//
// @tune ROWS = 2 in 1 2 4                                    # output rows a thread
// @tune BLOCK = 256 in 128 256 512
// @require x.contiguous and x.ndim >= 3
// @const HEIGHT = x.shape[-2]
// @const WIDTH = x.shape[-1]
// @require HEIGHT % (2 * ROWS) == 0 and WIDTH % 8 == 0 and out.shape[-2] == HEIGHT // 2 and out.shape[-1] == WIDTH // 2
// @const THREADS = out.numel // (4 * ROWS)
// @launch avg_pool<<<cdiv(THREADS, BLOCK), BLOCK>>>(x, out)

constexpr int ACROSS = WIDTH / 8;           // threads of an output row
constexpr int DOWN = HEIGHT / (2 * ROWS);   // threads of an output column

// The sums of three neighbours, of four windows, in one input row.
__device__ __forceinline__ float4 row_sums(const float* row, int column)
{
    const float4 a = __ldg((const float4*)(row + column)), b = __ldg((const float4*)(row + column + 4));
    const float before = column > 0 ? __ldg(row + column - 1) : 0.0f;
    return make_float4(before + a.x + a.y, a.y + a.z + a.w, a.w + b.x + b.y, b.y + b.z + b.w);
}

__device__ __forceinline__ float4 mean_of(float4 a, float4 b, float4 c)
{
    constexpr float NINTH = 1.0f / 9.0f;
    return make_float4((a.x + b.x + c.x) * NINTH, (a.y + b.y + c.y) * NINTH, (a.z + b.z + c.z) * NINTH, (a.w + b.w + c.w) * NINTH);
}

__global__ void __launch_bounds__(BLOCK) avg_pool(const float* __restrict__ x, float4* __restrict__ out)
{
    const int thread = blockIdx.x * BLOCK + threadIdx.x;
    if (thread >= THREADS) return;
    const int across = thread % ACROSS, down = thread / ACROSS % DOWN;
    const size_t plane = thread / (ACROSS * DOWN);
    const float* top = x + (plane * HEIGHT + 2 * ROWS * down) * WIDTH;

    float4 sums[2 * ROWS + 1];
    sums[0] = down > 0 ? row_sums(top - WIDTH, 8 * across) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
    for (int r = 0; r < 2 * ROWS; ++r) sums[r + 1] = row_sums(top + r * WIDTH, 8 * across);
    float4* to = out + (plane * (HEIGHT / 2) + ROWS * down) * ACROSS + across;
#pragma unroll
    for (int r = 0; r < ROWS; ++r) to[r * ACROSS] = mean_of(sums[2 * r], sums[2 * r + 1], sums[2 * r + 2]);
}
