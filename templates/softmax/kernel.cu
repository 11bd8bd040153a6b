// Softmax of each row of X: Y[m][n] = exp(X[m][n]) / sum over n of exp(X[m][n]). X and Y are M x N, row-major; any M, N >= 1.
// Arithmetic in fp32. Each row needs its maximum, then the sum of its exponentials relative to that, then its results.
//
// THREADS_ROW threads share a row: its vectors of WIDTH elements go to them in turn. A thread block takes BLOCK_M rows at a
// time, ROUNDS times. What a thread has put into shared memory of a row, it alone reads back.
//
// -infinity (a masked position) weighs nothing. A row of nothing else, and one with +infinity or NaN in it, becomes NaN.

// Slots: one knob a line, with its default. The `#if`s below choose among paths by these alone.
#define THREADS_ROW 256     // threads that share a row
#define BLOCK_M 1           // rows per thread block at a time
#define WIDTH 4             // elements per access to global memory
#define PEEL 1              // rows need not be aligned: the elements before and behind whole vectors go one by one
#define CONTIGUOUS 0        // a block's rows are neighbours
#define STORAGE 2           // where a row is kept between its passes, 0: nowhere, 1: shared memory, 2: registers
#define ASYNC_COPY 0        // copy rows to shared memory in the background
#define HELD 8              // eighths of a row that shared memory keeps; the rest is read again
#define READ_ONLY 0         // load X through the read-only cache
#define STREAM_IN 0         // X leaves the caches first
#define STREAM_OUT 0        // Y leaves the caches first
#define KEEP_POWERS 0       // keep the exponentials that were summed instead of computing them again
#define VECTORS 4           // vectors of a row that a thread loads before it uses them
#define ROUNDS 1            // rows that a thread works on, one after another
#define STAGES 1            // rows in flight
#define ONLINE 0            // find maximum and sum together
#define SERIAL 0            // each thread goes through the warps' maxima and sums by itself
#define FAST_MATH 0         // __expf and __fdividef instead of expf and a division
#define MIN_BLOCKS 1        // resident blocks to leave registers for
#define DTYPE 0             // 0: float, 1: half, 2: bfloat16

#if DTYPE == 1
#include <cuda_fp16.h>
#elif DTYPE == 2
#include <cuda_bf16.h>
#endif
#if ASYNC_COPY
#include <cuda_pipeline_primitives.h>
#endif

constexpr int THREADS = BLOCK_M * THREADS_ROW;
constexpr float LOWEST = -3.402823466e38f;  // a maximum to start from: finite, for exp(-infinity - LOWEST) is 0
constexpr unsigned ALL_LANES = 0xffffffff;
#if THREADS_ROW > 32
constexpr int WARPS_ROW = THREADS_ROW / 32;
#if !SERIAL
constexpr int LANES_PARTS = WARPS_ROW <= 2 ? 2 : WARPS_ROW <= 4 ? 4 : WARPS_ROW <= 8 ? 8 : WARPS_ROW <= 16 ? 16 : 32;
#endif
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
using Vector = Element;
#endif
#endif

struct Floats {
    alignas(4 * WIDTH) float at[WIDTH];
};

__device__ __forceinline__ Floats unpack(Vector from)
{
    Floats to;
#if DTYPE == 0
    *reinterpret_cast<Vector *>(to.at) = from;
#else
    const Element *const elements = reinterpret_cast<const Element *>(&from);
#pragma unroll
    for (int i = 0; i < WIDTH; ++i)
#if DTYPE == 1
        to.at[i] = __half2float(elements[i]);
#else
        to.at[i] = __bfloat162float(elements[i]);
#endif
#endif
    return to;
}

__device__ __forceinline__ Vector pack(Floats from)
{
#if DTYPE == 0
    return *reinterpret_cast<Vector *>(from.at);
#elif WIDTH == 1
#if DTYPE == 1
    return __float2half_rn(from.at[0]);
#else
    return __float2bfloat16_rn(from.at[0]);
#endif
#else
    Vector to;
#if DTYPE == 1
    __half2 *const pairs = reinterpret_cast<__half2 *>(&to);
#pragma unroll
    for (int i = 0; i < WIDTH; i += 2)
        pairs[i / 2] = __float22half2_rn(make_float2(from.at[i], from.at[i + 1]));
#else
    __nv_bfloat162 *const pairs = reinterpret_cast<__nv_bfloat162 *>(&to);
#pragma unroll
    for (int i = 0; i < WIDTH; i += 2)
        pairs[i / 2] = __float22bfloat162_rn(make_float2(from.at[i], from.at[i + 1]));
#endif
    return to;
#endif
}

// A vector outside the row.
__device__ __forceinline__ Vector nothing()
{
    Floats none;
#pragma unroll
    for (int i = 0; i < WIDTH; ++i)
        none.at[i] = __int_as_float(0xff800000);  // -infinity
    return pack(none);
}

#if ASYNC_COPY
// Start to copy the thread's vectors of a row.
__device__ __forceinline__ void start_copy(Vector *to, const Vector *from, int lane, int count)
{
#pragma unroll VECTORS
    for (int v = lane; v < count; v += THREADS_ROW)
        __pipeline_memcpy_async(to + v, from + v, sizeof(Vector));
}
#else
// Load the thread's vectors: number `first`, and every THREADS_ROW-th after it.
__device__ __forceinline__ void load(Vector (&values)[VECTORS], const Vector *from, int first, int count)
{
#pragma unroll
    for (int k = 0; k < VECTORS; ++k) {
        const int v = first + k * THREADS_ROW;
#if READ_ONLY
        values[k] = v < count ? __ldg(from + v) : nothing();
#elif STREAM_IN
        values[k] = v < count ? __ldcs(from + v) : nothing();
#else
        values[k] = v < count ? from[v] : nothing();
#endif
    }
}
#endif

#if STORAGE == 1 && !ASYNC_COPY
// Put the thread's vectors into shared memory.
__device__ __forceinline__ void keep(Vector *tile, const Vector (&values)[VECTORS], int first, int count)
{
#pragma unroll
    for (int k = 0; k < VECTORS; ++k) {
        const int v = first + k * THREADS_ROW;
        if (v < count)
            tile[v] = values[k];
    }
}
#endif

#if STORAGE == 1 && HELD < 8
// Read them back, those behind the ones held from where they came.
__device__ __forceinline__ void recall(
    Vector (&values)[VECTORS], const Vector *tile, int held, const Vector *from, int first, int count)
{
#pragma unroll
    for (int k = 0; k < VECTORS; ++k) {
        const int v = first + k * THREADS_ROW;
#if READ_ONLY
        values[k] = v < held ? tile[v] : v < count ? __ldg(from + v) : nothing();
#elif STREAM_IN
        values[k] = v < held ? tile[v] : v < count ? __ldcs(from + v) : nothing();
#else
        values[k] = v < held ? tile[v] : v < count ? from[v] : nothing();
#endif
    }
}
#elif STORAGE == 1 || ASYNC_COPY
// Read the thread's vectors back from shared memory.
__device__ __forceinline__ void recall(Vector (&values)[VECTORS], const Vector *tile, int first, int count)
{
#pragma unroll
    for (int k = 0; k < VECTORS; ++k) {
        const int v = first + k * THREADS_ROW;
        values[k] = v < count ? tile[v] : nothing();
    }
}
#endif

__device__ __forceinline__ float power(float x)
{
#if FAST_MATH
    return __expf(x);
#else
    return expf(x);
#endif
}

__device__ __forceinline__ float inverse(float sum)
{
#if FAST_MATH
    return __fdividef(1.0f, sum);
#else
    return 1.0f / sum;
#endif
}

// The largest of a maximum and the thread's elements.
__device__ __forceinline__ float largest(float maximum, const Vector (&values)[VECTORS])
{
#pragma unroll
    for (int k = 0; k < VECTORS; ++k) {
        const Floats x = unpack(values[k]);
#pragma unroll
        for (int i = 0; i < WIDTH; ++i)
            maximum = fmaxf(maximum, x.at[i]);
    }
    return maximum;
}

// Sum of the thread's exponentials.
#if KEEP_POWERS
__device__ __forceinline__ float sum_powers(Floats (&powers)[VECTORS], const Vector (&values)[VECTORS], float maximum)
#else
__device__ __forceinline__ float sum_powers(const Vector (&values)[VECTORS], float maximum)
#endif
{
    float sum = 0.0f;
#pragma unroll
    for (int k = 0; k < VECTORS; ++k) {
        const Floats x = unpack(values[k]);
#pragma unroll
#if KEEP_POWERS
        for (int i = 0; i < WIDTH; ++i) {
            powers[k].at[i] = power(x.at[i] - maximum);
            sum += powers[k].at[i];
        }
#else
        for (int i = 0; i < WIDTH; ++i)
            sum += power(x.at[i] - maximum);
#endif
    }
    return sum;
}

// Store the thread's results.
#if KEEP_POWERS
__device__ __forceinline__ void finish(Vector *to, const Floats (&powers)[VECTORS], int first, int count, float factor)
#else
__device__ __forceinline__ void finish(
    Vector *to, const Vector (&values)[VECTORS], int first, int count, float maximum, float factor)
#endif
{
#pragma unroll
    for (int k = 0; k < VECTORS; ++k) {
        const int v = first + k * THREADS_ROW;
#if KEEP_POWERS
        Floats y = powers[k];
#pragma unroll
        for (int i = 0; i < WIDTH; ++i)
            y.at[i] *= factor;
#else
        Floats y = unpack(values[k]);
#pragma unroll
        for (int i = 0; i < WIDTH; ++i)
            y.at[i] = power(y.at[i] - maximum) * factor;
#endif
        if (v < count)
#if STREAM_OUT
            __stcs(to + v, pack(y));
#else
            to[v] = pack(y);
#endif
    }
}

// The maximum over so many neighbouring lanes, in each of them.
template <int LANES>
__device__ __forceinline__ float lanes_max(float value)
{
#pragma unroll
    for (int distance = LANES / 2; distance > 0; distance /= 2)
        value = fmaxf(value, __shfl_xor_sync(ALL_LANES, value, distance));
    return value;
}

template <int LANES>
__device__ __forceinline__ float lanes_sum(float value)
{
#pragma unroll
    for (int distance = LANES / 2; distance > 0; distance /= 2)
        value += __shfl_xor_sync(ALL_LANES, value, distance);
    return value;
}

#if ONLINE
// Put together maxima and the sums relative to them.
template <int LANES>
__device__ __forceinline__ void lanes_combine(float &maximum, float &sum)
{
    const float own = maximum;
    maximum = lanes_max<LANES>(own);
    sum = lanes_sum<LANES>(sum * power(own - maximum));
}
#endif

#if THREADS_ROW > 32 && ONLINE
// The same over all threads of a row.
__device__ __forceinline__ void row_combine(float &maximum, float &sum, float2 *parts)
{
    const int warp = threadIdx.x / 32 % WARPS_ROW, lane = threadIdx.x % 32;
    lanes_combine<32>(maximum, sum);
    if (lane == 0)
        parts[warp] = make_float2(maximum, sum);
    __syncthreads();
#if SERIAL
    maximum = parts[0].x;
#pragma unroll
    for (int w = 1; w < WARPS_ROW; ++w)
        maximum = fmaxf(maximum, parts[w].x);
    sum = 0.0f;
#pragma unroll
    for (int w = 0; w < WARPS_ROW; ++w)
        sum += parts[w].y * power(parts[w].x - maximum);
#else
    const int part = lane % LANES_PARTS;
    maximum = parts[part < WARPS_ROW ? part : 0].x;
    sum = part < WARPS_ROW ? parts[part].y : 0.0f;
    lanes_combine<LANES_PARTS>(maximum, sum);
#endif
}
#elif THREADS_ROW > 32
// The maximum over all threads of a row, in each of them.
__device__ __forceinline__ float row_max(float value, float *parts)
{
    const int warp = threadIdx.x / 32 % WARPS_ROW, lane = threadIdx.x % 32;
    value = lanes_max<32>(value);
    if (lane == 0)
        parts[warp] = value;
    __syncthreads();
#if SERIAL
    value = parts[0];
#pragma unroll
    for (int w = 1; w < WARPS_ROW; ++w)
        value = fmaxf(value, parts[w]);
    return value;
#else
    const int part = lane % LANES_PARTS;
    return lanes_max<LANES_PARTS>(parts[part < WARPS_ROW ? part : 0]);
#endif
}

__device__ __forceinline__ float row_sum(float value, float *parts)
{
    const int warp = threadIdx.x / 32 % WARPS_ROW, lane = threadIdx.x % 32;
    value = lanes_sum<32>(value);
    if (lane == 0)
        parts[warp] = value;
    __syncthreads();
#if SERIAL
    value = parts[0];
#pragma unroll
    for (int w = 1; w < WARPS_ROW; ++w)
        value += parts[w];
    return value;
#else
    const int part = lane % LANES_PARTS;
    return lanes_sum<LANES_PARTS>(part < WARPS_ROW ? parts[part] : 0.0f);
#endif
}
#endif

// Where a row lies; one beyond the last is empty.
struct Row {
    long long start;  // of its whole vectors, in elements
    int vectors;      // how many
#if PEEL && WIDTH > 1
    int before;       // elements ahead of them
    int singles;      // and all that are in none of them
#endif
};

__device__ __forceinline__ Row find(int row, int M, int N)
{
    const int length = row < M ? N : 0;
    Row found;
    found.start = (long long)row * N;
#if PEEL && WIDTH > 1
    found.before = min((int)(-found.start & (WIDTH - 1)), length);
    found.start += found.before;
    found.vectors = (length - found.before) / WIDTH;
    found.singles = length - found.vectors * WIDTH;
#else
    found.vectors = length / WIDTH;
#endif
    return found;
}

#if PEEL && WIDTH > 1
// The one of them that is the thread's, in elements.
__device__ __forceinline__ long long single_of(Row row, int lane)
{
    return row.start + lane - row.before + (lane < row.before ? 0 : row.vectors * WIDTH);
}

__device__ __forceinline__ float load_single(const Element *X, Row row, int lane)
{
    if (lane >= row.singles)
        return __int_as_float(0xff800000);  // -infinity
#if DTYPE == 0
    return X[single_of(row, lane)];
#elif DTYPE == 1
    return __half2float(X[single_of(row, lane)]);
#else
    return __bfloat162float(X[single_of(row, lane)]);
#endif
}

__device__ __forceinline__ void store_single(Element *to, float y)
{
#if DTYPE == 0
    *to = y;
#elif DTYPE == 1
    *to = __float2half_rn(y);
#else
    *to = __float2bfloat16_rn(y);
#endif
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
    softmax(const Element *X, Element *Y, int M, int N, void *workspace)
{
    // Which rows: this many apart, and the place of the thread among those that share one.
#if BLOCK_M == 1
    const int place = 0, lane = threadIdx.x;
#else
    const int place = threadIdx.x / THREADS_ROW, lane = threadIdx.x % THREADS_ROW;
#endif
#if CONTIGUOUS
    const int first_row = blockIdx.x * (ROUNDS * BLOCK_M) + place, stride = BLOCK_M;
#else
    const int first_row = blockIdx.x * BLOCK_M + place, stride = gridDim.x * BLOCK_M;
#endif

#if THREADS_ROW > 32
#if ONLINE && ROUNDS > 1
    // The warps' maxima and sums, in two places in turn: some threads still read a row's while others write the next one's.
    __shared__ float2 parts[2][BLOCK_M][WARPS_ROW];
#elif ONLINE
    __shared__ float2 parts[BLOCK_M][WARPS_ROW];  // the warps' maxima and sums
#else
    __shared__ float parts[2][BLOCK_M][WARPS_ROW];  // the warps' maxima, and their sums
#endif
#endif
#if STORAGE == 1 || ASYNC_COPY
    extern __shared__ float4 shared[];
#if HELD < 8
    const int slots = N / WIDTH / 8 * HELD;  // vectors held of each row
#else
    const int slots = N / WIDTH;  // vectors of a row
#endif
    Vector *const tiles = reinterpret_cast<Vector *>(shared) + place * slots;
#endif

#if ASYNC_COPY && STAGES > 1
#pragma unroll
    for (int round = 0; round < STAGES - 1; ++round) {
        const Row row = find(first_row + round * stride, M, N);
        start_copy(tiles + round * (BLOCK_M * slots), reinterpret_cast<const Vector *>(X + row.start), lane, row.vectors);
        __pipeline_commit();
    }
#elif STORAGE == 2 && STAGES > 1
    Row next_row = find(first_row, M, N);
    Vector next[VECTORS];
    load(next, reinterpret_cast<const Vector *>(X + next_row.start), lane, next_row.vectors);
#if PEEL && WIDTH > 1
    float next_single = load_single(X, next_row, lane);
#endif
#endif

    for (int round = 0; round < ROUNDS; ++round) {
#if STORAGE == 2 && !ASYNC_COPY && STAGES > 1
        const Row row = next_row;
        Vector values[VECTORS];
#pragma unroll
        for (int k = 0; k < VECTORS; ++k)
            values[k] = next[k];
#if PEEL && WIDTH > 1
        const float single = next_single;
#endif
        if (round + STAGES - 1 < ROUNDS) {
            next_row = find(first_row + (round + STAGES - 1) * stride, M, N);
            load(next, reinterpret_cast<const Vector *>(X + next_row.start), lane, next_row.vectors);
#if PEEL && WIDTH > 1
            next_single = load_single(X, next_row, lane);
#endif
        }
#else
        const Row row = find(first_row + round * stride, M, N);
#if PEEL && WIDTH > 1
        const float single = load_single(X, row, lane);
#endif
#endif

#if ASYNC_COPY
#if STAGES > 1
        if (round + STAGES - 1 < ROUNDS) {
            const Row ahead = find(first_row + (round + STAGES - 1) * stride, M, N);
            Vector *const free_tile = tiles + (round + STAGES - 1) % STAGES * (BLOCK_M * slots);
            start_copy(free_tile, reinterpret_cast<const Vector *>(X + ahead.start), lane, ahead.vectors);
        }
        __pipeline_commit();
        __pipeline_wait_prior(STAGES - 1);
        const Vector *const tile = tiles + round % STAGES * (BLOCK_M * slots);
#else
        Vector *const tile = tiles;
        start_copy(tile, reinterpret_cast<const Vector *>(X + row.start), lane, row.vectors);
        __pipeline_commit();
        __pipeline_wait_prior(0);
#endif
#elif STORAGE == 1
        Vector *const tile = tiles;
#endif
#if STORAGE == 0 || (!ASYNC_COPY && (STORAGE == 1 || STAGES == 1))
        const Vector *const in = reinterpret_cast<const Vector *>(X + row.start);
#endif
        Vector *const out = reinterpret_cast<Vector *>(Y + row.start);

        // Maximum and sum of what is the thread's.
#if PEEL && WIDTH > 1
        float maximum = fmaxf(LOWEST, single);
#else
        float maximum = LOWEST;
#endif
#if STORAGE == 2
#if ASYNC_COPY
        Vector values[VECTORS];
        recall(values, tile, lane, row.vectors);
#elif STAGES == 1
        Vector values[VECTORS];
        load(values, in, lane, row.vectors);
#endif
        maximum = largest(maximum, values);
#else
#if ONLINE && PEEL && WIDTH > 1
        float sum = power(single - maximum);
#elif ONLINE
        float sum = 0.0f;
#endif
        for (int first = lane; first < row.vectors; first += VECTORS * THREADS_ROW) {
            Vector values[VECTORS];
#if ASYNC_COPY
            recall(values, tile, first, row.vectors);
#else
            load(values, in, first, row.vectors);
#endif
#if STORAGE == 1 && !ASYNC_COPY
#if HELD < 8
            keep(tile, values, first, min(slots, row.vectors));
#else
            keep(tile, values, first, row.vectors);
#endif
#endif
#if ONLINE
            const float before = maximum;
            maximum = largest(before, values);
            sum = sum * power(before - maximum) + sum_powers(values, maximum);
#else
            maximum = largest(maximum, values);
#endif
        }
#endif
#if !ONLINE && THREADS_ROW > 32
        maximum = row_max(maximum, parts[0][place]);
#elif !ONLINE
        maximum = lanes_max<THREADS_ROW>(maximum);
#endif
#if STORAGE == 2 && KEEP_POWERS
        Floats powers[VECTORS];
        float sum = sum_powers(powers, values, maximum);
#elif STORAGE == 2
        float sum = sum_powers(values, maximum);
#elif !ONLINE
        float sum = 0.0f;
        for (int first = lane; first < row.vectors; first += VECTORS * THREADS_ROW) {
            Vector values[VECTORS];
#if STORAGE == 1 && HELD < 8
            recall(values, tile, min(slots, row.vectors), in, first, row.vectors);
#elif STORAGE == 1
            recall(values, tile, first, row.vectors);
#else
            load(values, in, first, row.vectors);
#endif
            sum += sum_powers(values, maximum);
        }
#endif
#if PEEL && WIDTH > 1 && (STORAGE == 2 || !ONLINE)
        sum += power(single - maximum);
#endif

        // Of the whole row.
#if ONLINE && KEEP_POWERS
        const float own = maximum;
#endif
#if ONLINE && THREADS_ROW > 32 && ROUNDS > 1
        row_combine(maximum, sum, parts[round % 2][place]);
#elif ONLINE && THREADS_ROW > 32
        row_combine(maximum, sum, parts[place]);
#elif ONLINE
        lanes_combine<THREADS_ROW>(maximum, sum);
#elif THREADS_ROW > 32
        sum = row_sum(sum, parts[1][place]);
#else
        sum = lanes_sum<THREADS_ROW>(sum);
#endif

        // Results.
#if ONLINE && KEEP_POWERS
        const float factor = power(own - maximum) * inverse(sum);  // the powers are relative to the thread's own maximum
#else
        const float factor = inverse(sum);
#endif
#if STORAGE == 2 && KEEP_POWERS
        finish(out, powers, lane, row.vectors, factor);
#elif STORAGE == 2
        finish(out, values, lane, row.vectors, maximum, factor);
#else
        for (int first = lane; first < row.vectors; first += VECTORS * THREADS_ROW) {
            Vector values[VECTORS];
#if STORAGE == 1 && HELD < 8
            recall(values, tile, min(slots, row.vectors), in, first, row.vectors);
#elif STORAGE == 1
            recall(values, tile, first, row.vectors);
#else
            load(values, in, first, row.vectors);
#endif
            finish(out, values, first, row.vectors, maximum, factor);
        }
#endif
#if PEEL && WIDTH > 1
        if (lane < row.singles)
#if ONLINE && KEEP_POWERS
            store_single(Y + single_of(row, lane), power(single - own) * factor);
#else
            store_single(Y + single_of(row, lane), power(single - maximum) * factor);
#endif
#endif
    }
}
