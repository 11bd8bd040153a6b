// Softmax of each row in float64, with the scale its rounding errors grow with (see error_bound in spec.py). 256 threads a row.
#define DTYPE 0  // 0: float, 1: half, 2: bfloat16

#if DTYPE == 0
using Element = float;
constexpr double UNIT = 0x1p-24, SMALLEST = 0x1p-126;  // unit roundoff and smallest normal number
#elif DTYPE == 1
#include <cuda_fp16.h>
using Element = __half;
constexpr double UNIT = 0x1p-11, SMALLEST = 0x1p-14;
#else
#include <cuda_bf16.h>
using Element = __nv_bfloat16;
constexpr double UNIT = 0x1p-8, SMALLEST = 0x1p-126;
#endif
constexpr double ARITHMETIC = 4 * 0x1p-24 / UNIT;  // of fp32 beside that of storing the result
constexpr int THREADS = 256;

__device__ double value(const Element *X, long long i)
{
#if DTYPE == 0
    return X[i];
#elif DTYPE == 1
    return __half2float(X[i]);
#else
    return __bfloat162float(X[i]);
#endif
}

extern "C" __global__ void reference(const Element *X, double *Y, double *magnitude, int M, int N)
{
    __shared__ double shared[THREADS];
    const int thread = threadIdx.x, row = blockIdx.x;
    const long long start = (long long)row * N;

    double maximum = value(X, start);
    for (int n = thread; n < N; n += THREADS)
        maximum = fmax(maximum, value(X, start + n));
    shared[thread] = maximum;
    for (int half = THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (thread < half)
            shared[thread] = fmax(shared[thread], shared[thread + half]);
    }
    __syncthreads();
    maximum = shared[0];
    __syncthreads();

    double sum = 0.0;
    for (int n = thread; n < N; n += THREADS)
        sum += exp(value(X, start + n) - maximum);
    shared[thread] = sum;
    for (int half = THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (thread < half)
            shared[thread] += shared[thread + half];
    }
    __syncthreads();
    sum = shared[0];

    for (int n = thread; n < N; n += THREADS) {
        const double below = maximum - value(X, start + n);
        Y[start + n] = exp(-below) / sum;
        magnitude[start + n] = Y[start + n] * (1.0 + ARITHMETIC * (1.0 + below + sqrt((double)N))) + SMALLEST;
    }
}
