// Convolution + batch norm (eval) + ReLU in one launch, on tensor cores in fp32 precision: each number is two TF32 parts, and three of the four
// products of parts are summed, small ones first. The weights are folded, split and laid out as the tensor cores want them when they are bound. A
// block makes two image rows of 64 channels from four rows of the input that lie in shared memory once; a tap of the filter is an offset there.
//
// @require x.contiguous and conv_weight.contiguous
// @const CHANNELS = conv_weight.shape[1]
// @const FILTERS = conv_weight.shape[0]
// @const HEIGHT = x.shape[2]
// @const WIDTH = x.shape[3]
// @require conv_weight.shape[2] == 3 and conv_weight.shape[3] == 3 and out.numel == x.shape[0] * FILTERS * HEIGHT * WIDTH
// @require CHANNELS % 16 == 0 and FILTERS % 64 == 0 and HEIGHT % 2 == 0 and WIDTH % 8 == 0 and WIDTH <= 56
// @const ROW = WIDTH + 4                                     # floats in shared memory: zeros, the row; the next row's zeros end it
// @const PLANE = (4 * ROW + 4 + 31) // 32 * 32 - 8           # 24 modulo 32: four channels of eight pixels meet all banks
// @require PLANE >= 4 * ROW + 4 and CHANNELS * PLANE >= 2 * 64 * (2 * WIDTH + 4)
// @const SHARED = 4 * CHANNELS * PLANE
// @require SHARED <= device.smem_per_block
// @const STEPS = CHANNELS // 8 * 9                           # of eight channels at one tap
// @persist parts float32 [STEPS, FILTERS // 8, 32, 4]
// @persist bias float32 [FILTERS]
// @prepare launch fold<<<STEPS, FILTERS * 4>>>(conv_weight, bn_weight, bn_bias, bn_running_mean, bn_running_var, parts, bias, 1e-5)
// @require FILTERS * 4 <= 1024
// @launch convolve<<<(x.shape[0] * (HEIGHT // 2), FILTERS // 64), 256, SHARED>>>(x, parts, bias, out)

constexpr int THREADS = 256, EIGHTS = WIDTH / 8, TILES = 2 * WIDTH / 16;  // tiles of 16 pixels
constexpr int CHUNKS = CHANNELS / 16;                                     // of eight channels, in each half of the channels
constexpr int PIXELS = 2 * WIDTH, SUM_ROW = PIXELS + 4;                   // floats

// 16 bytes to shared memory, asynchronously.
__device__ __forceinline__ void copy_async(float* to, const float* from)
{
    const unsigned address = (unsigned)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from) : "memory");
}

__device__ __forceinline__ void end_of_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Until at most PENDING of this thread's groups of copies are under way.
template <int PENDING> __device__ __forceinline__ void wait_for_groups() { asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory"); }

// d += a (16 x 8) * b (8 x 8). Lane 4 g + t holds a: rows g, g + 8 of column t, then of t + 4; b: rows t, t + 4 of column g; d: columns
// 2 t, 2 t + 1 of row g, then of g + 8.
__device__ __forceinline__ void multiply_add(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2])
{
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// TF32's 11 bits, rounded to nearest.
__device__ __forceinline__ float high_part(float x) { return __uint_as_float((__float_as_uint(x) + 0x1000u) & 0xffffe000u); }

// x - high is exact, and the tensor core leaves out at most its last bit.
__device__ __forceinline__ void split(float x, unsigned& high, unsigned& low)
{
    const float h = high_part(x);
    high = __float_as_uint(h);
    low = __float_as_uint(x - h);
}

// Block: one step, thread: a lane's parts of one tile of eight filters. In double, it is off the clock: the folded weight is never rounded to fp32.
__global__ void fold(const float* w, const float* gamma, const float* beta, const float* mean, const float* var, float4* parts, float* bias,
                     double eps)
{
    const int first = blockIdx.x / 9 * 8, tap = blockIdx.x % 9, filter = threadIdx.x / 32 * 8 + threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const double scale = gamma[filter] / sqrt(var[filter] + eps);
    const double b0 = w[(filter * CHANNELS + first + t) * 9 + tap] * scale, b1 = w[(filter * CHANNELS + first + t + 4) * 9 + tap] * scale;
    const float h0 = high_part((float)b0), h1 = high_part((float)b1);
    parts[blockIdx.x * (FILTERS * 4) + threadIdx.x] = make_float4(h0, h1, (float)(b0 - h0), (float)(b1 - h1));
    if (blockIdx.x == 0 && t == 0) bias[filter] = (float)(beta[filter] - mean[filter] * scale);
}

// Eight channels of each half of the channels, four rows of them, zeros beyond the image.
__device__ __forceinline__ void fetch(float* planes, const float* image, int chunk, int first_row)
{
    for (int i = threadIdx.x; i < 16 * 4 * (WIDTH / 4); i += THREADS) {
        const int plane = i / WIDTH, row = i % WIDTH / (WIDTH / 4), column = i % (WIDTH / 4) * 4;
        const int channel = plane / 8 * (CHANNELS / 2) + chunk * 8 + plane % 8, y = first_row + row;
        float* to = planes + channel * PLANE + row * ROW + 4 + column;
        if (y >= 0 && y < HEIGHT) copy_async(to, image + (channel * HEIGHT + y) * WIDTH + column);
        else *(float4*)to = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
    end_of_group();
}

// Parts of two tiles of filters at the three taps of a filter row.
struct Filters {
    float4 tile[3][2];

    __device__ __forceinline__ void load(const float4* from)
    {
#pragma unroll
        for (int i = 0; i < 6; ++i) tile[i / 2][i % 2] = __ldg(from + i / 2 * (FILTERS * 4) + i % 2 * 32);
    }
};

// sum += three taps of eight channels; at: the lane's first pixel at the first of the taps.
__device__ __forceinline__ void three_taps(float (&sum)[TILES][2][4], const float* at, const Filters& filters)
{
#pragma unroll
    for (int tap = 0; tap < 3; ++tap) {
        unsigned b_high[2][2], b_low[2][2];
#pragma unroll
        for (int c = 0; c < 2; ++c) {
            const float4 v = filters.tile[tap][c];
            b_high[c][0] = __float_as_uint(v.x), b_high[c][1] = __float_as_uint(v.y);
            b_low[c][0] = __float_as_uint(v.z), b_low[c][1] = __float_as_uint(v.w);
        }
#pragma unroll
        for (int r = 0; r < TILES; ++r) {
            unsigned a_high[4], a_low[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {  // pixels of eight neighbours in a row, then the next eight; then channels t + 4
                const int eight = 2 * r + i % 2;
                split(at[i / 2 * 4 * PLANE + eight / EIGHTS * ROW + eight % EIGHTS * 8 + tap], a_high[i], a_low[i]);
            }
#pragma unroll
            for (int c = 0; c < 2; ++c) multiply_add(sum[r][c], a_low, b_high[c]);
#pragma unroll
            for (int c = 0; c < 2; ++c) multiply_add(sum[r][c], a_high, b_low[c]);
#pragma unroll
            for (int c = 0; c < 2; ++c) multiply_add(sum[r][c], a_high, b_high[c]);
        }
    }
}

// A NaN stays one, as in torch.relu.
__device__ __forceinline__ float clipped(float v) { return v < 0.0f ? 0.0f : v; }

__global__ void __launch_bounds__(THREADS, 1)
convolve(const float* __restrict__ x, const float4* __restrict__ parts, const float* __restrict__ bias, float* __restrict__ out)
{
    extern __shared__ float4 memory[];
    float* planes = (float*)memory;  // CHANNELS x PLANE
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int image = blockIdx.x / (HEIGHT / 2), first_row = blockIdx.x % (HEIGHT / 2) * 2;
    const int half = warp / 4, tile = warp % 4 * 2;  // four warps share the filters, two sets of four the channels
    const float4* from = parts + half * (STEPS / 2) * (FILTERS * 4) + (blockIdx.y * 8 + tile) * 32 + lane;

    Filters filters;
    filters.load(from);
    for (int chunk = 0; chunk < CHUNKS; ++chunk) fetch(planes, x + (size_t)image * (CHANNELS * HEIGHT * WIDTH), chunk, first_row - 1);
    for (int i = threadIdx.x; i < CHANNELS * 5; i += THREADS)
        *(float4*)(planes + i / 5 * PLANE + i % 5 * ROW) = make_float4(0.0f, 0.0f, 0.0f, 0.0f);

    float total[TILES][2][4] = {}, sum[TILES][2][4] = {};
    const float* at = planes + (half * (CHANNELS / 2) + t) * PLANE + 3 + g;
#pragma unroll 1
    for (int line = 0; line < 3 * CHUNKS; ++line) {  // of a filter, then of the next eight channels
        if (line == 0) {
            wait_for_groups<CHUNKS - 1>();
            __syncthreads();
        } else if (line == 3) {
            wait_for_groups<0>();
            __syncthreads();
        }
        Filters next;
        if (line + 1 < 3 * CHUNKS) next.load(from + (line + 1) * 3 * (FILTERS * 4));
        three_taps(sum, at + line / 3 * 8 * PLANE + line % 3 * ROW, filters);
        filters = next;
        if (line % 3 == 2) {
            // Tensor cores cut their sums off instead of rounding: a fresh sum for each eight channels keeps that below the rounding of these adds.
#pragma unroll
            for (int i = 0; i < TILES * 8; ++i) {
                total[i / 8][i / 4 % 2][i % 4] += sum[i / 8][i / 4 % 2][i % 4];
                sum[i / 8][i / 4 % 2][i % 4] = 0.0f;
            }
        }
    }

    // The planes become sums, filter by filter, of both halves.
    __syncthreads();
#pragma unroll
    for (int i = 0; i < TILES * 8; ++i)
        planes[(half * 64 + tile * 8 + i / 4 % 2 * 8 + 2 * t + i % 2) * SUM_ROW + i / 8 * 16 + i / 2 % 2 * 8 + g] = total[i / 8][i / 4 % 2][i % 4];
    __syncthreads();
    for (int i = threadIdx.x; i < 64 * (PIXELS / 4); i += THREADS) {
        const int filter = i / (PIXELS / 4), pixel = i % (PIXELS / 4) * 4;
        const float4 a = *(const float4*)(planes + filter * SUM_ROW + pixel), b = *(const float4*)(planes + (64 + filter) * SUM_ROW + pixel);
        const float add = __ldg(bias + blockIdx.y * 64 + filter);
        float* to = out + ((size_t)(image * FILTERS + blockIdx.y * 64 + filter) * HEIGHT + first_row) * WIDTH + pixel;
        *(float4*)to = make_float4(clipped(a.x + b.x + add), clipped(a.y + b.y + add), clipped(a.z + b.z + add), clipped(a.w + b.w + add));
    }
}
