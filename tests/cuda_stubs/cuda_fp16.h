// The part of cuda_fp16.h that kernels here use: fp16 as storage, converted with rounding to nearest even; arithmetic rounds after
// each operation, as the hardware's does.
#pragma once
#include "../cuda_on_cpu.hpp"

namespace cuda_on_cpu {

// Round to nearest even; NaN becomes the canonical one.
inline unsigned short half_bits(float x)
{
    const unsigned bits = __float_as_uint(x), sign = bits >> 16 & 0x8000, size = bits & 0x7FFFFFFF;
    if (size > 0x7F800000) return 0x7FFF;
    if (size >= 0x47800000) return sign | 0x7C00;  // 2^16 and more
    if (size < 0x38800000)                         // below 2^-14: the last place of 0.5 is that of a subnormal half
        return sign | (__float_as_uint(__uint_as_float(size) + 0.5f) - __float_as_uint(0.5f));
    return sign | (size - 0x38000000 + 0xFFF + (size >> 13 & 1)) >> 13;
}

inline float half_value(unsigned short bits)
{
    const unsigned sign = (bits & 0x8000u) << 16, exponent = bits >> 10 & 31, fraction = bits & 0x3FF;
    if (exponent == 31) return __uint_as_float(sign | 0x7F800000 | fraction << 13);
    if (exponent == 0) return copysignf(fraction * 0x1p-24f, __uint_as_float(sign));
    return __uint_as_float(sign | (exponent + 112) << 23 | fraction << 13);
}

}  // namespace cuda_on_cpu

struct __half {
    unsigned short bits;
    __half() = default;
    __half(float x) : bits(cuda_on_cpu::half_bits(x)) {}
    operator float() const { return cuda_on_cpu::half_value(bits); }
};
struct alignas(4) __half2 { __half x, y; };
using half = __half;
using half2 = __half2;
template <> inline constexpr bool cuda_on_cpu::moves_between_lanes<__half> = true;
template <> inline constexpr bool cuda_on_cpu::moves_between_lanes<__half2> = true;

inline float __half2float(__half x) { return x; }
inline __half __float2half(float x) { return x; }
inline __half __float2half_rn(float x) { return x; }
inline float2 __half22float2(__half2 x) { return {x.x, x.y}; }
inline __half2 __float22half2_rn(float2 x) { return {x.x, x.y}; }
inline __half2 __floats2half2_rn(float x, float y) { return {x, y}; }
inline __half2 __float2half2_rn(float x) { return {x, x}; }
inline __half2 __halves2half2(__half x, __half y) { return {x, y}; }
inline __half2 make_half2(__half x, __half y) { return {x, y}; }
inline __half __low2half(__half2 x) { return x.x; }
inline __half __high2half(__half2 x) { return x.y; }
inline float __low2float(__half2 x) { return x.x; }
inline float __high2float(__half2 x) { return x.y; }
inline unsigned short __half_as_ushort(__half x) { return x.bits; }
inline __half __ushort_as_half(unsigned short x) { return cuda_on_cpu_bits<__half>(x); }

// A float holds the exact product, and enough of a sum or a quotient for the second rounding to change nothing.
inline __half operator+(__half a, __half b) { return float(a) + float(b); }
inline __half operator-(__half a, __half b) { return float(a) - float(b); }
inline __half operator*(__half a, __half b) { return float(a) * float(b); }
inline __half operator/(__half a, __half b) { return float(a) / float(b); }
inline __half operator-(__half a) { return cuda_on_cpu_bits<__half>(static_cast<unsigned short>(a.bits ^ 0x8000)); }
inline __half &operator+=(__half &a, __half b) { return a = a + b; }
inline __half &operator-=(__half &a, __half b) { return a = a - b; }
inline __half &operator*=(__half &a, __half b) { return a = a * b; }
inline bool operator<(__half a, __half b) { return float(a) < float(b); }
inline bool operator>(__half a, __half b) { return float(a) > float(b); }
inline bool operator==(__half a, __half b) { return float(a) == float(b); }
inline __half __hadd(__half a, __half b) { return a + b; }
inline __half __hsub(__half a, __half b) { return a - b; }
inline __half __hmul(__half a, __half b) { return a * b; }
inline __half __hmax(__half a, __half b) { return fmaxf(a, b); }
inline __half __hmin(__half a, __half b) { return fminf(a, b); }
inline __half2 __hadd2(__half2 a, __half2 b) { return {a.x + b.x, a.y + b.y}; }
inline __half2 __hmul2(__half2 a, __half2 b) { return {a.x * b.x, a.y * b.y}; }
inline __half2 __hmax2(__half2 a, __half2 b) { return {__hmax(a.x, b.x), __hmax(a.y, b.y)}; }
