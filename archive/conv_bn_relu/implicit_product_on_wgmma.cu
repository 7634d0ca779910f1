// Implicit product in 3xTF32 by wgmma: weights from global memory straight to A registers, pixels split once into overlapping segments in shared memory as B, two groups each with half the channels.
//
// @tune FLUSH = 3 in 1 3                      # rows of taps between two additions to the float32 sums
// @const QUADS = x.shape[2] * x.shape[3] // 4 # float4 of a plane of x
// @const SEGMENTS = x.shape[2] * x.shape[3] // 8
// @const BLOCKS = cdiv(SEGMENTS, 12)          # blocks an image
// @const PITCH = 11                           # float4 of a segment in shared memory: left neighbour, 8 pixels, right neighbour, 1 against bank conflicts
// @const PLANE = 32 * PITCH                   # float4 of 32 segments: four channels
// @const TILE = 16 * PLANE                    # float4 of all channels, once for the high and once for the low parts
// @const POOL = 64 * 26                       # float4 of the sums of a group: 64 channels of 24, and 2 against bank conflicts
// @require x.contiguous and conv_weight.contiguous and x.shape[0] == 4 and x.shape[1] == 64 and x.shape[2] == 56 and x.shape[3] == 56
// @require FLUSH == 1 or FLUSH == 3
// @persist packed float32 [36864]
// @persist shift float32 [64]
// @prepare launch pack_weights<<<144, 256>>>(conv_weight, bn_weight, bn_bias, bn_running_mean, bn_running_var, packed, shift)
// @launch product<<<x.shape[0] * BLOCKS, 256, 2 * TILE * 16>>>(x, packed, shift, out)

// Weights times scale in the order of wgmma's A fragments: [8 octets of input channels][9 taps][4 warps][32 lanes][4].
__global__ void __launch_bounds__(256) pack_weights(const float* __restrict__ weight, const float* __restrict__ gamma, const float* __restrict__ beta,
                                                    const float* __restrict__ mean, const float* __restrict__ variance, float* __restrict__ packed,
                                                    float* __restrict__ shift)
{
    const int e = blockIdx.x * 256 + threadIdx.x;
    const int column = e % 8, channel_out = e / 8 % 64, step = e / 512;
    const int tap = step % 9, channel_in = step / 9 * 8 + column;
    const double scale = (double)gamma[channel_out] / sqrt((double)variance[channel_out] + 1e-5);
    const int row = channel_out % 16;
    const int lane = row % 8 * 4 + column % 4, slot = row / 8 + column / 4 * 2;
    packed[step * 512 + channel_out / 16 * 128 + lane * 4 + slot] = (float)((double)weight[(channel_out * 64 + channel_in) * 9 + tap] * scale);
    if (e < 64) shift[e] = (float)((double)beta[e] - (double)mean[e] * ((double)gamma[e] / sqrt((double)variance[e] + 1e-5)));
}

// high is the nearest TF32 number, low what is left: at most 12 bits, of which the tensor core itself drops the last.
__device__ __forceinline__ void split(float v, unsigned& high, unsigned& low)
{
    high = (__float_as_uint(v) + 0x1000u) & 0xffffe000u;
    low = __float_as_uint(v - __uint_as_float(high));
}

__device__ __forceinline__ void split_weights(const float4 (&raw)[3], unsigned (&high)[3][4], unsigned (&low)[3][4])
{
#pragma unroll
    for (int s = 0; s < 3; ++s) {
        split(raw[s].x, high[s][0], low[s][0]);
        split(raw[s].y, high[s][1], low[s][1]);
        split(raw[s].z, high[s][2], low[s][2]);
        split(raw[s].w, high[s][3], low[s][3]);
    }
}

// 64 channels x 96 pixels x 8 input channels; add == 0: d is overwritten.
__device__ __forceinline__ void multiply(float (&d)[48], const unsigned (&a)[4], unsigned long long b, int add)
{
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "setp.ne.b32 p, %53, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n96k8.f32.tf32.tf32 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, "
        "%8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, "
        "%24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, "
        "%40, %41, %42, %43, %44, %45, %46, %47}, "
        "{%48, %49, %50, %51}, %52, p, 1, 1;\n"
        "}\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
          "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
          "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}

// These keep the compiler from moving uses of registers over the asynchronous products.
__device__ __forceinline__ void pin(float (&v)[48])
{
#pragma unroll
    for (int i = 0; i < 48; ++i) asm volatile("" : "+f"(v[i]));
}

__device__ __forceinline__ void pin(unsigned (&v)[3][4])
{
#pragma unroll
    for (int s = 0; s < 3; ++s)
#pragma unroll
        for (int i = 0; i < 4; ++i) asm volatile("" : "+r"(v[s][i]));
}

// As torch.relu: NaN stays.
__device__ __forceinline__ float relu(float v) { return v < 0.0f ? 0.0f : v; }

// Four pixels of four channels.
__device__ __forceinline__ void fetch(float4 (&v)[4], const float4* __restrict__ from, bool inside)
{
#pragma unroll
    for (int j = 0; j < 4; ++j) v[j] = inside ? from[j * QUADS] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
}

// Transposes, splits and stores them; the outer pixel goes to the neighbouring segment, too, as a zero where a row ends.
__device__ __forceinline__ void store(const float4 (&v)[4], float4* to, int spot, int copy, bool right, bool blank)
{
    const float pixels[4][4] = {{v[0].x, v[1].x, v[2].x, v[3].x},
                                {v[0].y, v[1].y, v[2].y, v[3].y},
                                {v[0].z, v[1].z, v[2].z, v[3].z},
                                {v[0].w, v[1].w, v[2].w, v[3].w}};
    float high[4][4], low[4][4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            unsigned h, l;
            split(pixels[k][j], h, l);
            high[k][j] = __uint_as_float(h);
            low[k][j] = __uint_as_float(l);
        }
        to[spot + k] = make_float4(high[k][0], high[k][1], high[k][2], high[k][3]);
        to[TILE + spot + k] = make_float4(low[k][0], low[k][1], low[k][2], low[k][3]);
    }
    float h[4], l[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        h[j] = blank ? 0.0f : (right ? high[3][j] : high[0][j]);
        l[j] = blank ? 0.0f : (right ? low[3][j] : low[0][j]);
    }
    to[copy] = make_float4(h[0], h[1], h[2], h[3]);
    to[TILE + copy] = make_float4(l[0], l[1], l[2], l[3]);
}

// A segment is 8 pixels of a row, 7 of them a row, 12 of them a block, which stays within an image. The tile holds the segments from first - 8 on, those
// outside the image as zeros; segment 0 and segment 27 only give their outer pixels to their neighbours. Position p of a segment is its pixel p - 1.
// Tap (r, s) of output segment i is segment i + 1 + 7 * r from position s on.
__global__ void __launch_bounds__(256, 1) product(const float4* __restrict__ x, const float4* __restrict__ packed, const float* __restrict__ shift,
                                                  float4* __restrict__ out)
{
    extern __shared__ float4 memory[];                   // high parts [16 quads of channels][32 segments][PITCH], low parts alike; later the sums
    const int group = __shfl_sync(0xffffffffu, (int)threadIdx.x / 128, 0);               // half of the input channels
    const int local = threadIdx.x % 128, lane = threadIdx.x % 32;
    const int image = blockIdx.x / BLOCKS, first = blockIdx.x % BLOCKS * 12;

    // What this thread brings to the tile: half a segment of four channels, for each octet of channels.
    const int quad = local / 64, segment = local % 64 / 2, side = local % 2;
    const int q = first - 8 + segment;
    const bool inside = segment < 28 && q >= 0 && q < SEGMENTS;
    const float4* from = x + ((image * 64 + group * 32 + quad * 4) * QUADS + q * 2 + side);
    float4 v[4], v_first[4];
    fetch(v_first, from, inside);
    fetch(v, from + 8 * QUADS, inside);

    const float4* weights = packed + group * (36 * 128) + local;
    float4 raw[3], raw_first[3];
#pragma unroll
    for (int s = 0; s < 3; ++s) raw_first[s] = weights[s * 128];
#pragma unroll
    for (int s = 0; s < 3; ++s) raw[s] = weights[(3 + s) * 128];

    // All blocks together bring the weights to L2.
    if (threadIdx.x < 9) {
        const int line = blockIdx.x * 9 + threadIdx.x;
        if (line < 1152) asm volatile("prefetch.global.L2 [%0];" : : "l"(packed + line * 8));
    }
    __syncwarp();

    const int channel = local / 32 * 16 + lane / 4;
    const float shift_low = group == 0 ? shift[channel] : 0.0f, shift_high = group == 0 ? shift[channel + 8] : 0.0f;

    const int column = (q + 14) % 7;
    const bool right = side == 1, blank = right ? column == 6 : column == 0;
    const int spot = segment * PITCH + 1 + side * 4;
    // Where there is no neighbour: into the padding.
    const int copy = right ? (segment < 31 ? (segment + 1) * PITCH : segment * PITCH + 10) : (segment > 0 ? (segment - 1) * PITCH + 9 : 10);
    float4* to = memory + (group * 8 + quad) * PLANE;

    store(v_first, to, spot, copy, right, blank);
    asm volatile("fence.proxy.async.shared::cta;" : : : "memory");

    unsigned high[3][4], low[3][4];
    split_weights(raw_first, high, low);

    float sum[48], part[48];
#pragma unroll
    for (int i = 0; i < 48; ++i) sum[i] = part[i] = 0.0f;

    // No swizzle, k-major: 8 pixels x 4 channels are 128 bytes; PLANE to the next four channels, PITCH to the next 8 pixels.
    const unsigned start = (unsigned)__cvta_generic_to_shared(memory) / 16 + group * 8 * PLANE + PITCH;
    const unsigned long long matrix = ((unsigned long long)PITCH << 32) | ((unsigned long long)PLANE << 16) | start;

    asm volatile("bar.sync %0, 128;" : : "r"(group + 1) : "memory");

#pragma unroll 1
    for (int o = 0; o < 4; ++o) {
#pragma unroll
        for (int r = 0; r < 3; ++r) {
            const unsigned long long b = matrix + (unsigned)(o * 2 * PLANE + r * 7 * PITCH);
            pin(high);
            pin(low);
            pin(part);
            asm volatile("wgmma.fence.sync.aligned;" : : : "memory");
#pragma unroll
            for (int s = 0; s < 3; ++s) multiply(part, low[s], b + s, (r % FLUSH != 0 || s > 0) ? 1 : 0);
#pragma unroll
            for (int s = 0; s < 3; ++s) multiply(part, high[s], b + TILE + s, 1);
#pragma unroll
            for (int s = 0; s < 3; ++s) multiply(part, high[s], b + s, 1);
            asm volatile("wgmma.commit_group.sync.aligned;" : : : "memory");

            // While they run: the next weights, and the next octet of channels.
            unsigned high_next[3][4], low_next[3][4];
            split_weights(raw, high_next, low_next);
            const int ahead = min(o * 3 + r + 2, 11);
#pragma unroll
            for (int s = 0; s < 3; ++s) raw[s] = weights[(ahead * 3 + s) * 128];
            if (r == 0 && o < 3) {
                store(v, to + (o + 1) * 2 * PLANE, spot, copy, right, blank);
                asm volatile("fence.proxy.async.shared::cta;" : : : "memory");
                fetch(v, from + min(o + 2, 3) * 8 * QUADS, inside);
            }

            asm volatile("wgmma.wait_group.sync.aligned 0;" : : : "memory");
            pin(part);
            if ((r + 1) % FLUSH == 0) {
#pragma unroll
                for (int i = 0; i < 48; ++i) sum[i] += part[i];
            }
#pragma unroll
            for (int s = 0; s < 3; ++s)
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    high[s][i] = high_next[s][i];
                    low[s][i] = low_next[s][i];
                }
        }
        asm volatile("bar.sync %0, 128;" : : "r"(group + 1) : "memory");                 // the next octet is here for this group
    }

    __syncthreads();                                     // nobody reads the tile any more
    float2* pool = reinterpret_cast<float2*>(memory + group * POOL) + channel * 52 + lane % 4;
#pragma unroll
    for (int i = 0; i < 12; ++i) {
        pool[i * 4] = make_float2(sum[i * 4] + shift_low, sum[i * 4 + 1] + shift_low);
        pool[8 * 52 + i * 4] = make_float2(sum[i * 4 + 2] + shift_high, sum[i * 4 + 3] + shift_high);
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 6; ++i) {
        const int e = i * 256 + threadIdx.x;
        const int row = e / 24, pixels = first * 2 + e % 24;
        const float4 a = memory[row * 26 + e % 24], c = memory[POOL + row * 26 + e % 24];
        if (pixels < QUADS)
            out[(image * 64 + row) * QUADS + pixels] = make_float4(relu(a.x + c.x), relu(a.y + c.y), relu(a.z + c.z), relu(a.w + c.w));
    }
}
