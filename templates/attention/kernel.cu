// O = softmax(Q K' / sqrt(dim)) V in fp32, all row-major: Q and O are batches x heads x queries x dim, K and V are batches x
// kv_heads x keys x dim; heads is a multiple of kv_heads, and neighbouring heads share keys. causal: query i sees keys 0 to i.
//
// A thread block computes BLOCK_Q rows of O. It walks over the keys in tiles of BLOCK_K and keeps, per row, the largest score so
// far and the sum of the weights relative to it (online softmax). Of each tile a warp takes WARP_Q rows and WARP_K keys; of these
// a thread takes THREAD_Q x THREAD_K scores, and THREAD_Q x THREAD_D elements of O, held in registers. Warps that share rows add
// up at the end. SPLIT_K blocks may share the rows, each walking over a part of the keys.

// Slots: one knob a line, with its default. The `#if`s below choose among paths by these alone.
#define SHARED 1            // stage tiles of Q, K and V in shared memory
#define BLOCK_Q 128         // rows of O per thread block
#define BLOCK_K 64          // keys per tile
#define BLOCK_D 64          // columns of a tile: dim, rounded up
#define THREAD_Q 8          // rows per thread
#define LANES_K 8           // lanes of a warp along the keys, and along the columns of O
#define WARPS_K 1           // warps that share the keys of a tile
#define WIDTH 4             // floats per access to global memory
#define PACK_HEADS 0        // rows of all heads that share keys make up one matrix
#define HEADS_FIRST 0       // neighbouring blocks work on different heads
#define REVERSE 0           // last rows first
#define TRANSPOSE_Q 0       // keep Q's tile dim-major and P's key-major
#define TRANSPOSE_K 0       // keep K's tile dim-major
#define PAD 4               // unused floats behind each row of these tiles, against bank conflicts
#define P_PARTS 1           // parts in which the weights P pass through shared memory; 0: through shuffles
#define ASYNC_COPY 1        // copy to shared memory in the background
#define READ_ONLY 0         // load through the read-only cache
#define DYNAMIC_SMEM 1      // shared memory sized at launch
#define STAGES 1            // tiles in flight
#define VECTOR 4            // values of the summed index per read of a tile
#define PRAGMA_UNROLL 1     // say how far to unroll the loops over the summed index
#define UNROLL 2            // how far
#define FMA_ORDER 0         // 0: along rows, 1: down columns, 2: down columns there and back
#define SKIP_RESCALE 0      // rescale O only where a row's largest score has grown
#define SPLIT_K 1           // blocks that share the keys
#define MIN_BLOCKS 1        // resident blocks to leave registers for

#if SHARED && ASYNC_COPY
#include <cuda_pipeline_primitives.h>
#endif

constexpr unsigned FULL_WARP = 0xffffffffu;
constexpr float LOWEST = -3.402823466e38f;  // stands for minus infinity, without its NaNs

constexpr int LANES_Q = 32 / LANES_K;
constexpr int WARP_Q = THREAD_Q * LANES_Q;
constexpr int WARP_K = BLOCK_K / WARPS_K;
constexpr int THREADS = BLOCK_Q / WARP_Q * WARPS_K * 32;
constexpr int THREAD_K = WARP_K / LANES_K;
#if SHARED
constexpr int THREAD_D = BLOCK_D / LANES_K;
#else
constexpr int THREAD_D = 256 / LANES_K;  // dim is at most 256
#endif

// Neighbouring rows, keys and columns that a thread takes at once; its next ones are a warp's width further on.
#if TRANSPOSE_Q
constexpr int STEP_Q = THREAD_Q < 4 ? THREAD_Q : 4;
#else
constexpr int STEP_Q = 1;
#endif
#if TRANSPOSE_K
constexpr int STEP_K = THREAD_K < 4 ? THREAD_K : 4;
#else
constexpr int STEP_K = 1;
#endif
#if SHARED
constexpr int STEP_D = THREAD_D % 4 == 0 ? 4 : THREAD_D % 2 == 0 ? 2 : 1;
#else
constexpr int STEP_D = WIDTH;
#endif
constexpr int STORE_WIDTH = WIDTH < STEP_D ? WIDTH : STEP_D;
#if PRAGMA_UNROLL
constexpr int UNROLL_SUM = UNROLL;
#endif

#if SHARED
#if TRANSPOSE_Q
constexpr int Q_STRIDE = BLOCK_Q + PAD;
constexpr int Q_TILE = BLOCK_D * Q_STRIDE;
#else
constexpr int Q_STRIDE = BLOCK_D + PAD;
constexpr int Q_TILE = BLOCK_Q * Q_STRIDE;
#endif
#if TRANSPOSE_K
constexpr int K_STRIDE = BLOCK_K + PAD;
constexpr int K_TILE = BLOCK_D * K_STRIDE;
constexpr int K_ROW_STEP = 1;
constexpr int K_COLUMN_STEP = K_STRIDE;
#else
constexpr int K_STRIDE = BLOCK_D + PAD;
constexpr int K_TILE = BLOCK_K * K_STRIDE;
constexpr int K_ROW_STEP = K_STRIDE;
constexpr int K_COLUMN_STEP = 1;
#endif
constexpr int V_TILE = BLOCK_K * BLOCK_D;
#if ASYNC_COPY
constexpr int BUFFERS = STAGES;
#else
constexpr int BUFFERS = 1;
#endif

// Copies of K's and V's tiles: so many threads take a row, so many rows are copied at once.
constexpr int ROW_VECTORS = BLOCK_D / WIDTH;
constexpr int ROW_THREADS = ROW_VECTORS % 32 == 0 ? 32 : ROW_VECTORS & -ROW_VECTORS;
constexpr int COPY_ROWS = THREADS / ROW_THREADS;
#if !ASYNC_COPY
constexpr int ROW_COPIES = ROW_VECTORS / ROW_THREADS;
constexpr int COPIES = BLOCK_K / COPY_ROWS * ROW_COPIES;  // vectors of a tile that a thread copies
#endif

#if P_PARTS > 0
constexpr int PART_K = WARP_K / P_PARTS;
#if TRANSPOSE_Q
constexpr int P_STRIDE = WARP_Q + PAD;
constexpr int P_TILE = PART_K * P_STRIDE;
#else
constexpr int P_STRIDE = PART_K + PAD;
constexpr int P_TILE = WARP_Q * P_STRIDE;
#endif
#endif
#endif
#if WARPS_K > 1 || SPLIT_K > 1
constexpr int SHARERS = THREADS / WARPS_K;                 // threads whose rows and columns differ
constexpr int SUMS = SHARERS * THREAD_Q * (THREAD_D + 2);  // what they hold: O, largest scores, sums of weights
#endif

// Copy N floats in one access; both addresses are aligned to it.
template <int N>
__device__ __forceinline__ void move(float *to, const float *from)
{
    if constexpr (N == 4)
        *reinterpret_cast<float4 *>(to) = *reinterpret_cast<const float4 *>(from);
    else if constexpr (N == 2)
        *reinterpret_cast<float2 *>(to) = *reinterpret_cast<const float2 *>(from);
    else
        *to = *from;
}

template <int N>
__device__ __forceinline__ void clear(float *to)
{
#pragma unroll
    for (int i = 0; i < N; ++i)
        to[i] = 0.0f;
}

// Load N floats in one access, from global memory that nobody writes meanwhile.
template <int N>
__device__ __forceinline__ void load(float *to, const float *from)
{
#if READ_ONLY
    if constexpr (N == 4)
        *reinterpret_cast<float4 *>(to) = __ldg(reinterpret_cast<const float4 *>(from));
    else if constexpr (N == 2)
        *reinterpret_cast<float2 *>(to) = __ldg(reinterpret_cast<const float2 *>(from));
    else
        *to = __ldg(from);
#else
    move<N>(to, from);
#endif
}

// Where a thread's i-th row, key or column is, from its first.
template <int STEP, int LANES>
__device__ __forceinline__ int offset(int i)
{
    return i / STEP * STEP * LANES + i % STEP;
}

// How many keys rows `first` to `last` see: the row that sees most of them.
__device__ __forceinline__ int seen_by_any(int first, int last, int queries, int keys, int causal)
{
    if (!causal)
        return keys;
#if PACK_HEADS
    const bool one_head = first / queries == last / queries;
    return min(keys, one_head ? last % queries + 1 : queries);
#else
    return min(keys, last + 1);
#endif
}

// The same for the row that sees fewest.
__device__ __forceinline__ int seen_by_all(int first, int last, int queries, int keys, int causal)
{
    if (!causal)
        return keys;
#if PACK_HEADS
    const bool one_head = first / queries == last / queries;
    return min(keys, one_head ? first % queries + 1 : 1);
#else
    return min(keys, first + 1);
#endif
}

// sum[m][n] += the sum over i of a[m][i] b[n][i].
template <int COLUMNS, int DEPTH>
__device__ __forceinline__ void multiply(float (&sum)[THREAD_Q][COLUMNS], const float (&a)[THREAD_Q][DEPTH],
                                         const float (&b)[COLUMNS][DEPTH])
{
#pragma unroll
    for (int i = 0; i < DEPTH; ++i)
#if FMA_ORDER == 0
#pragma unroll
        for (int m = 0; m < THREAD_Q; ++m)
#pragma unroll
            for (int n = 0; n < COLUMNS; ++n)
                sum[m][n] += a[m][i] * b[n][i];
#elif FMA_ORDER == 1
#pragma unroll
        for (int n = 0; n < COLUMNS; ++n)
#pragma unroll
            for (int m = 0; m < THREAD_Q; ++m)
                sum[m][n] += a[m][i] * b[n][i];
#else
#pragma unroll
        for (int n = 0; n < COLUMNS; ++n)
#pragma unroll
            for (int j = 0; j < THREAD_Q; ++j) {
                const int m = n % 2 ? THREAD_Q - 1 - j : j;  // there and back: each turn reuses an operand
                sum[m][n] += a[m][i] * b[n][i];
            }
#endif
}

#if SHARED
#if !TRANSPOSE_Q || !TRANSPOSE_K
// Read DEPTH values of the summed index for each of a thread's rows, from a tile whose rows lie one after the other.
template <int ROWS, int STEP, int LANES, int DEPTH>
__device__ __forceinline__ void read_rows(float (&to)[ROWS][DEPTH], const float *tile, int stride)
{
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
        move<DEPTH>(to[r], tile + offset<STEP, LANES>(r) * stride);
}

#endif
// Read DEPTH values of the summed index for each of a thread's rows or columns, from a tile in which that index is the row.
template <int ROWS, int STEP, int LANES, int DEPTH>
__device__ __forceinline__ void read_columns(float (&to)[ROWS][DEPTH], const float *tile, int stride)
{
#pragma unroll
    for (int i = 0; i < DEPTH; ++i)
#pragma unroll
        for (int r = 0; r < ROWS; r += STEP) {
            alignas(16) float part[STEP];
            move<STEP>(part, tile + i * stride + r * LANES);
#pragma unroll
            for (int j = 0; j < STEP; ++j)
                to[r + j][i] = part[j];
        }
}

#if ASYNC_COPY
// Start to copy a tile of K or V; past the last key it repeats, past the last column it is zero.
template <int ROW_STEP, int COLUMN_STEP>
__device__ __forceinline__ void copy_tile(float *tile, const float *from, int last_row, int dim)
{
    const int first = threadIdx.x / ROW_THREADS, d = threadIdx.x % ROW_THREADS * WIDTH;
    float *const first_to = tile + first * ROW_STEP + d * COLUMN_STEP;
#pragma unroll
    for (int i = 0; i < BLOCK_K; i += COPY_ROWS) {
        const float *const row = from + d + (long long)min(first + i, last_row) * dim;
#pragma unroll
        for (int j = 0; j < BLOCK_D; j += ROW_THREADS * WIDTH) {
            float *const to = first_to + i * ROW_STEP + j * COLUMN_STEP;
            if (d + j < dim)
                __pipeline_memcpy_async(to, row + j, 4 * WIDTH);
            else
                clear<WIDTH>(to);
        }
    }
}
#else
// Load a thread's part of a tile of K or V; past the last key it repeats, past the last column it is zero.
__device__ __forceinline__ void fetch_tile(float (&staged)[COPIES][WIDTH], const float *from, int last_row, int dim)
{
    const int first = threadIdx.x / ROW_THREADS, d = threadIdx.x % ROW_THREADS * WIDTH;
#pragma unroll
    for (int i = 0; i < COPIES; ++i) {
        const float *const row = from + d + (long long)min(first + i / ROW_COPIES * COPY_ROWS, last_row) * dim;
        const int j = i % ROW_COPIES * ROW_THREADS * WIDTH;
        if (d + j < dim)
            load<WIDTH>(staged[i], row + j);
        else
            clear<WIDTH>(staged[i]);
    }
}

template <int ROW_STEP, int COLUMN_STEP>
__device__ __forceinline__ void put_tile(float *tile, const float (&staged)[COPIES][WIDTH])
{
    const int first = threadIdx.x / ROW_THREADS, d = threadIdx.x % ROW_THREADS * WIDTH;
    float *const first_to = tile + first * ROW_STEP + d * COLUMN_STEP;
#pragma unroll
    for (int i = 0; i < COPIES; ++i) {
        float *const to =
            first_to + i / ROW_COPIES * COPY_ROWS * ROW_STEP + i % ROW_COPIES * ROW_THREADS * WIDTH * COLUMN_STEP;
        if constexpr (COLUMN_STEP == 1) {
            move<WIDTH>(to, staged[i]);
        } else {
#pragma unroll
            for (int j = 0; j < WIDTH; ++j)
                to[j * COLUMN_STEP] = staged[i][j];
        }
    }
}
#endif
#endif

__device__ __forceinline__ void shrink(float (&out)[THREAD_D], float &sum, float factor)
{
    sum *= factor;
#pragma unroll
    for (int n = 0; n < THREAD_D; ++n)
        out[n] *= factor;
}

// Turn scores into weights relative to the largest score so far, and shrink what was summed up with an earlier one.
__device__ __forceinline__ void weigh(float (&s)[THREAD_Q][THREAD_K], float (&out)[THREAD_Q][THREAD_D], float (&top)[THREAD_Q],
                                      float (&sum)[THREAD_Q])
{
    float before[THREAD_Q];
#pragma unroll
    for (int m = 0; m < THREAD_Q; ++m) {
        before[m] = top[m];
#pragma unroll
        for (int n = 0; n < THREAD_K; ++n)
            top[m] = fmaxf(top[m], s[m][n]);
    }
#pragma unroll
    for (int lanes = 1; lanes < LANES_K; lanes *= 2)
#pragma unroll
        for (int m = 0; m < THREAD_Q; ++m)
            top[m] = fmaxf(top[m], __shfl_xor_sync(FULL_WARP, top[m], lanes));
#if SKIP_RESCALE
    bool grown = false;
#pragma unroll
    for (int m = 0; m < THREAD_Q; ++m)
        grown = grown || before[m] < top[m];
    if (__any_sync(FULL_WARP, grown)) {
#pragma unroll
        for (int m = 0; m < THREAD_Q; ++m)
            shrink(out[m], sum[m], exp2f(before[m] - top[m]));
    }
#else
#pragma unroll
    for (int m = 0; m < THREAD_Q; ++m)
        shrink(out[m], sum[m], exp2f(before[m] - top[m]));
#endif
#pragma unroll
    for (int m = 0; m < THREAD_Q; ++m)
#pragma unroll
        for (int n = 0; n < THREAD_K; ++n) {
            s[m][n] = exp2f(s[m][n] - top[m]);
            sum[m] += s[m][n];
        }
}

#if WARPS_K > 1 || SPLIT_K > 1
// What a thread has summed up, to memory shared with those that take the same rows and columns.
__device__ __forceinline__ void give(float *to, const float (&out)[THREAD_Q][THREAD_D], const float (&top)[THREAD_Q],
                                     const float (&sum)[THREAD_Q])
{
#pragma unroll
    for (int m = 0; m < THREAD_Q; ++m) {
#pragma unroll
        for (int n = 0; n < THREAD_D; ++n)
            to[(m * (THREAD_D + 2) + n) * SHARERS] = out[m][n];
        to[(m * (THREAD_D + 2) + THREAD_D) * SHARERS] = top[m];
        to[(m * (THREAD_D + 2) + THREAD_D + 1) * SHARERS] = sum[m];
    }
}

// Add what another one has given: both relative to the larger score.
__device__ __forceinline__ void take(const float *from, float (&out)[THREAD_Q][THREAD_D], float (&top)[THREAD_Q],
                                     float (&sum)[THREAD_Q])
{
#pragma unroll
    for (int m = 0; m < THREAD_Q; ++m) {
        const float other = from[(m * (THREAD_D + 2) + THREAD_D) * SHARERS], larger = fmaxf(top[m], other);
        const float factor = exp2f(top[m] - larger), factor_other = exp2f(other - larger);
#pragma unroll
        for (int n = 0; n < THREAD_D; ++n)
            out[m][n] = out[m][n] * factor + from[(m * (THREAD_D + 2) + n) * SHARERS] * factor_other;
        sum[m] = sum[m] * factor + from[(m * (THREAD_D + 2) + THREAD_D + 1) * SHARERS] * factor_other;
        top[m] = larger;
    }
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
    attention(const float *Q, const float *K, const float *V, float *O, int heads, int kv_heads, int queries, int keys, int dim,
              int causal, void *workspace)
{
    // Which rows of which head.
#if PACK_HEADS
    const int rows = heads / kv_heads * queries;
#else
    const int rows = queries;
#endif
    const int tiles_q = (rows + BLOCK_Q - 1) / BLOCK_Q;
#if HEADS_FIRST
    const int all_heads = gridDim.x / tiles_q;
    const int head = blockIdx.x % all_heads, tile_q = blockIdx.x / all_heads;
#else
    const int head = blockIdx.x / tiles_q, tile_q = blockIdx.x % tiles_q;
#endif
#if REVERSE
    const int block_row = (tiles_q - 1 - tile_q) * BLOCK_Q;
#else
    const int block_row = tile_q * BLOCK_Q;
#endif
#if PACK_HEADS
    const int kv_head = head;
#else
    const int kv_head = head / (heads / kv_heads);
#endif
    const float *const head_q = Q + (long long)head * rows * dim;
    const float *const head_k = K + (long long)kv_head * keys * dim;
    const float *const head_v = V + (long long)kv_head * keys * dim;

    // Which part of a tile: the thread's first row, key and column.
    const int thread = threadIdx.x, lane = thread % 32;
    const int warp = __shfl_sync(FULL_WARP, thread / 32, 0);  // as before, but known to be the same for all lanes
    const int warp_row = warp / WARPS_K * WARP_Q, row = warp_row + lane / LANES_K * STEP_Q;
    const int warp_key = warp % WARPS_K * WARP_K, key = warp_key + lane % LANES_K * STEP_K;
    const int column = lane % LANES_K * STEP_D;

    // Which keys: past `seen_by_warp` none of the warp's rows sees any, up to `seen_by_rows` all of them do.
    const int first_row = min(block_row + warp_row, rows - 1), last_row = min(block_row + warp_row + WARP_Q, rows) - 1;
    const int seen_by_warp = seen_by_any(first_row, max(first_row, last_row), queries, keys, causal);
    const int seen_by_rows = seen_by_all(first_row, max(first_row, last_row), queries, keys, causal);
    const int seen_by_block = seen_by_any(block_row, min(block_row + BLOCK_Q, rows) - 1, queries, keys, causal);
    const int tiles_k = (seen_by_block + BLOCK_K - 1) / BLOCK_K;
#if SPLIT_K > 1
    const int part_tiles = (tiles_k + SPLIT_K - 1) / SPLIT_K;
    const int tile_begin = min(tiles_k, (int)blockIdx.z * part_tiles), tile_end = min(tiles_k, tile_begin + part_tiles);
#else
    const int tile_begin = 0, tile_end = tiles_k;
#endif

    const float scale = 1.44269504f / sqrtf((float)dim);  // with log2(e): weights are powers of two
    float out[THREAD_Q][THREAD_D] = {}, top[THREAD_Q], sum[THREAD_Q];
#pragma unroll
    for (int m = 0; m < THREAD_Q; ++m) {
        top[m] = LOWEST;
        sum[m] = 0.0f;
    }

#if SHARED
#if DYNAMIC_SMEM
    extern __shared__ float4 shared[];
#else
#if P_PARTS > 0
    constexpr int TILES = Q_TILE + BUFFERS * (K_TILE + V_TILE) + THREADS / 32 * P_TILE;
#else
    constexpr int TILES = Q_TILE + BUFFERS * (K_TILE + V_TILE);
#endif
#if WARPS_K > 1
    __shared__ float4 shared[(TILES < SUMS ? SUMS : TILES) / 4];
#else
    __shared__ float4 shared[TILES / 4];
#endif
#endif
    float *const whole_q = reinterpret_cast<float *>(shared);
    float *const tiles_of_k = whole_q + Q_TILE;
    float *const tiles_of_v = tiles_of_k + BUFFERS * K_TILE;
#if P_PARTS > 0 && TRANSPOSE_Q
    float *const my_p = tiles_of_v + BUFFERS * V_TILE + warp * P_TILE + lane / LANES_K * STEP_Q;
#elif P_PARTS > 0
    float *const my_p = tiles_of_v + BUFFERS * V_TILE + warp * P_TILE + lane / LANES_K * STEP_Q * P_STRIDE;
#endif

    // Q's tile, scaled. Rows past the last one repeat it: they are never stored.
    for (unsigned vector = thread; vector < BLOCK_Q * BLOCK_D / WIDTH; vector += THREADS) {
        const int r = vector / (BLOCK_D / WIDTH), d = vector % (BLOCK_D / WIDTH) * WIDTH;
        alignas(16) float q[WIDTH];
        if (d < dim)
            load<WIDTH>(q, head_q + (min(block_row + r, rows - 1) * dim + d));
        else
            clear<WIDTH>(q);
#pragma unroll
        for (int j = 0; j < WIDTH; ++j)
            q[j] *= scale;
#if TRANSPOSE_Q
#pragma unroll
        for (int j = 0; j < WIDTH; ++j)
            whole_q[(d + j) * Q_STRIDE + r] = q[j];
#else
        move<WIDTH>(whole_q + r * Q_STRIDE + d, q);
#endif
    }

#if TRANSPOSE_Q
    const float *const my_q = whole_q + row;
#else
    const float *const my_q = whole_q + row * Q_STRIDE;
#endif
#if !ASYNC_COPY
    alignas(16) float staged[COPIES][WIDTH];
#endif

    // What is in flight before the first tile is computed.
#if ASYNC_COPY && STAGES > 1
    int filling = 0, computing = 0;  // buffers
    for (int tile = tile_begin; tile < tile_begin + STAGES - 1; ++tile) {
        if (tile < tile_end) {
            const int key_tile = tile * BLOCK_K, last_key = keys - 1 - key_tile;
            copy_tile<K_ROW_STEP, K_COLUMN_STEP>(tiles_of_k + filling * K_TILE, head_k + key_tile * dim, last_key, dim);
            copy_tile<BLOCK_D, 1>(tiles_of_v + filling * V_TILE, head_v + key_tile * dim, last_key, dim);
        }
        __pipeline_commit();
        ++filling;
    }
#elif ASYNC_COPY
    if (tile_begin < tile_end) {
        const int key_tile = tile_begin * BLOCK_K;
        copy_tile<K_ROW_STEP, K_COLUMN_STEP>(tiles_of_k, head_k + key_tile * dim, keys - 1 - key_tile, dim);
    }
    __pipeline_commit();
#elif STAGES == 2
    if (tile_begin < tile_end) {
        const int key_tile = tile_begin * BLOCK_K;
        fetch_tile(staged, head_k + key_tile * dim, keys - 1 - key_tile, dim);
        put_tile<K_ROW_STEP, K_COLUMN_STEP>(tiles_of_k, staged);
    }
#endif
#endif

    for (int tile = tile_begin; tile < tile_end; ++tile) {
        const int key_tile = tile * BLOCK_K;
        const bool sees = key_tile + warp_key < seen_by_warp;
#if SHARED
        const int last_key = keys - 1 - key_tile;
#if ASYNC_COPY && STAGES == 1
        __pipeline_wait_prior(0);  // the tile of K has arrived
        __syncthreads();           // for all threads, and nobody reads the last tile of V any more
        copy_tile<BLOCK_D, 1>(tiles_of_v, head_v + key_tile * dim, last_key, dim);
        __pipeline_commit();
#elif ASYNC_COPY
        __pipeline_wait_prior(STAGES - 2);  // the tiles to compute have arrived
        __syncthreads();                    // for all threads, and nobody reads the buffers to fill any more
        if (tile + STAGES - 1 < tile_end) {
            const int key_next = key_tile + (STAGES - 1) * BLOCK_K, last_next = keys - 1 - key_next;
            copy_tile<K_ROW_STEP, K_COLUMN_STEP>(tiles_of_k + filling * K_TILE, head_k + key_next * dim, last_next, dim);
            copy_tile<BLOCK_D, 1>(tiles_of_v + filling * V_TILE, head_v + key_next * dim, last_next, dim);
            filling = filling + 1 < STAGES ? filling + 1 : 0;
        }
        __pipeline_commit();
#elif STAGES == 1
        __syncthreads();  // nobody reads the last tiles any more
        fetch_tile(staged, head_k + key_tile * dim, last_key, dim);
        put_tile<K_ROW_STEP, K_COLUMN_STEP>(tiles_of_k, staged);
        fetch_tile(staged, head_v + key_tile * dim, last_key, dim);
        put_tile<BLOCK_D, 1>(tiles_of_v, staged);
        __syncthreads();
#else
        __syncthreads();  // the tile of K is there, and nobody reads the last one of V any more
        fetch_tile(staged, head_v + key_tile * dim, last_key, dim);
#endif
#if ASYNC_COPY && STAGES > 1
        const float *const my_k = tiles_of_k + computing * K_TILE + key * K_ROW_STEP;
        const float *const my_v = tiles_of_v + computing * V_TILE + warp_key * BLOCK_D + column;
        computing = computing + 1 < STAGES ? computing + 1 : 0;
#else
        const float *const my_k = tiles_of_k + key * K_ROW_STEP;
        const float *const my_v = tiles_of_v + warp_key * BLOCK_D + column;
#endif
#endif

        alignas(16) float s[THREAD_Q][THREAD_K];
        if (sees) {
            // Scores.
#pragma unroll
            for (int m = 0; m < THREAD_Q; ++m)
                clear<THREAD_K>(s[m]);
#if SHARED
#if PRAGMA_UNROLL
#pragma unroll UNROLL_SUM
#endif
            for (int d = 0; d < BLOCK_D; d += VECTOR) {
                alignas(16) float q[THREAD_Q][VECTOR], k[THREAD_K][VECTOR];
#if TRANSPOSE_Q
                read_columns<THREAD_Q, STEP_Q, LANES_Q>(q, my_q + d * Q_STRIDE, Q_STRIDE);
#else
                read_rows<THREAD_Q, STEP_Q, LANES_Q>(q, my_q + d, Q_STRIDE);
#endif
#if TRANSPOSE_K
                read_columns<THREAD_K, STEP_K, LANES_K>(k, my_k + d * K_STRIDE, K_STRIDE);
#else
                read_rows<THREAD_K, STEP_K, LANES_K>(k, my_k + d, K_STRIDE);
#endif
                multiply(s, q, k);
            }
#else
#if PRAGMA_UNROLL
#pragma unroll UNROLL_SUM
#endif
            for (int d = 0; d < dim; d += WIDTH) {
                alignas(16) float q[THREAD_Q][WIDTH], k[THREAD_K][WIDTH];
#pragma unroll
                for (int m = 0; m < THREAD_Q; ++m)
                    load<WIDTH>(q[m], head_q + (min(block_row + row + m * LANES_Q, rows - 1) * dim + d));
#pragma unroll
                for (int n = 0; n < THREAD_K; ++n)
                    load<WIDTH>(k[n], head_k + (min(key_tile + key + n * LANES_K, keys - 1) * dim + d));
                multiply(s, q, k);
            }
#pragma unroll
            for (int m = 0; m < THREAD_Q; ++m)
#pragma unroll
                for (int n = 0; n < THREAD_K; ++n)
                    s[m][n] *= scale;
#endif
            if (key_tile + warp_key + WARP_K > seen_by_rows) {
#pragma unroll
                for (int m = 0; m < THREAD_Q; ++m) {
                    const int this_row = block_row + row + offset<STEP_Q, LANES_Q>(m);
                    const int seen = seen_by_any(this_row, this_row, queries, keys, causal);
#pragma unroll
                    for (int n = 0; n < THREAD_K; ++n)
                        if (key_tile + key + offset<STEP_K, LANES_K>(n) >= seen)
                            s[m][n] = LOWEST;
                }
            }
            weigh(s, out, top, sum);
#if SHARED && ASYNC_COPY && STAGES == 1
        }
        __pipeline_wait_prior(0);  // the tile of V has arrived
        __syncthreads();           // for all threads, and nobody reads the tile of K any more
        if (tile + 1 < tile_end) {
            const int key_next = key_tile + BLOCK_K;
            copy_tile<K_ROW_STEP, K_COLUMN_STEP>(tiles_of_k, head_k + key_next * dim, keys - 1 - key_next, dim);
        }
        __pipeline_commit();
        if (sees) {
#elif SHARED && !ASYNC_COPY && STAGES == 2
        }
        put_tile<BLOCK_D, 1>(tiles_of_v, staged);
        __syncthreads();  // the tile of V is there, and nobody reads the one of K any more
        if (tile + 1 < tile_end) {
            const int key_next = key_tile + BLOCK_K;
            fetch_tile(staged, head_k + key_next * dim, keys - 1 - key_next, dim);
        }
        if (sees) {
#endif
            // Weights times values.
#if SHARED && P_PARTS > 0
#pragma unroll
            for (int part = 0; part < P_PARTS; ++part) {
                constexpr int COLUMNS = THREAD_K / P_PARTS;
#if P_PARTS > 1
                if (part > 0)
                    __syncwarp();  // the part before has been read
#endif
#if TRANSPOSE_Q
                float *const to = my_p + lane % LANES_K * STEP_K * P_STRIDE;
#pragma unroll
                for (int n = 0; n < COLUMNS; ++n)
#pragma unroll
                    for (int m = 0; m < THREAD_Q; m += STEP_Q) {
                        alignas(16) float p[STEP_Q];
#pragma unroll
                        for (int j = 0; j < STEP_Q; ++j)
                            p[j] = s[m + j][part * COLUMNS + n];
                        move<STEP_Q>(to + offset<STEP_K, LANES_K>(n) * P_STRIDE + m * LANES_Q, p);
                    }
#else
                float *const to = my_p + lane % LANES_K * STEP_K;
#pragma unroll
                for (int m = 0; m < THREAD_Q; ++m)
#pragma unroll
                    for (int n = 0; n < COLUMNS; n += STEP_K)
                        move<STEP_K>(to + offset<STEP_Q, LANES_Q>(m) * P_STRIDE + n * LANES_K, &s[m][part * COLUMNS + n]);
#endif
                __syncwarp();
#if PRAGMA_UNROLL
#pragma unroll UNROLL_SUM
#endif
                for (int k = 0; k < PART_K; k += VECTOR) {
                    alignas(16) float p[THREAD_Q][VECTOR], v[THREAD_D][VECTOR];
#if TRANSPOSE_Q
                    read_columns<THREAD_Q, STEP_Q, LANES_Q>(p, my_p + k * P_STRIDE, P_STRIDE);
#else
                    read_rows<THREAD_Q, STEP_Q, LANES_Q>(p, my_p + k, P_STRIDE);
#endif
                    read_columns<THREAD_D, STEP_D, LANES_K>(v, my_v + (part * PART_K + k) * BLOCK_D, BLOCK_D);
                    multiply(out, p, v);
                }
            }
#else
#pragma unroll
            for (int n = 0; n < THREAD_K; ++n) {
#if PRAGMA_UNROLL
#pragma unroll UNROLL_SUM
#endif
                for (int owner = 0; owner < LANES_K; ++owner) {
                    const int k = offset<STEP_K, LANES_K>(n) + owner * STEP_K;
                    alignas(16) float p[THREAD_Q][1], v[THREAD_D][1];
#pragma unroll
                    for (int m = 0; m < THREAD_Q; ++m)
                        p[m][0] = __shfl_sync(FULL_WARP, s[m][n], owner, LANES_K);
#if SHARED
                    read_columns<THREAD_D, STEP_D, LANES_K>(v, my_v + k * BLOCK_D, BLOCK_D);
#else
                    const float *const from = head_v + min(key_tile + warp_key + k, keys - 1) * dim;
#pragma unroll
                    for (int n_d = 0; n_d < THREAD_D; n_d += STEP_D) {
                        const int d = column + n_d * LANES_K;
                        if (d < dim)
                            load<WIDTH>(v[n_d], from + d);
                        else
                            clear<WIDTH>(v[n_d]);
                    }
#endif
                    multiply(out, p, v);
                }
            }
#endif
        }
#if SHARED && !ASYNC_COPY && STAGES == 2
        if (tile + 1 < tile_end)
            put_tile<K_ROW_STEP, K_COLUMN_STEP>(tiles_of_k, staged);
#endif
    }

#if WARPS_K > 1
    // The first of the warps that share rows adds up what they have found, in their order.
#if !SHARED
    __shared__ float4 shared[SUMS / 4];
#endif
    float *const given = reinterpret_cast<float *>(shared) + warp / WARPS_K * 32 + lane;
#pragma unroll 1
    for (int w = 1; w < WARPS_K; ++w) {
        __syncthreads();
        if (warp % WARPS_K == w)
            give(given, out, top, sum);
        __syncthreads();
        if (warp % WARPS_K == 0)
            take(given, out, top, sum);
    }
#endif
#if WARPS_K > 1 && SPLIT_K == 1
    if (warp % WARPS_K > 0)
        return;
#endif

#if SPLIT_K > 1
    // The last block to finish adds up the parts, in their order, so that the result is the same every time.
    unsigned *const finished = static_cast<unsigned *>(workspace) + blockIdx.x;
    float *const parts = static_cast<float *>(workspace) + (gridDim.x + 3) / 4 * 4;
    float *const mine = parts + (long long)blockIdx.x * SPLIT_K * SUMS + warp / WARPS_K * 32 + lane;
#if WARPS_K > 1
    if (warp % WARPS_K == 0)
        give(mine + (long long)blockIdx.z * SUMS, out, top, sum);
#else
    give(mine + (long long)blockIdx.z * SUMS, out, top, sum);
#endif
    __threadfence();
    __syncthreads();
    __shared__ bool last;
    if (thread == 0)
        last = atomicAdd(finished, 1u) == SPLIT_K - 1;
    __syncthreads();
#if WARPS_K > 1
    if (!last || warp % WARPS_K > 0)
        return;
#else
    if (!last)
        return;
#endif
    __threadfence();
    if (thread == 0)
        *finished = 0;  // ready for the next launch
#pragma unroll
    for (int m = 0; m < THREAD_Q; ++m) {
        top[m] = LOWEST;
        sum[m] = 0.0f;
        clear<THREAD_D>(out[m]);
    }
#pragma unroll 1
    for (int z = 0; z < SPLIT_K; ++z)
        take(mine + (long long)z * SUMS, out, top, sum);
#endif

#pragma unroll
    for (int m = 0; m < THREAD_Q; ++m) {
#pragma unroll
        for (int lanes = 1; lanes < LANES_K; lanes *= 2)
            sum[m] += __shfl_xor_sync(FULL_WARP, sum[m], lanes);
        const float share = 1.0f / sum[m];
        const int this_row = block_row + row + offset<STEP_Q, LANES_Q>(m);
        if (this_row < rows) {
            float *const to = O + ((long long)head * rows + this_row) * dim;
#pragma unroll
            for (int n = 0; n < THREAD_D; n += STORE_WIDTH) {
                const int d = column + offset<STEP_D, LANES_K>(n);
                alignas(16) float o[STORE_WIDTH];
#pragma unroll
                for (int j = 0; j < STORE_WIDTH; ++j)
                    o[j] = out[m][n + j] * share;
                if (d < dim)
                    move<STORE_WIDTH>(to + d, o);
            }
        }
    }
}
