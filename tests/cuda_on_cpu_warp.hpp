// Shuffles, votes and __syncwarp. Part of cuda_on_cpu.hpp, which says what they check.
#pragma once

namespace cuda_on_cpu {

// What a shuffle moves: CUDA's overloads are for these, and for the 16-bit floats (see cuda_fp16.h, cuda_bf16.h).
template <class T> inline constexpr bool moves_between_lanes = std::is_arithmetic_v<T> && (sizeof(T) == 4 || sizeof(T) == 8);

template <class T> inline T shuffle(unsigned mask, T value, unsigned source, int line)
{
    static_assert(moves_between_lanes<T>, "a shuffle moves 32- and 64-bit numbers and 16-bit floats");
    uint64_t word = 0;
    memcpy(&word, &value, sizeof value);
    word = meet(WarpOperation::shuffle, mask, source, word, line);
    memcpy(&value, &word, sizeof value);
    return value;
}

inline unsigned segment_start(int width, int line)
{
    if (width < 1 || width > 32 || width & (width - 1)) fail("a shuffle's width is 1, 2, 4, 8, 16 or 32", line);
    return lane_of(*current) & ~(width - 1u);
}

}  // namespace cuda_on_cpu

template <class T> inline T __shfl_sync(unsigned mask, T value, int lane, int width = 32, int line = __builtin_LINE())
{
    const unsigned start = cuda_on_cpu::segment_start(width, line);
    return cuda_on_cpu::shuffle(mask, value, start + (lane & (width - 1)), line);
}

// Beyond the segment, a lane gets its own value back.
template <class T> inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, int line = __builtin_LINE())
{
    const unsigned start = cuda_on_cpu::segment_start(width, line), lane = cuda_on_cpu::lane_of(*cuda_on_cpu::current);
    return cuda_on_cpu::shuffle(mask, value, delta > lane - start ? lane : lane - delta, line);
}

template <class T> inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, int line = __builtin_LINE())
{
    const unsigned start = cuda_on_cpu::segment_start(width, line), lane = cuda_on_cpu::lane_of(*cuda_on_cpu::current);
    return cuda_on_cpu::shuffle(mask, value, delta >= start + width - lane ? lane : lane + delta, line);
}

// Earlier segments may be read, later ones not.
template <class T> inline T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32, int line = __builtin_LINE())
{
    const unsigned start = cuda_on_cpu::segment_start(width, line), lane = cuda_on_cpu::lane_of(*cuda_on_cpu::current);
    const unsigned source = lane ^ static_cast<unsigned>(lanes);
    return cuda_on_cpu::shuffle(mask, value, source >= start + width ? lane : source, line);
}

inline unsigned __ballot_sync(unsigned mask, int predicate, int line = __builtin_LINE())
{
    return static_cast<unsigned>(cuda_on_cpu::meet(cuda_on_cpu::WarpOperation::vote, mask, 0, predicate != 0, line));
}
inline int __any_sync(unsigned mask, int predicate, int line = __builtin_LINE()) { return __ballot_sync(mask, predicate, line) != 0; }
inline int __all_sync(unsigned mask, int predicate, int line = __builtin_LINE()) { return __ballot_sync(mask, predicate, line) == mask; }

inline void __syncwarp(unsigned mask = 0xFFFFFFFFu, int line = __builtin_LINE())
{
    void *const event = cuda_on_cpu::warp_event(mask);
    cuda_on_cpu::release(event);
    cuda_on_cpu::meet(cuda_on_cpu::WarpOperation::sync, mask, 0, 0, line);
    cuda_on_cpu::acquire(event);
}

#undef __builtin_assume  // g++ has none; here a false assumption is an error
#define __builtin_assume(condition) ((condition) ? (void)0 : cuda_on_cpu::fail("a false assumption: " #condition, __LINE__))
