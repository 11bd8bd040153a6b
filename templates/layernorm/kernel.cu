// Layer normalisation: Y = (X - mean) / sqrt(variance + 1e-5) * weight + bias for each row of X. X and Y are M x N, row-major,
// weight and bias have N elements; any M, N >= 1. The variance is the mean squared deviation. Arithmetic in fp32.
//
// THREADS_ROW threads share a row: its vectors of WIDTH elements go to them in turn. A thread block takes BLOCK_M rows at a
// time, ROUNDS times. Sums of squares are of deviations from a mean, so that a large mean costs no digits of the variance.

// Slots: one knob a line, with its default. The `#if`s below choose among paths by these alone.
#define DTYPE 0             // 0: float, 1: half, 2: bfloat16
#define THREADS_ROW 256     // threads that share a row
#define BLOCK_M 1           // rows per thread block at a time
#define WIDTH 4             // elements per access to global memory
#define PEEL 0              // rows need not be aligned: vectors that reach over an end go element by element
#define STORAGE 2           // where a row is kept between the passes, 0: nowhere, 1: shared memory, 2: registers
#define VECTORS 4           // vectors of a row that a thread keeps, at most
#define ASYNC_COPY 0        // copy rows to shared memory in the background
#define DYNAMIC_SMEM 0      // shared memory sized at launch
#define PARAMETERS 0        // weight and bias are loaded, 0: where they are needed, 1: before the statistics, 2: once
#define READ_ONLY 0         // load through the read-only cache
#define STREAM_IN 0         // X leaves the caches first
#define STREAM_OUT 0        // Y leaves the caches first
#define ONE_PASS 0          // mean and variance together, by merging those of parts
#define SHUFFLE 1           // combine what the lanes of a warp hold without shared memory
#define ROUNDS 1            // rows that a thread works on, one after another
#define CONTIGUOUS 0        // a block's rows are neighbours
#define STAGES 1            // rows in flight
#define UNROLL 4            // vectors per iteration of the loops over a row
#define MIN_BLOCKS 1        // resident blocks to leave registers for

#if DTYPE == 1
#include <cuda_fp16.h>
#elif DTYPE == 2
#include <cuda_bf16.h>
#endif
#if ASYNC_COPY
#include <cuda_pipeline_primitives.h>
#endif

constexpr float EPSILON = 1e-5f;
constexpr int THREADS = BLOCK_M * THREADS_ROW;
constexpr int STEP = THREADS_ROW * WIDTH;  // elements from one vector of a thread to its next
#if SHUFFLE && THREADS_ROW > 32
constexpr int LANES_ROW = 32;
constexpr int PARTS_ROW = THREADS_ROW / 32;  // warps that share a row
#elif SHUFFLE
constexpr int LANES_ROW = THREADS_ROW;
#else
constexpr int PARTS_ROW = THREADS_ROW;
#endif

// What one access moves.
#if DTYPE == 0
using Element = float;
#if WIDTH == 4
using Vector = float4;
#elif WIDTH == 2
using Vector = float2;
#else
using Vector = float;
#endif
#else
#if DTYPE == 1
using Element = __half;
#else
using Element = __nv_bfloat16;
#endif
#if WIDTH == 8
using Vector = uint4;
#elif WIDTH == 4
using Vector = uint2;
#elif WIDTH == 2
using Vector = unsigned;
#else
using Vector = unsigned short;
#endif
#endif

__device__ __forceinline__ void unpack(float (&to)[WIDTH], Vector from)
{
#if DTYPE == 0
    *reinterpret_cast<Vector *>(to) = from;
#else
    const Element *const elements = reinterpret_cast<const Element *>(&from);
#pragma unroll
    for (int e = 0; e < WIDTH; ++e)
#if DTYPE == 1
        to[e] = __half2float(elements[e]);
#else
        to[e] = __bfloat162float(elements[e]);
#endif
#endif
}

__device__ __forceinline__ Vector pack(const float (&from)[WIDTH])
{
#if DTYPE == 0
    return *reinterpret_cast<const Vector *>(from);
#else
    Vector to;
#if WIDTH == 1
#if DTYPE == 1
    *reinterpret_cast<Element *>(&to) = __float2half_rn(from[0]);
#else
    *reinterpret_cast<Element *>(&to) = __float2bfloat16_rn(from[0]);
#endif
#elif DTYPE == 1
    __half2 *const pairs = reinterpret_cast<__half2 *>(&to);
#pragma unroll
    for (int e = 0; e < WIDTH; e += 2)
        pairs[e / 2] = __float22half2_rn(make_float2(from[e], from[e + 1]));
#else
    __nv_bfloat162 *const pairs = reinterpret_cast<__nv_bfloat162 *>(&to);
#pragma unroll
    for (int e = 0; e < WIDTH; e += 2)
        pairs[e / 2] = __float22bfloat162_rn(make_float2(from[e], from[e + 1]));
#endif
    return to;
#endif
}

#if PEEL
__device__ __forceinline__ bool inside(int element, int n)
{
    return element >= 0 && element < n;
}

__device__ __forceinline__ bool whole(int first, int n)
{
    return first >= 0 && first + WIDTH <= n;
}

// The vector that begins at element `first` of a row or parameter of n, zeros outside; one by one, at any address.
__device__ __forceinline__ Vector gather(const Element *from, int first, int n)
{
    Vector vector;
    Element *const elements = reinterpret_cast<Element *>(&vector);
#pragma unroll
    for (int e = 0; e < WIDTH; ++e)
#if READ_ONLY
        elements[e] = inside(first + e, n) ? __ldg(from + e) : Element{};
#else
        elements[e] = inside(first + e, n) ? from[e] : Element{};
#endif
    return vector;
}

#endif
#if !ASYNC_COPY
// A vector of X.
__device__ __forceinline__ Vector read(const Element *from)
{
#if STREAM_IN
    return __ldcs(reinterpret_cast<const Vector *>(from));
#elif READ_ONLY
    return __ldg(reinterpret_cast<const Vector *>(from));
#else
    return *reinterpret_cast<const Vector *>(from);
#endif
}

#endif
#if !PEEL
// A vector of weight or bias.
__device__ __forceinline__ Vector read_parameter(const Element *from)
{
#if READ_ONLY
    return __ldg(reinterpret_cast<const Vector *>(from));
#else
    return *reinterpret_cast<const Vector *>(from);
#endif
}

#endif
// A vector of Y.
__device__ __forceinline__ void write(Element *to, Vector y)
{
#if STREAM_OUT
    __stcs(reinterpret_cast<Vector *>(to), y);
#else
    *reinterpret_cast<Vector *>(to) = y;
#endif
}

#if ONE_PASS
// Of some values: how many, their mean, and the sum of their squared deviations from it.
struct Moments {
    float count, mean, squares;
};

// Those of two sets together (Chan, Golub, LeVeque: Updating formulae and a pairwise algorithm for computing sample variances).
__device__ __forceinline__ Moments combine(Moments a, Moments b)
{
    const float count = a.count + b.count;
    const float share = __fdividef(b.count, fmaxf(count, 1.0f));
    const float difference = b.mean - a.mean;
    return {count, a.mean + difference * share, a.squares + b.squares + difference * difference * (a.count * share)};
}

#if PEEL
// Those of a vector; its values outside the row are zeros.
__device__ __forceinline__ Moments moments(const float (&x)[WIDTH], int first, int n)
{
    float count = 0.0f, sum = 0.0f, squares = 0.0f;
#pragma unroll
    for (int e = 0; e < WIDTH; ++e) {
        count += inside(first + e, n) ? 1.0f : 0.0f;
        sum += x[e];
    }
    const float mean = __fdividef(sum, fmaxf(count, 1.0f));
#pragma unroll
    for (int e = 0; e < WIDTH; ++e)
        squares += inside(first + e, n) ? (x[e] - mean) * (x[e] - mean) : 0.0f;
    return {count, mean, squares};
}

#else
// Those of a vector; it is all zeros where it is outside the row.
__device__ __forceinline__ Moments moments(const float (&x)[WIDTH], int first, int n)
{
    float sum = 0.0f, squares = 0.0f;
#pragma unroll
    for (int e = 0; e < WIDTH; ++e)
        sum += x[e];
    const float mean = sum / WIDTH;
#pragma unroll
    for (int e = 0; e < WIDTH; ++e)
        squares += (x[e] - mean) * (x[e] - mean);
    return {first < n ? WIDTH : 0.0f, mean, squares};
}

#endif
#if SHUFFLE
__device__ __forceinline__ Moments exchange(Moments own, int lanes)
{
    return {__shfl_xor_sync(~0u, own.count, lanes), __shfl_xor_sync(~0u, own.mean, lanes),
            __shfl_xor_sync(~0u, own.squares, lanes)};
}
#endif

using Part = Moments;
#else
__device__ __forceinline__ float combine(float a, float b)
{
    return a + b;
}

__device__ __forceinline__ float total(const float (&x)[WIDTH])
{
    float sum = 0.0f;
#pragma unroll
    for (int e = 0; e < WIDTH; ++e)
        sum += x[e];
    return sum;
}

// Of the values inside the row.
__device__ __forceinline__ float squared_deviations(const float (&x)[WIDTH], float mean, int first, int n)
{
    float sum = 0.0f;
#pragma unroll
    for (int e = 0; e < WIDTH; ++e)
#if PEEL
        sum += inside(first + e, n) ? (x[e] - mean) * (x[e] - mean) : 0.0f;
    return sum;
#else
        sum += (x[e] - mean) * (x[e] - mean);
    return first < n ? sum : 0.0f;
#endif
}

#if SHUFFLE
__device__ __forceinline__ float exchange(float own, int lanes)
{
    return __shfl_xor_sync(~0u, own, lanes);
}
#endif

using Part = float;
#endif

// Combine what the threads of a row hold; all of them get the result.
#if SHUFFLE && THREADS_ROW <= 32
__device__ __forceinline__ Part combine_row(Part part)
{
#else
// `parts` is the row's, and still read by the slowest threads when this returns: the next call needs another.
__device__ __forceinline__ Part combine_row(Part part, Part *parts, int thread)
{
#endif
#if SHUFFLE
#pragma unroll
    for (int lanes = LANES_ROW / 2; lanes > 0; lanes /= 2)
        part = combine(part, exchange(part, lanes));
#if THREADS_ROW > 32
    if (thread % 32 == 0)
        parts[thread / 32] = part;
    __syncthreads();
    part = parts[thread % PARTS_ROW];
#pragma unroll
    for (int lanes = PARTS_ROW / 2; lanes > 0; lanes /= 2)
        part = combine(part, exchange(part, lanes));
#endif
    return part;
#else
    parts[thread] = part;
#pragma unroll
    for (int threads = THREADS_ROW / 2; threads > 0; threads /= 2) {
        __syncthreads();
        if (thread < threads)
            parts[thread] = combine(parts[thread], parts[thread + threads]);
    }
    __syncthreads();
    return parts[0];
#endif
}

// The row that a team works on in a round.
__device__ __forceinline__ int row_of(int team, int round)
{
#if CONTIGUOUS
    return (blockIdx.x * ROUNDS + round) * BLOCK_M + team;
#else
    return (blockIdx.x + round * gridDim.x) * BLOCK_M + team;
#endif
}

// Where the first vector of a thread begins in a row.
#if PEEL
__device__ __forceinline__ int start_of(int row, int N, int thread)
{
    const int shift = (unsigned)row * (unsigned)N % WIDTH;  // elements from the last aligned address to the row
    return thread * WIDTH - shift;
}

#else
__device__ __forceinline__ int start_of(int thread)
{
    return thread * WIDTH;
}

#endif
#if STORAGE == 1 || ASYNC_COPY
#if ASYNC_COPY
// Copy a thread's vectors of a row to its slots in shared memory, in the background.
#else
// Copy a thread's vectors of a row to its slots in shared memory.
#endif
__device__ __forceinline__ void fetch(Vector *slots, const Element *X, int row, int M, int N, int thread)
{
#if PEEL
    const int n = row < M ? N : 0, start = start_of(row, N, thread);
#else
    const int n = row < M ? N : 0, start = start_of(thread);
#endif
    const Element *const from = X + (long long)row * N + start;
#pragma unroll
    for (int i = 0; i < VECTORS; ++i)
#if PEEL
        if (whole(start + i * STEP, n))
#else
        if (start + i * STEP < n)
#endif
#if ASYNC_COPY
            __pipeline_memcpy_async(&slots[i * THREADS], from + i * STEP, sizeof(Vector));
#else
            slots[i * THREADS] = read(from + i * STEP);
#endif
#if PEEL
        else if (start + i * STEP < n)
            slots[i * THREADS] = gather(from + i * STEP, start + i * STEP, n);
#endif
}

#elif STORAGE == 2
// Load a thread's vectors of a row; zeros where it has none.
__device__ __forceinline__ void fetch(Vector (&to)[VECTORS], const Element *X, int row, int M, int N, int thread)
{
#if PEEL
    const int n = row < M ? N : 0, start = start_of(row, N, thread);
#else
    const int n = row < M ? N : 0, start = start_of(thread);
#endif
    const Element *const from = X + (long long)row * N + start;
#pragma unroll
    for (int i = 0; i < VECTORS; ++i)
#if PEEL
        if (whole(start + i * STEP, n))
            to[i] = read(from + i * STEP);
        else
            to[i] = gather(from + i * STEP, start + i * STEP, n);
#else
        to[i] = start + i * STEP < n ? read(from + i * STEP) : Vector{};
#endif
}

#endif
// A vector of Y.
__device__ __forceinline__ Vector normalise(const float (&x)[WIDTH], float mean, float scale, Vector weight, Vector bias)
{
    alignas(16) float w[WIDTH], b[WIDTH], y[WIDTH];
    unpack(w, weight);
    unpack(b, bias);
#pragma unroll
    for (int e = 0; e < WIDTH; ++e)
        y[e] = (x[e] - mean) * scale * w[e] + b[e];
    return pack(y);
}

#if PEEL
// The part of a vector of Y that is inside the row, one by one.
__device__ __forceinline__ void scatter(Element *to, int first, int n, Vector y)
{
    const Element *const elements = reinterpret_cast<const Element *>(&y);
#pragma unroll
    for (int e = 0; e < WIDTH; ++e)
        if (inside(first + e, n))
            to[e] = elements[e];
}

#endif
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
    layernorm(const Element *X, const Element *weight, const Element *bias, Element *Y, int M, int N, void *workspace)
{
    const int team = threadIdx.x / THREADS_ROW, thread = threadIdx.x % THREADS_ROW;
    const float share = __fdividef(1.0f, N);
#if !PEEL
    const int start = start_of(thread);
#endif
#if !SHUFFLE || THREADS_ROW > 32
    __shared__ Part parts[2][BLOCK_M][PARTS_ROW];
#endif
#if ASYNC_COPY || STORAGE == 1
    // A thread reads only what it has put there itself, so that no barrier is needed.
#if DYNAMIC_SMEM
    extern __shared__ Vector shared[];
#else
    __shared__ Vector shared[STAGES * VECTORS * THREADS];
#endif
#endif

#if PARAMETERS == 2
    Vector weights[VECTORS], biases[VECTORS];  // the thread has the same elements of all its rows
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        weights[i] = start + i * STEP < N ? read_parameter(weight + start + i * STEP) : Vector{};
        biases[i] = start + i * STEP < N ? read_parameter(bias + start + i * STEP) : Vector{};
    }
#endif
#if ASYNC_COPY && STAGES > 1
#pragma unroll
    for (int round = 0; round < STAGES - 1; ++round) {
        fetch(shared + round * (VECTORS * THREADS) + threadIdx.x, X, row_of(team, round), M, N, thread);
        __pipeline_commit();
    }
#elif !ASYNC_COPY && STORAGE == 2 && STAGES == 2
    Vector loaded[VECTORS];
    fetch(loaded, X, row_of(team, 0), M, N, thread);
#endif

#pragma unroll 1
    for (int round = 0; round < ROUNDS; ++round) {
        const int row = row_of(team, round);
        const int n = row < M ? N : 0;
#if PEEL
        const int start = start_of(row, N, thread);
#endif
#if STORAGE == 0
        const Element *const from = X + (long long)row * N;
#endif
        Element *const to = Y + (long long)row * N;

#if STORAGE == 1 || ASYNC_COPY
#if STAGES > 1
        Vector *const slots = shared + round % STAGES * (VECTORS * THREADS) + threadIdx.x;
        const int ahead = round + STAGES - 1;
        if (ahead < ROUNDS)
            fetch(shared + ahead % STAGES * (VECTORS * THREADS) + threadIdx.x, X, row_of(team, ahead), M, N, thread);
#else
        Vector *const slots = shared + threadIdx.x;
        fetch(slots, X, row, M, N, thread);
#endif
#if ASYNC_COPY
        __pipeline_commit();
        __pipeline_wait_prior(STAGES - 1);
#endif
#endif
#if STORAGE == 2
#if !ASYNC_COPY && STAGES == 1
        Vector loaded[VECTORS];
        fetch(loaded, X, row, M, N, thread);
#endif
        alignas(16) float x[VECTORS][WIDTH];
#pragma unroll
        for (int i = 0; i < VECTORS; ++i)
#if ASYNC_COPY
            unpack(x[i], start + i * STEP < n ? slots[i * THREADS] : Vector{});
#else
            unpack(x[i], loaded[i]);
#endif
#if !ASYNC_COPY && STAGES == 2
        if (round + 1 < ROUNDS)
            fetch(loaded, X, row_of(team, round + 1), M, N, thread);
#endif
#endif
#if PARAMETERS == 1
        Vector weights[VECTORS], biases[VECTORS];
#pragma unroll
        for (int i = 0; i < VECTORS; ++i) {
#if PEEL
            weights[i] = gather(weight + start + i * STEP, start + i * STEP, n);
            biases[i] = gather(bias + start + i * STEP, start + i * STEP, n);
#else
            weights[i] = start + i * STEP < n ? read_parameter(weight + start + i * STEP) : Vector{};
            biases[i] = start + i * STEP < n ? read_parameter(bias + start + i * STEP) : Vector{};
#endif
        }
#endif

#if ONE_PASS
        Moments own = {};
#if STORAGE == 0
#pragma unroll UNROLL
        for (int first = start; first < n; first += STEP) {
            alignas(16) float x[WIDTH];
#if PEEL
            unpack(x, whole(first, n) ? read(from + first) : gather(from + first, first, n));
#else
            unpack(x, read(from + first));
#endif
            own = combine(own, moments(x, first, n));
        }
#elif STORAGE == 1
#pragma unroll
        for (int i = 0; i < VECTORS; ++i) {
            alignas(16) float x[WIDTH];
            unpack(x, start + i * STEP < n ? slots[i * THREADS] : Vector{});
            own = combine(own, moments(x, start + i * STEP, n));
        }
#else
#pragma unroll
        for (int i = 0; i < VECTORS; ++i)
            own = combine(own, moments(x[i], start + i * STEP, n));
#endif
#if SHUFFLE && THREADS_ROW <= 32
        const Moments all = combine_row(own);
#else
        const Moments all = combine_row(own, parts[round % 2][team], thread);
#endif
        const float mean = all.mean, variance = all.squares * share;
#else
        float sum = 0.0f;
#if STORAGE == 0
#pragma unroll UNROLL
        for (int first = start; first < n; first += STEP) {
            alignas(16) float x[WIDTH];
#if PEEL
            unpack(x, whole(first, n) ? read(from + first) : gather(from + first, first, n));
#else
            unpack(x, read(from + first));
#endif
            sum += total(x);
        }
#elif STORAGE == 1
#pragma unroll
        for (int i = 0; i < VECTORS; ++i) {
            alignas(16) float x[WIDTH];
            unpack(x, start + i * STEP < n ? slots[i * THREADS] : Vector{});
            sum += total(x);
        }
#else
#pragma unroll
        for (int i = 0; i < VECTORS; ++i)
            sum += total(x[i]);
#endif
#if SHUFFLE && THREADS_ROW <= 32
        const float mean = combine_row(sum) * share;
#else
        const float mean = combine_row(sum, parts[0][team], thread) * share;
#endif
        float squares = 0.0f;
#if STORAGE == 0
#pragma unroll UNROLL
        for (int first = start; first < n; first += STEP) {
            alignas(16) float x[WIDTH];
#if PEEL
            unpack(x, whole(first, n) ? read(from + first) : gather(from + first, first, n));
#else
            unpack(x, read(from + first));
#endif
            squares += squared_deviations(x, mean, first, n);
        }
#elif STORAGE == 1
#pragma unroll
        for (int i = 0; i < VECTORS; ++i) {
            alignas(16) float x[WIDTH];
            unpack(x, start + i * STEP < n ? slots[i * THREADS] : Vector{});
            squares += squared_deviations(x, mean, start + i * STEP, n);
        }
#else
#pragma unroll
        for (int i = 0; i < VECTORS; ++i)
            squares += squared_deviations(x[i], mean, start + i * STEP, n);
#endif
#if SHUFFLE && THREADS_ROW <= 32
        const float variance = combine_row(squares) * share;
#else
        const float variance = combine_row(squares, parts[1][team], thread) * share;
#endif
#endif
        const float scale = rsqrtf(variance + EPSILON);

#if STORAGE == 0
#pragma unroll UNROLL
        for (int first = start; first < n; first += STEP) {
            alignas(16) float x[WIDTH];
#if PEEL
            unpack(x, whole(first, n) ? read(from + first) : gather(from + first, first, n));
            const Vector w = gather(weight + first, first, n), b = gather(bias + first, first, n);
#else
            unpack(x, read(from + first));
            const Vector w = read_parameter(weight + first), b = read_parameter(bias + first);
#endif
            const Vector y = normalise(x, mean, scale, w, b);
#else
#pragma unroll
        for (int i = 0; i < VECTORS; ++i) {
            const int first = start + i * STEP;
#if PARAMETERS > 0
            const Vector w = weights[i], b = biases[i];
#elif PEEL
            const Vector w = gather(weight + first, first, n), b = gather(bias + first, first, n);
#else
            const Vector w = first < n ? read_parameter(weight + first) : Vector{};
            const Vector b = first < n ? read_parameter(bias + first) : Vector{};
#endif
#if STORAGE == 1
            alignas(16) float x[WIDTH];
            unpack(x, first < n ? slots[i * THREADS] : Vector{});
            const Vector y = normalise(x, mean, scale, w, b);
#else
            const Vector y = normalise(x[i], mean, scale, w, b);
#endif
#endif
#if PEEL
            if (whole(first, n))
                write(to + first, y);
            else
                scatter(to + first, first, n, y);
#elif STORAGE == 0
            write(to + first, y);
#else
            if (first < n)
                write(to + first, y);
#endif
        }
    }
}
