// Layer normalisation of each row of X in float64, with the scale its rounding errors grow with; a thread block per row.
//
// Magnitude, in roundings of fp32: of Y to its type, |Y| or the smallest normal number; of fp32 arithmetic, |weight| (|x - mean|
// + mean |x|) / sqrt(variance + 1e-5) + |bias|, where the mean errs like a sum of x and the scale carries that into every
// element. How many: see error_bound in spec.py.
#define DTYPE 0  // 0: float, 1: half, 2: bfloat16

#if DTYPE == 0
using Element = float;
constexpr double SMALLEST = 0x1p-126, TO_TYPE = 1.0;
#elif DTYPE == 1
#include <cuda_fp16.h>
using Element = __half;
constexpr double SMALLEST = 0x1p-14, TO_TYPE = 0x1p13;
#else
#include <cuda_bf16.h>
using Element = __nv_bfloat16;
constexpr double SMALLEST = 0x1p-126, TO_TYPE = 0x1p16;
#endif

__device__ double value(Element element)
{
#if DTYPE == 0
    return element;
#elif DTYPE == 1
    return __half2float(element);
#else
    return __bfloat162float(element);
#endif
}

// The sum over a block's 256 threads, known to all of them.
__device__ double block_sum(double *parts, double part)
{
    parts[threadIdx.x] = part;
    for (int threads = 128; threads > 0; threads /= 2) {
        __syncthreads();
        if (threadIdx.x < threads)
            parts[threadIdx.x] += parts[threadIdx.x + threads];
    }
    __syncthreads();
    const double sum = parts[0];
    __syncthreads();
    return sum;
}

extern "C" __global__ void reference(
    const Element *X, const Element *weight, const Element *bias, double *Y, double *magnitude, int M, int N)
{
    __shared__ double parts[256];
    const long long begin = (long long)blockIdx.x * N;
    double sum = 0.0, sizes = 0.0, squares = 0.0;
    for (int j = threadIdx.x; j < N; j += 256) {
        sum += value(X[begin + j]);
        sizes += fabs(value(X[begin + j]));
    }
    const double mean = block_sum(parts, sum) / N, size = block_sum(parts, sizes) / N;
    for (int j = threadIdx.x; j < N; j += 256) {
        const double deviation = value(X[begin + j]) - mean;
        squares += deviation * deviation;
    }
    const double roundings = 8.0 + 8.0 * sqrt(8.0 + N / 3072.0);
    const double scale = 1.0 / sqrt(block_sum(parts, squares) / N + 1e-5);
    for (int j = threadIdx.x; j < N; j += 256) {
        const double deviation = value(X[begin + j]) - mean, w = value(weight[j]), b = value(bias[j]);
        const double y = deviation * scale * w + b;
        Y[begin + j] = y;
        magnitude[begin + j] = roundings * ((fabs(deviation) + size) * scale * fabs(w) + fabs(b)) + TO_TYPE * (fabs(y) + SMALLEST);
    }
}
