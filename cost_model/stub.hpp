// What a rendered kernel needs of CUDA to be parsed, and no more: declarations without bodies. Read by libclang only.
#pragma once

#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __host__ __attribute__((host))
#define __shared__ __attribute__((shared))
#define __constant__ __attribute__((constant))
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...) __attribute__((launch_bounds(__VA_ARGS__)))

typedef decltype(sizeof(0)) size_t;
struct uint3 { unsigned x, y, z; };
struct dim3 { unsigned x, y, z; };
extern __device__ const uint3 threadIdx, blockIdx;
extern __device__ const dim3 blockDim, gridDim;

struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(8) int2 { int x, y; };
struct alignas(16) int4 { int x, y, z, w; };
__device__ float2 make_float2(float x, float y);
__device__ float4 make_float4(float x, float y, float z, float w);

__device__ void __syncthreads();
__device__ void __syncwarp(unsigned mask = 0xffffffffu);
__device__ void __threadfence();
template <typename T> __device__ T __ldg(const T *from);
template <typename T> __device__ T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32);
template <typename T> __device__ T __shfl_down_sync(unsigned mask, T value, unsigned lanes, int width = 32);
template <typename T> __device__ T __shfl_sync(unsigned mask, T value, int lane, int width = 32);
template <typename T> __device__ T atomicAdd(T *to, T value);

__device__ void __pipeline_memcpy_async(void *to, const void *from, size_t bytes, size_t zeroed = 0);
__device__ void __pipeline_commit();
__device__ void __pipeline_wait_prior(size_t groups);

__device__ int min(int a, int b);
__device__ int max(int a, int b);
__device__ float fminf(float a, float b);
__device__ float fmaxf(float a, float b);
__device__ float fmaf(float a, float b, float c);
__device__ float expf(float x);
__device__ float __expf(float x);
__device__ float exp2f(float x);
__device__ float logf(float x);
__device__ float sqrtf(float x);
__device__ float rsqrtf(float x);
