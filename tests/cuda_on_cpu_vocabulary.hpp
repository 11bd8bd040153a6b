// CUDA's names for vectors, arithmetic, memory accesses with cache hints and atomics. Part of cuda_on_cpu.hpp.
//
// Fast functions are computed as CUDA documents their approximation (__expf by exp2f of a rounded product), so that an error
// bound that forgets the approximation shows here too; cache hints change nothing but the name.
#pragma once

// ---- vectors ---------------------------------------------------------------------------------------------------------------
#define CUDA_ON_CPU_VECTOR2(name, type, alignment)                                                                             \
    struct alignas(alignment) name { type x, y; };                                                                             \
    inline name make_##name(type x, type y) { return {x, y}; }
#define CUDA_ON_CPU_VECTOR3(name, type)                                                                                        \
    struct name { type x, y, z; };                                                                                             \
    inline name make_##name(type x, type y, type z) { return {x, y, z}; }
#define CUDA_ON_CPU_VECTOR4(name, type, alignment)                                                                             \
    struct alignas(alignment) name { type x, y, z, w; };                                                                       \
    inline name make_##name(type x, type y, type z, type w) { return {x, y, z, w}; }

CUDA_ON_CPU_VECTOR2(float2, float, 8)
CUDA_ON_CPU_VECTOR2(int2, int, 8)
CUDA_ON_CPU_VECTOR2(uint2, unsigned, 8)
CUDA_ON_CPU_VECTOR2(ushort2, unsigned short, 4)
CUDA_ON_CPU_VECTOR2(double2, double, 16)
CUDA_ON_CPU_VECTOR2(longlong2, long long, 16)
CUDA_ON_CPU_VECTOR3(float3, float)
CUDA_ON_CPU_VECTOR3(int3, int)
CUDA_ON_CPU_VECTOR3(uint3, unsigned)
CUDA_ON_CPU_VECTOR4(float4, float, 16)
CUDA_ON_CPU_VECTOR4(int4, int, 16)
CUDA_ON_CPU_VECTOR4(uint4, unsigned, 16)
CUDA_ON_CPU_VECTOR4(ushort4, unsigned short, 8)
struct dim3 { unsigned x = 1, y = 1, z = 1; };

// ---- arithmetic ------------------------------------------------------------------------------------------------------------
// min, max: floats as fminf and fmaxf do, which return the other operand of a NaN.
template <class A, class B> inline std::common_type_t<A, B> min(A a, B b)
{
    using T = std::common_type_t<A, B>;
    if constexpr (std::is_floating_point_v<T>) return std::fmin(T(a), T(b));
    else return T(b) < T(a) ? T(b) : T(a);
}
template <class A, class B> inline std::common_type_t<A, B> max(A a, B b)
{
    using T = std::common_type_t<A, B>;
    if constexpr (std::is_floating_point_v<T>) return std::fmax(T(a), T(b));
    else return T(a) < T(b) ? T(b) : T(a);
}

template <class To, class From> inline To cuda_on_cpu_bits(From from)
{
    static_assert(sizeof(To) == sizeof(From));
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}
inline int __float_as_int(float x) { return cuda_on_cpu_bits<int>(x); }
inline unsigned __float_as_uint(float x) { return cuda_on_cpu_bits<unsigned>(x); }
inline float __int_as_float(int x) { return cuda_on_cpu_bits<float>(x); }
inline float __uint_as_float(unsigned x) { return cuda_on_cpu_bits<float>(x); }

inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline float __frsqrt_rn(float x) { return static_cast<float>(1.0 / sqrt(static_cast<double>(x))); }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline double rsqrt(double x) { return 1.0 / sqrt(x); }
inline float __saturatef(float x) { return x >= 0.0f ? fminf(x, 1.0f) : 0.0f; }  // NaN gives 0
// 0 for a divisor above 2^126 with a finite dividend, as documented.
inline float __fdividef(float a, float b) { return fabsf(b) > 0x1p126f && !std::isinf(b) ? a * 0.0f : a * (1.0f / b); }

// The C library declares these names for itself, hence the macros.
inline float cuda_on_cpu_exp(float x) { return exp2f(x * 1.44269504f); }
inline float cuda_on_cpu_exp10(float x) { return exp2f(x * 3.32192809f); }
inline float cuda_on_cpu_log(float x) { return log2f(x) * 0.69314718f; }
inline float cuda_on_cpu_log10(float x) { return log2f(x) * 0.30103f; }
inline float cuda_on_cpu_pow(float x, float y) { return exp2f(y * log2f(x)); }
#define __expf(x) cuda_on_cpu_exp(x)
#define __exp10f(x) cuda_on_cpu_exp10(x)
#define __logf(x) cuda_on_cpu_log(x)
#define __log2f(x) log2f(x)
#define __log10f(x) cuda_on_cpu_log10(x)
#define __powf(x, y) cuda_on_cpu_pow(x, y)

inline int __float2int_rn(float x) { return static_cast<int>(nearbyintf(x)); }
inline int __float2int_rz(float x) { return static_cast<int>(x); }
inline float __int2float_rn(int x) { return static_cast<float>(x); }
inline unsigned __umulhi(unsigned a, unsigned b) { return static_cast<uint64_t>(a) * b >> 32; }
inline int __mulhi(int a, int b) { return static_cast<int64_t>(a) * b >> 32; }
inline int __mul24(int a, int b) { return static_cast<int>(static_cast<int64_t>(a << 8 >> 8) * (b << 8 >> 8)); }
inline unsigned __umul24(unsigned a, unsigned b) { return (a & 0xFFFFFF) * (b & 0xFFFFFF); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __clz(int x) { return x ? __builtin_clz(x) : 32; }
inline int __ffs(int x) { return __builtin_ffs(x); }

// ---- memory ----------------------------------------------------------------------------------------------------------------
template <class T> inline T __ldg(const T *p) { return *p; }
template <class T> inline T __ldca(const T *p) { return *p; }
template <class T> inline T __ldcg(const T *p) { return *p; }
template <class T> inline T __ldcs(const T *p) { return *p; }
template <class T> inline T __ldlu(const T *p) { return *p; }
template <class T> inline T __ldcv(const T *p) { return *p; }
template <class T> inline void __stwb(T *p, std::type_identity_t<T> value) { *p = value; }
template <class T> inline void __stcg(T *p, std::type_identity_t<T> value) { *p = value; }
template <class T> inline void __stcs(T *p, std::type_identity_t<T> value) { *p = value; }
template <class T> inline void __stwt(T *p, std::type_identity_t<T> value) { *p = value; }

inline void __threadfence() {}
inline void __threadfence_block() {}
template <class T> inline T atomicAdd(T *p, std::type_identity_t<T> value)
{
    T old = *p;
    while (!__atomic_compare_exchange(p, &old, &(const T &)T(old + value), false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {}
    return old;
}
inline unsigned atomicAdd(unsigned *p, unsigned value) { return __atomic_fetch_add(p, value, __ATOMIC_SEQ_CST); }
inline unsigned atomicExch(unsigned *p, unsigned value) { return __atomic_exchange_n(p, value, __ATOMIC_SEQ_CST); }
inline unsigned atomicInc(unsigned *p, unsigned limit)
{
    unsigned old = __atomic_load_n(p, __ATOMIC_SEQ_CST);
    while (!__atomic_compare_exchange_n(p, &old, old >= limit ? 0 : old + 1, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {}
    return old;
}
