#include <torch/extension.h>
#include <cuda_runtime.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>
$headers
namespace candidate {
$code
}

struct Address {
    void* at;
    template <class T> operator T*() const { return static_cast<T*>(at); }
};

template <class... P, class... A>
void launch(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared, std::vector<cudaLaunchAttribute> attributes, A... arguments)
{
    if (shared) C10_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared));
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared;
    config.stream = c10::cuda::getCurrentCUDAStream();
    config.attrs = attributes.data();
    config.numAttrs = attributes.size();
    C10_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, arguments...));
}

cudaLaunchAttribute cluster(unsigned x, unsigned y, unsigned z)
{
    cudaLaunchAttribute found = {};
    found.id = cudaLaunchAttributeClusterDimension;
    found.val.clusterDim = {x, y, z};
    return found;
}

cudaLaunchAttribute flag(cudaLaunchAttributeID id)
{
    cudaLaunchAttribute found = {};
    found.id = id;
    (id == cudaLaunchAttributeCooperative ? found.val.cooperative : found.val.programmaticStreamSerializationAllowed) = 1;
    return found;
}

void check(const torch::Tensor& given, const char* name, at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType type)
{
    TORCH_CHECK(given.is_cuda() && given.scalar_type() == type && given.sizes() == sizes && (given.strides() == strides || given.numel() <= 1),
                "the kernel is for another shape, layout, type or device of ", name);
    TORCH_CHECK((uintptr_t)given.data_ptr() % 256 == 0, name, " does not start at a multiple of 256 bytes");
}

$head
{
    $body
}
