// CUDA kernels on a CPU, for tests: the same source, compiled by g++ with -std=c++20 and this header ahead of it.
//
// Every CUDA thread of a block is a fibre of one OS thread. Fibres switch at barriers and warp operations only; who runs first
// between two of them is drawn from a seed, so a missing barrier gives a wrong answer or a NaN, the same one every time. Made for
// -fsanitize=address,undefined, and for -fsanitize=thread, which takes each fibre for a thread and finds races whatever the order.
//
// What bites: shared memory starts as NaN in each block, and has red zones under the address sanitizer; buffers have their exact
// size; a misaligned float2/float4 stops the undefined-behaviour sanitizer; the target of an asynchronous copy is NaN until the
// thread that issued it waits for it; threads of a block that reach different barriers, or leave before one, are an error.
// Warp operations (shuffles, votes, __syncwarp): lanes named in a mask that reach another operation, a barrier or the end are an
// error, and so are a mask that leaves out its caller or names lanes the block does not have (the last warp of a block whose size
// is no multiple of 32) and a shuffle from a lane outside the mask. As CUDA has it, of these only __syncwarp orders memory.
//
// Not covered: blocks run one after another, so no race between blocks is seen, and a block that waits for another hangs;
// no memory model (fences do nothing), no warps in lockstep (__activemask, __match, __reduce are left out), no inline PTX, no
// textures, constant or local memory, no cooperative groups, cluster launches or tensor cores; no limits on registers, shared
// memory or launch geometry; bank conflicts and speed; nvcc's own rounding (contraction into FMA is g++'s choice here; fast
// functions such as __expf round as their definition does, not to the last bit of the hardware's). The two sides of a branch that
// shuffle inside one and the same function look like one operation. `extern __shared__ T name[];` has to be rewritten as
// CUDA_ON_CPU_DYNAMIC(T, name); cpu_run.py does so.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <type_traits>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

// ---- vocabulary ----------------------------------------------------------------------------------------------------------
#define __global__
#define __device__
#define __host__
#define __constant__ static const
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))

// A section per kernel, so that its shared memory can be filled with NaN before each block.
#ifndef CUDA_ON_CPU_SECTION
#define CUDA_ON_CPU_SECTION "cuda_shared_0"
#endif
#ifndef __shared__
#define __shared__ static __attribute__((section(CUDA_ON_CPU_SECTION)))
#endif
#define CUDA_ON_CPU_DYNAMIC(type, name) type *const name = static_cast<type *>(cuda_on_cpu::dynamic_shared)

#include "cuda_on_cpu_vocabulary.hpp"

namespace cuda_on_cpu {

// ---- one CUDA thread -------------------------------------------------------------------------------------------------------
struct Copy { void *to; unsigned char data[16]; size_t size; };

// What threads of one block after another run on; `identity` is the thread sanitizer's.
struct Fibre { void *stack, *identity; };

enum class State { runnable, at_barrier, at_warp_operation, finished };
enum class WarpOperation { sync, shuffle, vote };

// What a lane brings to a warp operation; `value` is what it gets when all have come.
struct WarpCall {
    WarpOperation operation{};
    unsigned mask = 0, source = 0;  // source: the lane whose value a shuffle asks for
    uint64_t value = 0;
};

struct Thread {
    uint3 index{};
    unsigned number = 0;                       // in its block; 32 in a row are a warp
    std::vector<std::vector<Copy>> groups{1};  // asynchronous copies: committed groups, then the open one
    State state = State::runnable;
    int line = 0;  // where it waits
    unsigned barriers_passed = 0;
    WarpCall call{};
    const Fibre *fibre = nullptr;
    void *stack_pointer = nullptr, *fake_stack = nullptr;
};

inline dim3 grid, block;
inline uint3 block_index;
inline void *dynamic_shared = nullptr;
inline Thread *current = nullptr;

[[noreturn]] inline void fail(const char *what, int line)
{
    fprintf(stderr, "cuda_on_cpu: %s, line %d, block (%u, %u, %u), thread %u\n", what, line, block_index.x, block_index.y,
            block_index.z, current ? current->index.x : 0);
    fflush(stderr);
    _Exit(3);
}

// One launch: a kernel bound to its arguments.
struct Kernel {
    void (*call)(void *const *pointers, const int *scalars);
    unsigned char *shared_begin, *shared_end;
};
struct Launch { const Kernel *kernel; void *const *pointers; const int *scalars; size_t dynamic_bytes; uint64_t seed; };

// The red zones between shared variables are written too, which is harmless: what is forbidden stands in the shadow memory.
__attribute__((no_sanitize("address", "undefined"), noinline)) inline void fill_with_nan(unsigned char *begin, unsigned char *end)
{
    for (volatile unsigned char *p = begin; p < end; ++p) *p = 0xFF;
}

inline void start_block(const Launch &launch, unsigned number)
{
    block_index = {number % grid.x, number / grid.x % grid.y, number / grid.x / grid.y};
    fill_with_nan(launch.kernel->shared_begin, launch.kernel->shared_end);
    if (launch.dynamic_bytes) memset(dynamic_shared, 0xFF, launch.dynamic_bytes);
}

inline uint64_t next_random(uint64_t &state)  // splitmix64
{
    uint64_t z = state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

inline std::vector<unsigned> shuffled(unsigned n, uint64_t &random)
{
    std::vector<unsigned> order(n);
    for (unsigned i = 0; i < n; ++i) {
        const unsigned j = next_random(random) % (i + 1);
        order[i] = order[j];
        order[j] = i;
    }
    return order;
}

// ---- fibres ----------------------------------------------------------------------------------------------------------------
inline constexpr size_t stack_bytes = 128 * 1024;
inline const Launch *running = nullptr;
inline void *scheduler_pointer = nullptr, *scheduler_fake_stack = nullptr;
inline const void *scheduler_stack = nullptr;
inline size_t scheduler_stack_bytes = 0;

void fibre_body();

#if defined(__x86_64__)
extern "C" void cuda_on_cpu_switch(void **save, void *load);
asm(R"(
.pushsection .text
.globl cuda_on_cpu_switch
.type cuda_on_cpu_switch, @function
cuda_on_cpu_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.popsection
)");
inline void switch_stack(void **save, void *load) { cuda_on_cpu_switch(save, load); }
inline void *new_stack_pointer(void *stack)
{
    void **top = reinterpret_cast<void **>(static_cast<char *>(stack) + stack_bytes) - 8;
    for (int i = 0; i < 8; ++i) top[i] = nullptr;
    top[6] = reinterpret_cast<void *>(&fibre_body);  // six saved registers below the return address
    return top;
}
#else
inline void switch_stack(void **save, void *load)
{
    if (!*save) *save = new ucontext_t;
    swapcontext(static_cast<ucontext_t *>(*save), static_cast<ucontext_t *>(load));
}
inline void *new_stack_pointer(void *stack)
{
    ucontext_t *context = new ucontext_t;  // never freed: a test process is short
    getcontext(context);
    context->uc_stack.ss_sp = stack;
    context->uc_stack.ss_size = stack_bytes;
    makecontext(context, fibre_body, 0);
    return context;
}
#endif

// ---- what the sanitizers have to know of fibres ----
// Address: which stack is in use. Thread: which thread runs, and what orders threads: the start and the end of a block, and its
// barriers (two in turn, since a thread may reach the next one before another has left this one). Switching orders nothing.
#if defined(__SANITIZE_ADDRESS__)
inline void switching_to(void **fake_stack, const void *stack, size_t bytes) { __sanitizer_start_switch_fiber(fake_stack, stack, bytes); }
inline void switched(void *fake_stack, const void **stack, size_t *bytes) { __sanitizer_finish_switch_fiber(fake_stack, stack, bytes); }
#else
inline void switching_to(void **, const void *, size_t) {}
inline void switched(void *, const void **, size_t *) {}
#endif
#if defined(__SANITIZE_THREAD__)
#define CUDA_ON_CPU_HIDDEN __attribute__((no_sanitize("thread"), noinline))
inline void *scheduler_identity = nullptr;
inline void *new_identity() { return __tsan_create_fiber(0); }
inline void become(void *identity) { __tsan_switch_to_fiber(identity, __tsan_switch_to_fiber_no_sync); }
inline void release(void *event) { __tsan_release(event); }
inline void acquire(void *event) { __tsan_acquire(event); }
#else
#define CUDA_ON_CPU_HIDDEN
inline void *scheduler_identity = nullptr;
inline void *new_identity() { return nullptr; }
inline void become(void *) {}
inline void release(void *) {}
inline void acquire(void *) {}
#endif
inline char block_start, block_end, barriers[2];

CUDA_ON_CPU_HIDDEN inline void enter_fibre(Thread &thread)
{
    current = &thread;
    switching_to(&scheduler_fake_stack, thread.fibre->stack, stack_bytes);
    become(thread.fibre->identity);
    switch_stack(&scheduler_pointer, thread.stack_pointer);
    switched(scheduler_fake_stack, nullptr, nullptr);
}

// gone: this fibre never comes back.
CUDA_ON_CPU_HIDDEN inline void leave_fibre(bool gone)
{
    Thread &thread = *current;
    switching_to(gone ? nullptr : &thread.fake_stack, scheduler_stack, scheduler_stack_bytes);
    become(scheduler_identity);
    switch_stack(&thread.stack_pointer, scheduler_pointer);
    switched(thread.fake_stack, nullptr, nullptr);
}

inline void fibre_body()
{
    switched(nullptr, &scheduler_stack, &scheduler_stack_bytes);
    acquire(&block_start);
    running->kernel->call(running->pointers, running->scalars);
    current->state = State::finished;
    release(&block_end);
    leave_fibre(true);
}

inline void wait_at_barrier(int line)
{
    Thread &thread = *current;
    void *const barrier = &barriers[thread.barriers_passed++ % 2];
    thread.state = State::at_barrier;
    thread.line = line;
    release(barrier);
    leave_fibre(false);
    acquire(barrier);
}

// Every thread of the block has run to a barrier or to the end: it has to be the same one. Whether it was the end.
CUDA_ON_CPU_HIDDEN inline bool pass_barrier(Thread *threads, unsigned count)
{
    const bool finished = threads[0].state == State::finished;
    for (unsigned t = 1; t < count; ++t) {
        current = &threads[t];
        if ((current->state == State::finished) != finished)
            fail("barrier divergence: some threads have left the kernel, others wait at a barrier",
                 finished ? current->line : threads[0].line);
        if (!finished && current->line != threads[0].line)
            fail("barrier divergence: the threads of a block wait at different barriers", current->line);
    }
    for (unsigned t = 0; t < count && !finished; ++t) threads[t].state = State::runnable;
    return finished;
}

// ---- warps -----------------------------------------------------------------------------------------------------------------
// What orders the memory of the lanes of a __syncwarp: two events in turn, as for barriers, per warp and lowest lane of the mask.
inline char warp_events[32][32][2];
inline unsigned warp_syncs[32][32];

inline unsigned lane_of(const Thread &thread) { return thread.number % 32; }
inline unsigned lowest_lane(unsigned mask) { return __builtin_ctz(mask); }

inline void check_mask(unsigned mask, int line)
{
    const unsigned count = block.x * block.y * block.z, first = current->number / 32 * 32;
    if (!(mask >> lane_of(*current) & 1)) fail("a warp operation with a mask that leaves out its caller", line);
    if (first + 32 > count && mask >> (count - first)) fail("a warp operation's mask names lanes that the block does not have", line);
}

// Wait until every lane of the mask has come to the same operation; what the lane gets there.
CUDA_ON_CPU_HIDDEN inline uint64_t meet(WarpOperation operation, unsigned mask, unsigned source, uint64_t value, int line)
{
    check_mask(mask, line);
    Thread &thread = *current;
    thread.call = {operation, mask, source, value};
    thread.line = line;
    thread.state = State::at_warp_operation;
    leave_fibre(false);
    return thread.call.value;
}

CUDA_ON_CPU_HIDDEN inline void *warp_event(unsigned mask)
{
    const unsigned warp = current->number / 32, lowest = lowest_lane(mask);
    return &warp_events[warp][lowest][warp_syncs[warp][lowest] % 2];
}

CUDA_ON_CPU_HIDDEN inline bool together(const Thread &a, const Thread &b)
{
    return b.state == State::at_warp_operation && a.line == b.line && a.call.mask == b.call.mask &&
           a.call.operation == b.call.operation;
}

// Hand out what a complete operation yields; `lanes`: the warp's threads, `first`: one that takes part.
CUDA_ON_CPU_HIDDEN inline void finish_warp_operation(Thread *lanes, const Thread &first)
{
    const WarpCall call = first.call;
    uint64_t values[32] = {}, votes = 0;
    for (unsigned lane = 0; lane < 32; ++lane)
        if (call.mask >> lane & 1) {
            values[lane] = lanes[lane].call.value;
            votes |= uint64_t(values[lane] != 0) << lane;
        }
    for (unsigned lane = 0; lane < 32; ++lane)
        if (call.mask >> lane & 1) {
            current = &lanes[lane];
            if (call.operation == WarpOperation::shuffle && !(call.mask >> current->call.source & 1))
                fail("a shuffle reads a lane outside its mask", current->line);
            current->call.value = call.operation == WarpOperation::shuffle ? values[current->call.source] : votes;
            current->state = State::runnable;
        }
    if (call.operation == WarpOperation::sync) ++warp_syncs[lanes[0].number / 32][lowest_lane(call.mask)];
}

// Let every warp operation happen that all lanes of its mask have come to; how many did.
CUDA_ON_CPU_HIDDEN inline unsigned finish_warp_operations(Thread *threads, unsigned count)
{
    unsigned done = 0;
    for (unsigned t = 0; t < count; ++t) {
        if (threads[t].state != State::at_warp_operation) continue;
        Thread *const lanes = threads + t / 32 * 32;
        bool complete = true;
        for (unsigned lane = 0; lane < 32 && complete; ++lane)
            complete = !(threads[t].call.mask >> lane & 1) || together(threads[t], lanes[lane]);
        if (!complete) continue;
        finish_warp_operation(lanes, threads[t]);
        ++done;
    }
    return done;
}

// Nothing can go on: name the first lane that waits for another in vain, if there is one.
CUDA_ON_CPU_HIDDEN inline void refuse_warp_divergence(Thread *threads, unsigned count)
{
    for (unsigned t = 0; t < count; ++t) {
        if (threads[t].state != State::at_warp_operation) continue;
        for (unsigned lane = 0; lane < 32; ++lane) {
            const Thread &other = threads[t / 32 * 32 + lane];
            if (!(threads[t].call.mask >> lane & 1) || together(threads[t], other)) continue;
            current = &threads[t];
            fail(other.state == State::finished     ? "warp divergence: a lane that the mask names has left the kernel"
                 : other.state == State::at_barrier ? "warp divergence: a lane that the mask names waits at a barrier"
                                                    : "warp divergence: lanes that the mask names wait at different operations",
                 threads[t].line);
        }
    }
}

// ---- a block ---------------------------------------------------------------------------------------------------------------
// Run the threads that can run, in this order; not those of the warps in `held`, so that others may get ahead. Those not run.
CUDA_ON_CPU_HIDDEN inline unsigned run_threads(Thread *threads, const unsigned *order, unsigned count, unsigned held)
{
    unsigned left = 0;
    for (unsigned i = 0; i < count; ++i) {
        Thread &thread = threads[order[i]];
        if (thread.state != State::runnable) continue;
        if (held >> (thread.number / 32) & 1)
            ++left;
        else
            enter_fibre(thread);
    }
    return left;
}

inline void run_block(std::vector<Fibre> &fibres, unsigned count, uint64_t &random)
{
    std::vector<Thread> threads(count);
    for (unsigned t = 0; t < count; ++t) {
        threads[t].index = {t % block.x, t / block.x % block.y, t / block.x / block.y};
        threads[t].number = t;
        threads[t].fibre = &fibres[t];
        threads[t].stack_pointer = new_stack_pointer(fibres[t].stack);
    }
    release(&block_start);
    unsigned held = 0;
    for (bool finished = false; !finished;) {
        const unsigned left = run_threads(threads.data(), shuffled(count, random).data(), count, held);
        const unsigned met = finish_warp_operations(threads.data(), count);
        held = met ? next_random(random) & next_random(random) : 0;
        if (met || left) continue;
        refuse_warp_divergence(threads.data(), count);
        finished = pass_barrier(threads.data(), count);
    }
    acquire(&block_end);
}

inline void run_grid(const Launch &launch)
{
    static std::vector<Fibre> fibres;
    const unsigned count = block.x * block.y * block.z, blocks = grid.x * grid.y * grid.z;
    while (fibres.size() < count) fibres.push_back({aligned_alloc(4096, stack_bytes), new_identity()});
    running = &launch;
#if defined(__SANITIZE_THREAD__)
    scheduler_identity = __tsan_get_current_fiber();
#endif
    uint64_t random = launch.seed;
    for (unsigned b : shuffled(blocks, random)) {
        start_block(launch, b);
        run_block(fibres, count, random);
    }
}

// A buffer of exactly this many bytes, aligned as the CUDA driver aligns: one byte past the end is an error.
inline void *allocate(size_t bytes)
{
    void *memory = nullptr;
    if (posix_memalign(&memory, 256, bytes ? bytes : 1)) fail("out of memory", 0);
    return memory;
}

}  // namespace cuda_on_cpu

#define threadIdx (cuda_on_cpu::current->index)
#define blockIdx (cuda_on_cpu::block_index)
#define blockDim (cuda_on_cpu::block)
#define gridDim (cuda_on_cpu::grid)
inline constexpr int warpSize = 32;

inline void __syncthreads(int line = __builtin_LINE()) { cuda_on_cpu::wait_at_barrier(line); }

#include "cuda_on_cpu_warp.hpp"

// ---- cuda_pipeline_primitives.h ----------------------------------------------------------------------------------------------
// The source is read when the copy is issued, so that the report of an overrun names that line; the data arrive at the wait.
inline void __pipeline_memcpy_async(void *to, const void *from, size_t size, size_t zfill = 0, int line = __builtin_LINE())
{
    using namespace cuda_on_cpu;
    if (size != 4 && size != 8 && size != 16) fail("an asynchronous copy moves 4, 8 or 16 bytes", line);
    if (zfill > size) fail("an asynchronous copy fills more than it moves", line);
    if (reinterpret_cast<uintptr_t>(to) % size) fail("misaligned target of an asynchronous copy", line);
    if (reinterpret_cast<uintptr_t>(from) % size) fail("misaligned source of an asynchronous copy", line);
    Copy copy{to, {}, size};
    if (zfill < size) memcpy(copy.data, from, size - zfill);
    memset(to, 0xFF, size);
    current->groups.back().push_back(copy);
}

inline void __pipeline_commit() { cuda_on_cpu::current->groups.emplace_back(); }

inline void __pipeline_wait_prior(size_t newest)
{
    auto &groups = cuda_on_cpu::current->groups;
    while (groups.size() - 1 > newest) {
        for (const cuda_on_cpu::Copy &copy : groups.front()) memcpy(copy.to, copy.data, copy.size);
        groups.erase(groups.begin());
    }
}
