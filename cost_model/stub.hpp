// What a rendered kernel needs of CUDA to be parsed, and no more: declarations without bodies. Read by libclang only.
#pragma once

#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __host__ __attribute__((host))
#define __shared__ __attribute__((shared))
#define __constant__ __attribute__((constant))
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...) __attribute__((launch_bounds(__VA_ARGS__)))
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __grid_constant__
#define INFINITY __builtin_huge_valf()
#define NAN __builtin_nanf("")
#define FLT_MAX __FLT_MAX__
#define FLT_MIN __FLT_MIN__

typedef decltype(sizeof(0)) size_t;
typedef int int32_t;
typedef unsigned uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
typedef unsigned short uint16_t;
typedef unsigned char uint8_t;
typedef size_t uintptr_t;
struct uint3 { unsigned x, y, z; };
struct dim3 { unsigned x, y, z; };
extern __device__ const uint3 threadIdx, blockIdx;
extern __device__ const dim3 blockDim, gridDim;
static const int warpSize = 32;

// Vectors
struct alignas(8) float2 { float x, y; };
struct float3 { float x, y, z; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(8) int2 { int x, y; };
struct alignas(16) int4 { int x, y, z, w; };
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(4) ushort2 { unsigned short x, y; };
struct alignas(8) ushort4 { unsigned short x, y, z, w; };
struct alignas(16) double2 { double x, y; };
struct alignas(16) longlong2 { long long x, y; };
__device__ float2 make_float2(float x, float y);
__device__ float3 make_float3(float x, float y, float z);
__device__ float4 make_float4(float x, float y, float z, float w);
__device__ int2 make_int2(int x, int y);
__device__ int4 make_int4(int x, int y, int z, int w);
__device__ uint2 make_uint2(unsigned x, unsigned y);
__device__ uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w);
__device__ ushort2 make_ushort2(unsigned short x, unsigned short y);
__device__ ushort4 make_ushort4(unsigned short x, unsigned short y, unsigned short z, unsigned short w);
__device__ double2 make_double2(double x, double y);

// 16-bit floats
struct __half {
    unsigned short bits;
    __half() = default;
    __device__ __half(float x);
    __device__ operator float() const;
};
struct __nv_bfloat16 {
    unsigned short bits;
    __nv_bfloat16() = default;
    __device__ __nv_bfloat16(float x);
    __device__ operator float() const;
};
struct alignas(4) __half2 { __half x, y; };
struct alignas(4) __nv_bfloat162 { __nv_bfloat16 x, y; };
typedef __half half;
typedef __half2 half2;
typedef __nv_bfloat16 nv_bfloat16;
typedef __nv_bfloat162 nv_bfloat162;
__device__ __half operator+(__half a, __half b);
__device__ __half operator-(__half a, __half b);
__device__ __half operator*(__half a, __half b);
__device__ __half operator/(__half a, __half b);
__device__ __half operator-(__half a);
__device__ __half &operator+=(__half &a, __half b);
__device__ __half &operator-=(__half &a, __half b);
__device__ __half &operator*=(__half &a, __half b);
__device__ bool operator<(__half a, __half b);
__device__ bool operator>(__half a, __half b);
__device__ bool operator==(__half a, __half b);
__device__ __nv_bfloat16 operator+(__nv_bfloat16 a, __nv_bfloat16 b);
__device__ __nv_bfloat16 operator-(__nv_bfloat16 a, __nv_bfloat16 b);
__device__ __nv_bfloat16 operator*(__nv_bfloat16 a, __nv_bfloat16 b);
__device__ __nv_bfloat16 operator/(__nv_bfloat16 a, __nv_bfloat16 b);
__device__ __nv_bfloat16 operator-(__nv_bfloat16 a);
__device__ __nv_bfloat16 &operator+=(__nv_bfloat16 &a, __nv_bfloat16 b);
__device__ __nv_bfloat16 &operator-=(__nv_bfloat16 &a, __nv_bfloat16 b);
__device__ __nv_bfloat16 &operator*=(__nv_bfloat16 &a, __nv_bfloat16 b);
__device__ bool operator<(__nv_bfloat16 a, __nv_bfloat16 b);
__device__ bool operator>(__nv_bfloat16 a, __nv_bfloat16 b);
__device__ bool operator==(__nv_bfloat16 a, __nv_bfloat16 b);
__device__ float __half2float(__half x);
__device__ __half __float2half(float x);
__device__ __half __float2half_rn(float x);
__device__ float2 __half22float2(__half2 x);
__device__ __half2 __float22half2_rn(float2 x);
__device__ __half2 __floats2half2_rn(float x, float y);
__device__ __half2 __float2half2_rn(float x);
__device__ __half2 __halves2half2(__half x, __half y);
__device__ __half2 make_half2(__half x, __half y);
__device__ __half __low2half(__half2 x);
__device__ __half __high2half(__half2 x);
__device__ float __low2float(__half2 x);
__device__ float __high2float(__half2 x);
__device__ unsigned short __half_as_ushort(__half x);
__device__ __half __ushort_as_half(unsigned short x);
__device__ float __bfloat162float(__nv_bfloat16 x);
__device__ __nv_bfloat16 __float2bfloat16(float x);
__device__ __nv_bfloat16 __float2bfloat16_rn(float x);
__device__ float2 __bfloat1622float2(__nv_bfloat162 x);
__device__ __nv_bfloat162 __float22bfloat162_rn(float2 x);
__device__ __nv_bfloat162 __floats2bfloat162_rn(float x, float y);
__device__ __nv_bfloat162 __float2bfloat162_rn(float x);
__device__ __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 x, __nv_bfloat16 y);
__device__ __nv_bfloat162 make_bfloat162(__nv_bfloat16 x, __nv_bfloat16 y);
__device__ __nv_bfloat16 __low2bfloat16(__nv_bfloat162 x);
__device__ __nv_bfloat16 __high2bfloat16(__nv_bfloat162 x);
__device__ float __low2float(__nv_bfloat162 x);
__device__ float __high2float(__nv_bfloat162 x);
__device__ unsigned short __bfloat16_as_ushort(__nv_bfloat16 x);
__device__ __nv_bfloat16 __ushort_as_bfloat16(unsigned short x);
template <typename T> __device__ T __hadd(T a, T b);
template <typename T> __device__ T __hsub(T a, T b);
template <typename T> __device__ T __hmul(T a, T b);
template <typename T> __device__ T __hmax(T a, T b);
template <typename T> __device__ T __hmin(T a, T b);
template <typename T> __device__ T __hadd2(T a, T b);
template <typename T> __device__ T __hmul2(T a, T b);
template <typename T> __device__ T __hmax2(T a, T b);

// Threads of a block, lanes of a warp
__device__ void __syncthreads();
__device__ void __syncwarp(unsigned mask = 0xffffffffu);
__device__ void __threadfence();
__device__ void __threadfence_block();
template <typename T> __device__ T __shfl_sync(unsigned mask, T value, int lane, int width = 32);
template <typename T> __device__ T __shfl_up_sync(unsigned mask, T value, unsigned lanes, int width = 32);
template <typename T> __device__ T __shfl_down_sync(unsigned mask, T value, unsigned lanes, int width = 32);
template <typename T> __device__ T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32);
__device__ unsigned __ballot_sync(unsigned mask, int predicate);
__device__ int __any_sync(unsigned mask, int predicate);
__device__ int __all_sync(unsigned mask, int predicate);
template <typename T> __device__ T atomicAdd(T *to, T value);
__device__ unsigned atomicExch(unsigned *to, unsigned value);
__device__ unsigned atomicInc(unsigned *to, unsigned limit);

// Memory. Stores return what they store here, so that its size is known where they are called.
template <typename T> struct exactly { typedef T type; };
template <typename T> __device__ T __ldg(const T *from);
template <typename T> __device__ T __ldca(const T *from);
template <typename T> __device__ T __ldcg(const T *from);
template <typename T> __device__ T __ldcs(const T *from);
template <typename T> __device__ T __ldlu(const T *from);
template <typename T> __device__ T __ldcv(const T *from);
template <typename T> __device__ T __stwb(T *to, typename exactly<T>::type value);
template <typename T> __device__ T __stcg(T *to, typename exactly<T>::type value);
template <typename T> __device__ T __stcs(T *to, typename exactly<T>::type value);
template <typename T> __device__ T __stwt(T *to, typename exactly<T>::type value);
__device__ void __pipeline_memcpy_async(void *to, const void *from, size_t bytes, size_t zeroed = 0);
__device__ void __pipeline_commit();
__device__ void __pipeline_wait_prior(size_t groups);

// Arithmetic
__device__ int min(int a, int b);
__device__ unsigned min(unsigned a, unsigned b);
__device__ long long min(long long a, long long b);
__device__ float min(float a, float b);
__device__ int max(int a, int b);
__device__ unsigned max(unsigned a, unsigned b);
__device__ long long max(long long a, long long b);
__device__ float max(float a, float b);
__device__ int abs(int x);
__device__ float fminf(float a, float b);
__device__ float fmaxf(float a, float b);
__device__ float fabsf(float x);
__device__ float copysignf(float size, float sign);
__device__ float floorf(float x);
__device__ float ceilf(float x);
__device__ float fmaf(float a, float b, float c);
__device__ float __fmaf_rn(float a, float b, float c);
__device__ float __fadd_rn(float a, float b);
__device__ float __fsub_rn(float a, float b);
__device__ float __fmul_rn(float a, float b);
__device__ float __fdiv_rn(float a, float b);
__device__ float __fdividef(float a, float b);
__device__ float __frcp_rn(float x);
__device__ float __fsqrt_rn(float x);
__device__ float __frsqrt_rn(float x);
__device__ float __saturatef(float x);
__device__ float expf(float x);
__device__ float exp2f(float x);
__device__ float expm1f(float x);
__device__ float logf(float x);
__device__ float log2f(float x);
__device__ float log1pf(float x);
__device__ float powf(float x, float y);
__device__ float tanhf(float x);
__device__ float erff(float x);
__device__ float sqrtf(float x);
__device__ float rsqrtf(float x);
__device__ float __expf(float x);
__device__ float __exp10f(float x);
__device__ float __logf(float x);
__device__ float __log2f(float x);
__device__ float __log10f(float x);
__device__ float __powf(float x, float y);
__device__ int __float_as_int(float x);
__device__ unsigned __float_as_uint(float x);
__device__ float __int_as_float(int x);
__device__ float __uint_as_float(unsigned x);
__device__ int __float2int_rn(float x);
__device__ int __float2int_rz(float x);
__device__ float __int2float_rn(int x);
__device__ bool isnan(float x);
__device__ bool isinf(float x);
__device__ bool isfinite(float x);
__device__ int __mulhi(int a, int b);
__device__ unsigned __umulhi(unsigned a, unsigned b);
__device__ int __mul24(int a, int b);
__device__ unsigned __umul24(unsigned a, unsigned b);
__device__ int __popc(unsigned x);
__device__ int __clz(int x);
__device__ int __ffs(int x);
