// HONEST cooperative groups: a tile a row, reductions by the library
// TASK softmax
// @launch softmax<<<cdiv(x.shape[0], 4), 128>>>(x, out, x.shape[0], x.shape[1])
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
namespace cg = cooperative_groups;
__global__ void softmax(const float* x, float* out, int rows, int cols)
{
    const auto tile = cg::tiled_partition<32>(cg::this_thread_block());
    const int r = blockIdx.x * 4 + tile.meta_group_rank();
    if (r >= rows) return;
    float m = -INFINITY, s = 0;
    for (int i = tile.thread_rank(); i < cols; i += 32) m = fmaxf(m, x[r * cols + i]);
    m = cg::reduce(tile, m, cg::greater<float>());
    for (int i = tile.thread_rank(); i < cols; i += 32) s += expf(x[r * cols + i] - m);
    s = cg::reduce(tile, s, cg::plus<float>());
    for (int i = tile.thread_rank(); i < cols; i += 32) out[r * cols + i] = expf(x[r * cols + i] - m) / s;
}
