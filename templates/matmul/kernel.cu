// C = A B in fp32, all row-major: A is M x K, B is K x N, C is M x N; any M, N, K >= 1.
//
// A thread block computes a BLOCK_M x BLOCK_N tile of C; a warp, laid out as LANES_M x LANES_N lanes, a part of it; a thread
// THREAD_M x THREAD_N elements, held in registers. SPLIT_K blocks may share a tile, each summing a part of K.

// Slots: one knob a line, with its default. The `#if`s below choose among paths by these alone.
#define BLOCK_M 128         // rows of C per thread block
#define BLOCK_N 128         // columns of C per thread block
#define BLOCK_K 16          // depth of the tiles in shared memory
#define THREAD_M 8          // rows of C per thread
#define THREAD_N 8          // columns of C per thread
#define LANES_N 8           // lanes of a warp along N
#define WIDTH_A 4           // floats per access to A in global memory
#define WIDTH_B 4           // floats per access to B and C in global memory
#define COLUMN_ORDER 0      // walk the tiles of C down the columns
#define GROUP 1             // tiles per strip of that walk
#define SHARED 1            // stage tiles of A and B in shared memory
#define TRANSPOSE_A 1       // keep A's tile k-major
#define PAD 4               // unused floats behind each row of A's tile, against bank conflicts
#define ASYNC_COPY 0        // copy to shared memory in the background
#define READ_ONLY 0         // load through the read-only cache
#define DYNAMIC_SMEM 0      // shared memory sized at launch
#define STAGES 2            // tiles in flight
#define VECTOR_K 1          // values of k per read of A's tile
#define FRAGMENT_BUFFERS 1  // 2: read the next k while computing this one
#define PRAGMA_UNROLL 1     // say how far to unroll the loop over k
#define UNROLL 8            // how far
#define FMA_ORDER 0         // 0: along rows, 1: rows there and back, 2: columns there and back
#define SPLIT_K 1           // blocks that share one tile of C
#define MIN_BLOCKS 1        // resident blocks to leave registers for

#if ASYNC_COPY
#include <cuda_pipeline_primitives.h>
#endif

constexpr int LANES_M = 32 / LANES_N;
constexpr int WARPS_N = BLOCK_N / (THREAD_N * LANES_N);
constexpr int THREADS = (BLOCK_M / THREAD_M) * (BLOCK_N / THREAD_N);

// Neighbouring rows and columns that a thread reads at once; its other rows and columns are a warp's width further on.
#if SHARED
constexpr int STEP_N = THREAD_N < 4 ? THREAD_N : 4;
#else
constexpr int STEP_N = WIDTH_B;
#endif
#if SHARED && TRANSPOSE_A
constexpr int STEP_M = THREAD_M < 4 ? THREAD_M : 4;
#else
constexpr int STEP_M = 1;
#endif
#if PRAGMA_UNROLL
constexpr int UNROLL_K = UNROLL;
#endif
constexpr int STORE_WIDTH = WIDTH_B < STEP_N ? WIDTH_B : STEP_N;

#if SHARED
#if TRANSPOSE_A
constexpr int A_STRIDE = BLOCK_M + PAD;
constexpr int A_TILE = BLOCK_K * A_STRIDE;
#else
constexpr int A_STRIDE = BLOCK_K + PAD;
constexpr int A_TILE = BLOCK_M * A_STRIDE;
#endif
constexpr int B_TILE = BLOCK_K * BLOCK_N;
constexpr int A_COPIES = BLOCK_M * BLOCK_K / (WIDTH_A * THREADS);  // vectors of A's tile that a thread copies
constexpr int B_COPIES = BLOCK_N * BLOCK_K / (WIDTH_B * THREADS);
#endif

// Copy WIDTH floats in one access; both addresses are aligned to it.
template <int WIDTH>
__device__ __forceinline__ void move(float *to, const float *from)
{
    if constexpr (WIDTH == 4)
        *reinterpret_cast<float4 *>(to) = *reinterpret_cast<const float4 *>(from);
    else if constexpr (WIDTH == 2)
        *reinterpret_cast<float2 *>(to) = *reinterpret_cast<const float2 *>(from);
    else
        *to = *from;
}

#if SHARED
template <int WIDTH>
__device__ __forceinline__ void clear(float *to)
{
#pragma unroll
    for (int i = 0; i < WIDTH; ++i)
        to[i] = 0.0f;
}
#endif

#if !SHARED || !ASYNC_COPY
// Load WIDTH floats in one access, from global memory that nobody writes meanwhile.
template <int WIDTH>
__device__ __forceinline__ void load(float *to, const float *from)
{
#if READ_ONLY
    if constexpr (WIDTH == 4)
        *reinterpret_cast<float4 *>(to) = __ldg(reinterpret_cast<const float4 *>(from));
    else if constexpr (WIDTH == 2)
        *reinterpret_cast<float2 *>(to) = __ldg(reinterpret_cast<const float2 *>(from));
    else
        *to = __ldg(from);
#else
    move<WIDTH>(to, from);
#endif
}
#endif

#if SHARED
// What a thread needs of the tiles for VECTOR_K values of k.
struct Fragments {
    alignas(16) float a[THREAD_M][VECTOR_K];
    alignas(16) float b[VECTOR_K][THREAD_N];
};

__device__ __forceinline__ void read_fragments(Fragments &f, const float *tile_a, const float *tile_b, int k)
{
#if TRANSPOSE_A
#pragma unroll
    for (int m = 0; m < THREAD_M; m += STEP_M)
        move<STEP_M>(&f.a[m][0], tile_a + k * A_STRIDE + m * LANES_M);
#else
#pragma unroll
    for (int m = 0; m < THREAD_M; ++m)
        move<VECTOR_K>(f.a[m], tile_a + m * LANES_M * A_STRIDE + k);
#endif
#pragma unroll
    for (int i = 0; i < VECTOR_K; ++i)
#pragma unroll
        for (int n = 0; n < THREAD_N; n += STEP_N)
            move<STEP_N>(&f.b[i][n], tile_b + (k + i) * BLOCK_N + n * LANES_N);
}

__device__ __forceinline__ void multiply(float (&sum)[THREAD_M][THREAD_N], const Fragments &f)
{
#pragma unroll
    for (int i = 0; i < VECTOR_K; ++i)
#if FMA_ORDER == 0
#pragma unroll
        for (int m = 0; m < THREAD_M; ++m)
#pragma unroll
            for (int n = 0; n < THREAD_N; ++n)
                sum[m][n] += f.a[m][i] * f.b[i][n];
#elif FMA_ORDER == 1
#pragma unroll
        for (int m = 0; m < THREAD_M; ++m)
#pragma unroll
            for (int j = 0; j < THREAD_N; ++j) {
                const int n = m % 2 ? THREAD_N - 1 - j : j;  // there and back: each turn reuses an operand
                sum[m][n] += f.a[m][i] * f.b[i][n];
            }
#else
#pragma unroll
        for (int n = 0; n < THREAD_N; ++n)
#pragma unroll
            for (int j = 0; j < THREAD_M; ++j) {
                const int m = n % 2 ? THREAD_M - 1 - j : j;  // there and back: each turn reuses an operand
                sum[m][n] += f.a[m][i] * f.b[i][n];
            }
#endif
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
    matmul(const float *A, const float *B, float *C, int M, int N, int K, void *workspace)
{
    // Which tile of C.
    const int tiles_m = (M + BLOCK_M - 1) / BLOCK_M;
    const int tiles_n = (N + BLOCK_N - 1) / BLOCK_N;
    const int tile = blockIdx.x;
#if GROUP == 1
#if COLUMN_ORDER
    const int tile_m = tile % tiles_m, tile_n = tile / tiles_m;
#else
    const int tile_m = tile / tiles_n, tile_n = tile % tiles_n;
#endif
#elif COLUMN_ORDER
    const int strip = tile / (GROUP * tiles_m), within = tile % (GROUP * tiles_m);
    const int width = min(GROUP, tiles_n - strip * GROUP);
    const int tile_m = within / width, tile_n = strip * GROUP + within % width;
#else
    const int strip = tile / (GROUP * tiles_n), within = tile % (GROUP * tiles_n);
    const int height = min(GROUP, tiles_m - strip * GROUP);
    const int tile_m = strip * GROUP + within % height, tile_n = within / height;
#endif
    const int block_row = tile_m * BLOCK_M, block_column = tile_n * BLOCK_N;

    // Which part of the tile: the thread's first row and column; the others are m * LANES_M and n * LANES_N further.
    const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
    const int row = warp / WARPS_N * (THREAD_M * LANES_M) + lane / LANES_N * STEP_M;
    const int column = warp % WARPS_N * (THREAD_N * LANES_N) + lane % LANES_N * STEP_N;

    // Which part of K.
#if SHARED
    constexpr int DEPTH = BLOCK_K;
#else
    constexpr int DEPTH = WIDTH_A;
#endif
#if SPLIT_K > 1
    const int part = ((K + DEPTH - 1) / DEPTH + SPLIT_K - 1) / SPLIT_K * DEPTH;
    const int k_begin = min(K, (int)blockIdx.z * part), k_end = min(K, k_begin + part);
#else
    const int k_begin = 0, k_end = K;
#endif

    float sum[THREAD_M][THREAD_N] = {};

#if SHARED
#if DYNAMIC_SMEM
    extern __shared__ float4 shared[];
#else
    __shared__ float4 shared[STAGES * (A_TILE + B_TILE) / 4];
#endif
    float *const tiles_a = reinterpret_cast<float *>(shared);
    float *const tiles_b = tiles_a + STAGES * A_TILE;

    // Rows and columns outside the matrices are replaced by the last ones inside: their products are never stored.
    const float *const block_a = A + (long long)block_row * K;
    const float *const block_b = B + block_column;
    const int last_row = M - 1 - block_row, last_column = N - WIDTH_B - block_column;

    // Step s copies tile s and computes tile s - LAG.
#if ASYNC_COPY
    constexpr int LAG = STAGES - 1;
#else
    constexpr int LAG = 1;
    alignas(16) float staged_a[A_COPIES][WIDTH_A], staged_b[B_COPIES][WIDTH_B];
#endif
    const int steps = (k_end - k_begin + BLOCK_K - 1) / BLOCK_K;
    int filling = 0, computing = 0;  // buffers
#if FRAGMENT_BUFFERS == 2
    Fragments now = {};
#endif
    for (int step = 0; step < steps + LAG; ++step) {
        const int k_tile = k_begin + step * BLOCK_K;
#if ASYNC_COPY
        if (step >= LAG) {
            __pipeline_wait_prior(STAGES - 2);  // the tile to compute has arrived
            __syncthreads();                    // for all threads, and nobody reads the buffer to fill any more
        }
        if (step < steps) {
            float *const tile_a = tiles_a + filling * A_TILE;
            float *const tile_b = tiles_b + filling * B_TILE;
#pragma unroll
            for (int i = 0; i < A_COPIES; ++i) {
                const int vector = i * THREADS + thread;
                const int m = vector / (BLOCK_K / WIDTH_A), k = vector % (BLOCK_K / WIDTH_A) * WIDTH_A;
#if TRANSPOSE_A
                float *const to = tile_a + k * A_STRIDE + m;
#else
                float *const to = tile_a + m * A_STRIDE + k;
#endif
                const float *const from = block_a + k_tile + (min(m, last_row) * K + k);
                if (k_tile + k < k_end)
                    __pipeline_memcpy_async(to, from, 4 * WIDTH_A);
                else
                    clear<WIDTH_A>(to);
            }
#pragma unroll
            for (int i = 0; i < B_COPIES; ++i) {
                const int vector = i * THREADS + thread;
                const int k = vector / (BLOCK_N / WIDTH_B), n = vector % (BLOCK_N / WIDTH_B) * WIDTH_B;
                float *const to = tile_b + k * BLOCK_N + n;
                const float *const from = block_b + (long long)k_tile * N + (k * N + min(n, last_column));
                if (k_tile + k < k_end)
                    __pipeline_memcpy_async(to, from, 4 * WIDTH_B);
                else
                    clear<WIDTH_B>(to);
            }
            filling = filling + 1 < STAGES ? filling + 1 : 0;
        }
        __pipeline_commit();
#else
        if (step < steps) {
#pragma unroll
            for (int i = 0; i < A_COPIES; ++i) {
                const int vector = i * THREADS + thread;
                const int m = vector / (BLOCK_K / WIDTH_A), k = vector % (BLOCK_K / WIDTH_A) * WIDTH_A;
                if (k_tile + k < k_end)
                    load<WIDTH_A>(staged_a[i], block_a + k_tile + (min(m, last_row) * K + k));
                else
                    clear<WIDTH_A>(staged_a[i]);
            }
#pragma unroll
            for (int i = 0; i < B_COPIES; ++i) {
                const int vector = i * THREADS + thread;
                const int k = vector / (BLOCK_N / WIDTH_B), n = vector % (BLOCK_N / WIDTH_B) * WIDTH_B;
                if (k_tile + k < k_end)
                    load<WIDTH_B>(staged_b[i], block_b + (long long)k_tile * N + (k * N + min(n, last_column)));
                else
                    clear<WIDTH_B>(staged_b[i]);
            }
        }
#endif
        if (step >= LAG) {
#if TRANSPOSE_A
            const float *const tile_a = tiles_a + computing * A_TILE + row;
#else
            const float *const tile_a = tiles_a + computing * A_TILE + row * A_STRIDE;
#endif
            const float *const tile_b = tiles_b + computing * B_TILE + column;
#if FRAGMENT_BUFFERS == 2
            Fragments next;
            read_fragments(next, tile_a, tile_b, 0);
            multiply(sum, now);  // the last values of k of the tile before, while these arrive
#if PRAGMA_UNROLL
#pragma unroll UNROLL_K
#endif
            for (int k = VECTOR_K; k < BLOCK_K; k += VECTOR_K) {
                now = next;
                read_fragments(next, tile_a, tile_b, k);
                multiply(sum, now);
            }
            now = next;
#else
#if PRAGMA_UNROLL
#pragma unroll UNROLL_K
#endif
            for (int k = 0; k < BLOCK_K; k += VECTOR_K) {
                Fragments now;
                read_fragments(now, tile_a, tile_b, k);
                multiply(sum, now);
            }
#endif
            computing = computing + 1 < STAGES ? computing + 1 : 0;
        }
#if !ASYNC_COPY
#if STAGES == 1
        __syncthreads();  // nobody reads the buffer any more
#endif
        if (step < steps) {
            float *const tile_a = tiles_a + filling * A_TILE;
            float *const tile_b = tiles_b + filling * B_TILE;
#pragma unroll
            for (int i = 0; i < A_COPIES; ++i) {
                const int vector = i * THREADS + thread;
                const int m = vector / (BLOCK_K / WIDTH_A), k = vector % (BLOCK_K / WIDTH_A) * WIDTH_A;
#if TRANSPOSE_A
#pragma unroll
                for (int j = 0; j < WIDTH_A; ++j)
                    tile_a[(k + j) * A_STRIDE + m] = staged_a[i][j];
#else
                move<WIDTH_A>(tile_a + m * A_STRIDE + k, staged_a[i]);
#endif
            }
#pragma unroll
            for (int i = 0; i < B_COPIES; ++i)
                move<WIDTH_B>(tile_b + (i * THREADS + thread) * WIDTH_B, staged_b[i]);
            filling = filling + 1 < STAGES ? filling + 1 : 0;
        }
        __syncthreads();
#endif
    }
#if FRAGMENT_BUFFERS == 2
    multiply(sum, now);
#endif
#else
    // Straight from global memory. Rows and columns outside the matrices are replaced by the last ones inside.
#if PRAGMA_UNROLL
#pragma unroll UNROLL_K
#endif
    for (int k = k_begin; k < k_end; k += WIDTH_A) {
        alignas(16) float a[THREAD_M][WIDTH_A], b[WIDTH_A][THREAD_N];
#pragma unroll
        for (int m = 0; m < THREAD_M; ++m)
            load<WIDTH_A>(a[m], A + (long long)min(block_row + row + m * LANES_M, M - 1) * K + k);
#pragma unroll
        for (int i = 0; i < WIDTH_A; ++i)
#pragma unroll
            for (int n = 0; n < THREAD_N; n += STEP_N)
                load<STEP_N>(&b[i][n], B + (long long)(k + i) * N + min(block_column + column + n * LANES_N, N - STEP_N));
#pragma unroll
        for (int i = 0; i < WIDTH_A; ++i)
#pragma unroll
            for (int m = 0; m < THREAD_M; ++m)
#pragma unroll
                for (int n = 0; n < THREAD_N; ++n)
                    sum[m][n] += a[m][i] * b[i][n];
    }
#endif

#if SPLIT_K > 1
    // The last block to finish adds up the parts, in their order, so that the result is the same every time.
    const int tiles = tiles_m * tiles_n;
    unsigned *const finished = static_cast<unsigned *>(workspace) + tile;
    float *const parts = static_cast<float *>(workspace) + (tiles + 3) / 4 * 4;
    const long long part_floats = (long long)tiles * BLOCK_M * BLOCK_N;
    float *const mine = parts + (long long)tile * BLOCK_M * BLOCK_N + thread;
#pragma unroll
    for (int m = 0; m < THREAD_M; ++m)
#pragma unroll
        for (int n = 0; n < THREAD_N; ++n)
            mine[blockIdx.z * part_floats + (m * THREAD_N + n) * THREADS] = sum[m][n];
    __threadfence();
    __syncthreads();
    __shared__ bool last;
    if (thread == 0)
        last = atomicAdd(finished, 1u) == SPLIT_K - 1;
    __syncthreads();
    if (!last)
        return;
    __threadfence();
    if (thread == 0)
        *finished = 0;  // ready for the next launch
#pragma unroll
    for (int m = 0; m < THREAD_M; ++m)
#pragma unroll
        for (int n = 0; n < THREAD_N; ++n)
            sum[m][n] = mine[(m * THREAD_N + n) * THREADS];
#pragma unroll 1
    for (int z = 1; z < SPLIT_K; ++z)
#pragma unroll
        for (int m = 0; m < THREAD_M; ++m)
#pragma unroll
            for (int n = 0; n < THREAD_N; ++n)
                sum[m][n] += mine[z * part_floats + (m * THREAD_N + n) * THREADS];
#endif

#pragma unroll
    for (int m = 0; m < THREAD_M; ++m) {
        const int c_row = block_row + row + m % STEP_M + m / STEP_M * STEP_M * LANES_M;
        if (c_row < M) {
#pragma unroll
            for (int n = 0; n < THREAD_N; n += STORE_WIDTH) {
                const int c_column = block_column + column + n % STEP_N + n / STEP_N * STEP_N * LANES_N;
                if (c_column < N)
                    move<STORE_WIDTH>(C + (long long)c_row * N + c_column, &sum[m][n]);
            }
        }
    }
}
