// y = 2-D convolution (cross-correlation) of x with the filters w in fp32; any shape, stride, padding, dilation and groups.
// NCHW: x is N x C x H x W, w is K x C/groups x R x S, y is N x K x OH x OW. NHWC: N x H x W x C, K x R x S x C/groups,
// N x OH x OW x K.
//
// SHARED: an implicit matrix product per group, filters x output pixels, summed over channels and taps. A thread block computes
// a BLOCK_K x BLOCK_P tile, a warp, laid out as LANES_K x LANES_P lanes, a part of it, a thread THREAD_K x THREAD_P elements,
// held in registers. SPLIT blocks may share a tile, each summing a part. Otherwise, directly from global memory: a thread
// computes a column of THREAD_P output pixels for THREAD_K filters.

// Slots: one knob a line, with its default. The `#if`s below choose among paths by these alone.
#define SHARED 1            // implicit matrix product through shared memory
#define FILTER_SIZE 0       // R = S compiled in
#define FILTER_STEP 1       // stride compiled in with it
#define DEPTHWISE 0         // each filter has a channel of its own
#define CHANNELS_LAST 0     // NHWC (directly, with any filter size: as nhwc says)
#define WALK 0              // 0: as the filters lie in memory, 1: channels, then taps, 2: taps, then channels, 3: 1x1
#define BLOCK_K 128         // filters per thread block
#define BLOCK_P 128         // output pixels per thread block
#define BLOCK_C 8           // depth of the tiles in shared memory
#define THREAD_K 8          // filters per thread
#define THREAD_P 8          // output pixels per thread
#define LANES_P 8           // lanes of a warp along the pixels
#define WIDTH_F 1           // floats per access to the filters
#define WIDTH_X 1           // floats per access to x
#define WIDTH_Y 1           // floats per access to y
#define PIXELS_FIRST 0      // walk the tiles along the pixels
#define SKEW 4              // unused floats behind each row of a tile that is transposed, against bank conflicts
#define ASYNC_COPY 0        // copy to shared memory in the background
#define READ_ONLY 0         // load through the read-only cache
#define DYNAMIC_SMEM 0      // shared memory sized at launch
#define STAGES 2            // tiles in flight
#define FRAGMENT_BUFFERS 1  // 2: read the next row while computing this one
#define PRAGMA_UNROLL 1     // say how far to unroll the loop over a tile's depth (direct: over the channels)
#define UNROLL 8            // how far
#define FMA_ORDER 0         // 0: along the pixels, 1: there and back, 2: filters there and back
#define SPLIT 1             // blocks that share one tile
#define MIN_BLOCKS 1        // resident blocks to leave registers for

#if ASYNC_COPY
#include <cuda_pipeline_primitives.h>
#endif

constexpr int LANES_K = 32 / LANES_P;
#if SHARED
constexpr int WARPS_P = BLOCK_P / (THREAD_P * LANES_P);
constexpr int THREADS = (BLOCK_K / THREAD_K) * (BLOCK_P / THREAD_P);

// Neighbouring filters and pixels that a thread reads at once; its others are a warp's width further on.
constexpr int STEP_K = THREAD_K < 4 ? THREAD_K : 4;
constexpr int STEP_P = THREAD_P < 4 ? THREAD_P : 4;

// Both tiles are stored row by row of the depth, so what lies along the depth in global memory is transposed.
constexpr int F_STRIDE = BLOCK_K + SKEW;
#if CHANNELS_LAST
constexpr int X_STRIDE = BLOCK_P + SKEW;
#else
constexpr int X_STRIDE = BLOCK_P;
#endif
constexpr int F_TILE = BLOCK_C * F_STRIDE;
constexpr int X_TILE = BLOCK_C * X_STRIDE;
constexpr int F_COPIES = BLOCK_K * BLOCK_C / (WIDTH_F * THREADS);  // vectors of the filters' tile that a thread copies
constexpr int X_COPIES = BLOCK_P * BLOCK_C / (WIDTH_X * THREADS);
constexpr int F_STEP = THREADS * WIDTH_F / BLOCK_C;  // filters from one copy to the next
#if CHANNELS_LAST
constexpr int PIXELS = X_COPIES;  // different pixels among a thread's copies
constexpr int P_STEP = THREADS * WIDTH_X / BLOCK_C;
#else
constexpr int PIXELS = BLOCK_P / WIDTH_X > THREADS ? BLOCK_P / WIDTH_X / THREADS : 1;  // different pixels among a thread's copies
constexpr int P_STEP = THREADS * WIDTH_X;
constexpr int C_STEP = BLOCK_P / WIDTH_X > THREADS ? 1 : THREADS * WIDTH_X / BLOCK_P;  // rows from one to the next
#endif
#if WALK == 0
constexpr int TILE_FLOATS = STAGES * (F_TILE + X_TILE) + 4 * BLOCK_C;
#else
constexpr int TILE_FLOATS = STAGES * (F_TILE + X_TILE);
#endif
#else
constexpr int THREADS = BLOCK_P / LANES_P * 32;
#endif
#if PRAGMA_UNROLL
constexpr int UNROLL_C = UNROLL;
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

#if (SHARED && !ASYNC_COPY) || (!SHARED && FILTER_SIZE > 0)
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
// What a thread needs of one row of the tiles.
struct Fragments {
    alignas(16) float f[THREAD_K];
    alignas(16) float x[THREAD_P];
};

__device__ __forceinline__ void read_fragments(Fragments &part, const float *tile_f, const float *tile_x, int c)
{
#pragma unroll
    for (int k = 0; k < THREAD_K; k += STEP_K)
        move<STEP_K>(&part.f[k], tile_f + c * F_STRIDE + k * LANES_K);
#pragma unroll
    for (int p = 0; p < THREAD_P; p += STEP_P)
        move<STEP_P>(&part.x[p], tile_x + c * X_STRIDE + p * LANES_P);
}

__device__ __forceinline__ void multiply(float (&sum)[THREAD_K][THREAD_P], const Fragments &part)
{
#if FMA_ORDER == 0
#pragma unroll
    for (int k = 0; k < THREAD_K; ++k)
#pragma unroll
        for (int p = 0; p < THREAD_P; ++p)
            sum[k][p] += part.f[k] * part.x[p];
#elif FMA_ORDER == 1
#pragma unroll
    for (int k = 0; k < THREAD_K; ++k)
#pragma unroll
        for (int j = 0; j < THREAD_P; ++j) {
            const int p = k % 2 ? THREAD_P - 1 - j : j;  // there and back: each turn reuses an operand
            sum[k][p] += part.f[k] * part.x[p];
        }
#else
#pragma unroll
    for (int p = 0; p < THREAD_P; ++p)
#pragma unroll
        for (int j = 0; j < THREAD_K; ++j) {
            const int k = p % 2 ? THREAD_K - 1 - j : j;  // there and back: each turn reuses an operand
            sum[k][p] += part.f[k] * part.x[p];
        }
#endif
}
#endif

#if SHARED && WALK != 3
// The bits of `outside` that forbid tap (r, s).
__device__ __forceinline__ unsigned tap_bits(int r, int s, int R, int pad)
{
    return pad > 0 ? 1u << r | 1u << (R + s) : 0u;
}
#endif

#if !SHARED && FILTER_SIZE > 0
constexpr int TAPS = FILTER_SIZE * FILTER_SIZE;
constexpr int ROWS = (THREAD_P - 1) * FILTER_STEP + FILTER_SIZE;  // of x, for a column of THREAD_P pixels
#if DEPTHWISE
constexpr int INPUTS = THREAD_K;  // values of x per tap: each filter has its own
#else
constexpr int INPUTS = 1;  // values of x per tap: all filters share it
#endif

// Add what one channel contributes. Each row of x is read once and serves all the output rows that need it.
__device__ __forceinline__ void add_taps(float (&sum)[THREAD_K][THREAD_P], const float *f, const float *x, int from, int top,
                                         int left, int H, int W, int x_row, int x_column, int x_channel)
{
#pragma unroll
    for (int row = 0; row < ROWS; ++row) {
        const int in_row = top + row;
        alignas(16) float value[FILTER_SIZE][INPUTS];
#pragma unroll
        for (int s = 0; s < FILTER_SIZE; ++s) {
            const bool inside = (unsigned)in_row < (unsigned)H && (unsigned)(left + s) < (unsigned)W;
#pragma unroll
            for (int k = 0; k < INPUTS; k += WIDTH_X)
                if (inside)
                    load<WIDTH_X>(&value[s][k], x + (from + in_row * x_row + (left + s) * x_column + k * x_channel));
                else
                    clear<WIDTH_X>(&value[s][k]);
        }
#pragma unroll
        for (int p = 0; p < THREAD_P; ++p) {
            const int r = row - p * FILTER_STEP;
            if (r >= 0 && r < FILTER_SIZE)
#pragma unroll
                for (int s = 0; s < FILTER_SIZE; ++s)
#pragma unroll
                    for (int k = 0; k < THREAD_K; ++k)
                        sum[k][p] += f[k * TAPS + r * FILTER_SIZE + s] * value[s][k % INPUTS];
        }
    }
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
    conv2d(const float *x, const float *w, float *y, int N, int C, int H, int W, int K, int R, int S, int stride, int pad,
           int dilation, int groups, int nhwc, void *workspace)
{
    const int channels = C / groups;  // of one group
    const int filters = K / groups;
    const int out_h = (H + 2 * pad - dilation * (R - 1) - 1) / stride + 1;
    const int out_w = (W + 2 * pad - dilation * (S - 1) - 1) / stride + 1;

    // Which tile.
#if SHARED
    const int pixels = N * out_h * out_w;
    const int tiles_k = (filters + BLOCK_K - 1) / BLOCK_K;
    const int tiles_p = (pixels + BLOCK_P - 1) / BLOCK_P;
#else
    const int columns = N * ((out_h + THREAD_P - 1) / THREAD_P) * out_w;
    const int tiles_k = (K + THREAD_K * LANES_K - 1) / (THREAD_K * LANES_K);
    const int tiles_p = (columns + BLOCK_P - 1) / BLOCK_P;
#endif
    const int tile = blockIdx.x;
#if PIXELS_FIRST
    const int tile_k = tile / tiles_p, tile_p = tile % tiles_p;
#else
    const int tile_k = tile % tiles_k, tile_p = tile / tiles_k;
#endif
    const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
    alignas(16) float sum[THREAD_K][THREAD_P] = {};

#if SHARED
    const int group = blockIdx.y;
    const int first_k = tile_k * BLOCK_K, first_p = tile_p * BLOCK_P;

    // Which part of the tile: the thread's first filter and pixel; the others are k * LANES_K and p * LANES_P further.
    const int row = warp / WARPS_P * (THREAD_K * LANES_K) + lane / LANES_P * STEP_K;
    const int column = warp % WARPS_P * (THREAD_P * LANES_P) + lane % LANES_P * STEP_P;

    // Which part of the sum: tiles of the depth, from `begin` on.
    const int depth = channels * R * S;
#if WALK == 1 || WALK == 2
    const int depth_tiles = (channels + BLOCK_C - 1) / BLOCK_C * (R * S);
#else
    const int depth_tiles = (depth + BLOCK_C - 1) / BLOCK_C;
#endif
#if SPLIT > 1
    const int part = (depth_tiles + SPLIT - 1) / SPLIT;
    const int begin = min(depth_tiles, (int)blockIdx.z * part);
    const int steps = min(depth_tiles, begin + part) - begin;
#else
    constexpr int begin = 0;
    const int steps = depth_tiles;
#endif

    // What a thread copies, and from where. Filters and pixels outside the tensors are replaced by the last ones inside: their
    // products are never stored.
    const int f_k = thread / (BLOCK_C / WIDTH_F), f_c = thread % (BLOCK_C / WIDTH_F) * WIDTH_F;
#if CHANNELS_LAST
    const int x_p = thread / (BLOCK_C / WIDTH_X), x_c = thread % (BLOCK_C / WIDTH_X) * WIDTH_X;
#else
    const int x_p = thread % (BLOCK_P / WIDTH_X) * WIDTH_X, x_c = thread / (BLOCK_P / WIDTH_X);
    const int plane = H * W;
#endif
    int filter[F_COPIES];
#pragma unroll
    for (int i = 0; i < F_COPIES; ++i)
        filter[i] = (group * filters + min(first_k + f_k + i * F_STEP, filters - 1)) * depth;

    // Where a pixel's filter begins. Bit r of `outside` tells that row r of the filter falls beside the image, bit R + s
    // that column s does.
    int corner[PIXELS];
#if WALK != 3
    unsigned outside[PIXELS];
#endif
#pragma unroll
    for (int i = 0; i < PIXELS; ++i) {
#if CHANNELS_LAST
        const int p = min(first_p + x_p + i * P_STEP, pixels - 1);
        const int group_x = group * channels;
#else
        const int p = min(first_p + x_p + i * P_STEP, pixels - WIDTH_X);
        const int group_x = group * channels * plane;
#endif
#if WALK == 3 && CHANNELS_LAST
        corner[i] = group_x + p * C;
#elif WALK == 3
        corner[i] = group_x + p + p / plane * (C - 1) * plane;
#else
        const int image = p / (out_h * out_w), within = p % (out_h * out_w);
        const int top = within / out_w * stride - pad, left = within % out_w * stride - pad;
#if CHANNELS_LAST
        corner[i] = group_x + ((image * H + top) * W + left) * C;
#else
        corner[i] = group_x + image * C * plane + top * W + left;
#endif
#if WALK == 0
        outside[i] = 1u << 31;  // what lies behind the end of the sum is outside everywhere
#else
        outside[i] = 0;
#endif
        if (pad > 0) {
            for (int r = 0; r < R; ++r)
                outside[i] |= (unsigned)(top + r * dilation) >= (unsigned)H ? 1u << r : 0u;
            for (int s = 0; s < S; ++s)
                outside[i] |= (unsigned)(left + s * dilation) >= (unsigned)W ? 1u << (R + s) : 0u;
        }
#endif
    }

#if DYNAMIC_SMEM
    extern __shared__ float4 shared[];
#else
    __shared__ float4 shared[TILE_FLOATS / 4];
#endif
    float *const tiles_f = reinterpret_cast<float *>(shared);
    float *const tiles_x = tiles_f + STAGES * F_TILE;

#if WALK == 0
    // A tile's rows: the distance of each from a pixel's corner, and the bits of its tap. The first threads keep a row each;
    // its place in the sum advances like a number of three digits.
    int2 *const rows = reinterpret_cast<int2 *>(tiles_x + STAGES * X_TILE);
#if CHANNELS_LAST
    const int inner_size = channels, middle_size = S;
#else
    const int inner_size = S, middle_size = R;
#endif
    const int inner_step = BLOCK_C % inner_size, middle_step = BLOCK_C / inner_size % middle_size;
    const int outer_step = BLOCK_C / inner_size / middle_size;
    int place = begin * BLOCK_C + thread;
    int inner = place % inner_size, middle = place / inner_size % middle_size, outer = place / inner_size / middle_size;
#elif WALK == 1
    int c_tile = begin / (R * S) * BLOCK_C, tap_r = begin % (R * S) / S, tap_s = begin % S;
#elif WALK == 2
    const int c_tiles = (channels + BLOCK_C - 1) / BLOCK_C;
    int c_tile = begin % c_tiles * BLOCK_C, tap_r = begin / c_tiles / S, tap_s = begin / c_tiles % S;
#endif

    // Step s copies tile s and computes tile s - LAG.
#if ASYNC_COPY
    constexpr int LAG = STAGES - 1;
#else
    constexpr int LAG = 1;
    alignas(16) float staged_f[F_COPIES][WIDTH_F], staged_x[X_COPIES][WIDTH_X];
#endif
    int filling = 0, computing = 0;  // buffers
#if FRAGMENT_BUFFERS == 2
    Fragments now = {};
#endif
    for (int step = 0; step < steps + LAG; ++step) {
#if WALK == 0
        int2 *const tile_rows = rows + step % 2 * BLOCK_C;
        if (thread < BLOCK_C && step < steps) {
#if CHANNELS_LAST
            const int offset = (outer * W + middle) * dilation * C + inner;
            const unsigned tap = tap_bits(outer, middle, R, pad);
#else
            const int offset = outer * plane + (middle * W + inner) * dilation;
            const unsigned tap = tap_bits(middle, inner, R, pad);
#endif
            tile_rows[thread] = int2{offset, (int)(place < depth ? tap : 1u << 31)};
            place += BLOCK_C;
            inner += inner_step;
            middle += middle_step + (inner >= inner_size);
            inner -= inner >= inner_size ? inner_size : 0;
            outer += outer_step + (middle >= middle_size);
            middle -= middle >= middle_size ? middle_size : 0;
        }
#endif
#if ASYNC_COPY
        if (step >= LAG)
            __pipeline_wait_prior(STAGES - 2);  // this thread's part of the tile to compute has arrived
#endif
        __syncthreads();  // the tile to compute is there for all, and nobody reads the buffer to fill any more
        if (step < steps) {
#if ASYNC_COPY
            float *const tile_f = tiles_f + filling * F_TILE;
            float *const tile_x = tiles_x + filling * X_TILE;
#endif
#if WALK == 0 || WALK == 3
            const int c_tile = (begin + step) * BLOCK_C, rows_left = depth - c_tile;
            const int f_tile = c_tile;
#elif CHANNELS_LAST
            const int rows_left = channels - c_tile, f_tile = (tap_r * S + tap_s) * channels + c_tile;
#else
            const int rows_left = channels - c_tile, f_tile = (c_tile * R + tap_r) * S + tap_s;
#endif
#if WALK == 1 || WALK == 2
            const unsigned tap = tap_bits(tap_r, tap_s, R, pad);
#if CHANNELS_LAST
            const int x_tile = (tap_r * W + tap_s) * dilation * C + c_tile;
#else
            const int x_tile = (tap_r * W + tap_s) * dilation + c_tile * plane;
#endif
#elif WALK == 3 && CHANNELS_LAST
            const int x_tile = c_tile;
#elif WALK == 3
            const int x_tile = c_tile * plane;
#endif
#pragma unroll
            for (int i = 0; i < F_COPIES; ++i) {
#if !CHANNELS_LAST && (WALK == 1 || WALK == 2)
                const float *const from = w + (filter[i] + f_tile + f_c * R * S);
#else
                const float *const from = w + (filter[i] + f_tile + f_c);
#endif
                const bool inside = f_c < rows_left;
#if ASYNC_COPY
                __pipeline_memcpy_async(tile_f + f_c * F_STRIDE + f_k + i * F_STEP, from, 4, inside ? 0 : 4);
#else
                if (inside)
                    load<WIDTH_F>(staged_f[i], from);
                else
                    clear<WIDTH_F>(staged_f[i]);
#endif
            }
#pragma unroll
            for (int i = 0; i < X_COPIES; ++i) {
#if CHANNELS_LAST
                const int c = x_c;
#else
                const int c = x_c + i / PIXELS * C_STEP;
#endif
#if WALK == 0
                const float *const from = x + (corner[i % PIXELS] + tile_rows[c].x);
                const bool inside = (outside[i % PIXELS] & tile_rows[c].y) == 0;
#else
#if CHANNELS_LAST
                const float *const from = x + (corner[i % PIXELS] + x_tile + c);
#else
                const float *const from = x + (corner[i % PIXELS] + x_tile + c * plane);
#endif
#if WALK == 3
                const bool inside = c < rows_left;
#else
                const bool inside = c < rows_left && (outside[i % PIXELS] & tap) == 0;
#endif
#endif
#if !ASYNC_COPY
                if (inside)
                    load<WIDTH_X>(staged_x[i], from);
                else
                    clear<WIDTH_X>(staged_x[i]);
#else
                __pipeline_memcpy_async(tile_x + c * X_STRIDE + x_p + i % PIXELS * P_STEP, from, 4 * WIDTH_X,
                                        inside ? 0 : 4 * WIDTH_X);
#endif
            }
#if WALK == 1
            if (++tap_s == S) {
                tap_s = 0;
                if (++tap_r == R) {
                    tap_r = 0;
                    c_tile += BLOCK_C;
                }
            }
#elif WALK == 2
            c_tile += BLOCK_C;
            if (c_tile >= channels) {
                c_tile = 0;
                if (++tap_s == S) {
                    tap_s = 0;
                    ++tap_r;
                }
            }
#endif
#if ASYNC_COPY
            filling = filling + 1 < STAGES ? filling + 1 : 0;
#endif
        }
#if ASYNC_COPY
        __pipeline_commit();
#endif
        if (step >= LAG) {
            const float *const tile_f = tiles_f + computing * F_TILE + row;
            const float *const tile_x = tiles_x + computing * X_TILE + column;
#if FRAGMENT_BUFFERS == 2
            Fragments next;
            read_fragments(next, tile_f, tile_x, 0);
            multiply(sum, now);  // the last row of the tile before, while these arrive
#if PRAGMA_UNROLL
#pragma unroll UNROLL_C
#endif
            for (int c = 1; c < BLOCK_C; ++c) {
                now = next;
                read_fragments(next, tile_f, tile_x, c);
                multiply(sum, now);
            }
            now = next;
#else
#if PRAGMA_UNROLL
#pragma unroll UNROLL_C
#endif
            for (int c = 0; c < BLOCK_C; ++c) {
                Fragments now;
                read_fragments(now, tile_f, tile_x, c);
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
            float *const tile_f = tiles_f + filling * F_TILE;
            float *const tile_x = tiles_x + filling * X_TILE;
#pragma unroll
            for (int i = 0; i < F_COPIES; ++i)
#pragma unroll
                for (int j = 0; j < WIDTH_F; ++j)
                    tile_f[(f_c + j) * F_STRIDE + f_k + i * F_STEP] = staged_f[i][j];
#pragma unroll
            for (int i = 0; i < X_COPIES; ++i)
#if CHANNELS_LAST
#pragma unroll
                for (int j = 0; j < WIDTH_X; ++j)
                    tile_x[(x_c + j) * X_STRIDE + x_p + i * P_STEP] = staged_x[i][j];
#else
                move<WIDTH_X>(tile_x + (x_c + i / PIXELS * C_STEP) * X_STRIDE + x_p + i % PIXELS * P_STEP, staged_x[i]);
#endif
            filling = filling + 1 < STAGES ? filling + 1 : 0;
        }
#endif
    }
#if FRAGMENT_BUFFERS == 2
    multiply(sum, now);
#endif

#if SPLIT > 1
    // The last block to finish adds up the parts, in their order, so that the result is the same every time.
    const int tiles = tiles_k * tiles_p * groups, this_tile = group * tiles_k * tiles_p + tile;
    unsigned *const finished = static_cast<unsigned *>(workspace) + this_tile;
    float *const parts = static_cast<float *>(workspace) + (tiles + 3) / 4 * 4;
    const long long part_floats = (long long)tiles * BLOCK_K * BLOCK_P;
    float *const mine = parts + (long long)this_tile * BLOCK_K * BLOCK_P + thread;
#pragma unroll
    for (int k = 0; k < THREAD_K; ++k)
#pragma unroll
        for (int p = 0; p < THREAD_P; ++p)
            mine[blockIdx.z * part_floats + (k * THREAD_P + p) * THREADS] = sum[k][p];
    __threadfence();
    __syncthreads();
    __shared__ bool last;
    if (thread == 0)
        last = atomicAdd(finished, 1u) == SPLIT - 1;
    __syncthreads();
    if (!last)
        return;
    __threadfence();
    if (thread == 0)
        *finished = 0;  // ready for the next launch
#pragma unroll
    for (int k = 0; k < THREAD_K; ++k)
#pragma unroll
        for (int p = 0; p < THREAD_P; ++p)
            sum[k][p] = mine[(k * THREAD_P + p) * THREADS];
#pragma unroll 1
    for (int z = 1; z < SPLIT; ++z)
#pragma unroll
        for (int k = 0; k < THREAD_K; ++k)
#pragma unroll
            for (int p = 0; p < THREAD_P; ++p)
                sum[k][p] += mine[z * part_floats + (k * THREAD_P + p) * THREADS];
#endif

#if CHANNELS_LAST
#pragma unroll
    for (int p = 0; p < THREAD_P; ++p) {
        const int pixel = first_p + column + p % STEP_P + p / STEP_P * STEP_P * LANES_P;
        if (pixel < pixels) {
            float *const to = y + pixel * K + group * filters;
#pragma unroll
            for (int k = 0; k < THREAD_K; k += WIDTH_Y) {
                const int filter = first_k + row + k % STEP_K + k / STEP_K * STEP_K * LANES_K;
                alignas(16) float out[WIDTH_Y];
#pragma unroll
                for (int j = 0; j < WIDTH_Y; ++j)
                    out[j] = sum[k + j][p];
                if (filter < filters)
                    move<WIDTH_Y>(to + filter, out);
            }
        }
    }
#else
    const int out_plane = out_h * out_w;
#pragma unroll
    for (int p = 0; p < THREAD_P; p += WIDTH_Y) {
        const int pixel = first_p + column + p % STEP_P + p / STEP_P * STEP_P * LANES_P;
        if (pixel < pixels) {
            const int image = pixel / out_plane, within = pixel % out_plane;
            float *const to = y + (image * K + group * filters) * out_plane + within;
#pragma unroll
            for (int k = 0; k < THREAD_K; ++k) {
                const int filter = first_k + row + k % STEP_K + k / STEP_K * STEP_K * LANES_K;
                if (filter < filters)
                    move<WIDTH_Y>(to + filter * out_plane, &sum[k][p]);
            }
        }
    }
#endif
#else
    // Which filters, and which column of output pixels. Filters of a thread are all there, or none is.
    const int first_filter = tile_k * (THREAD_K * LANES_K) + lane / LANES_P * THREAD_K;
    const int column = tile_p * BLOCK_P + warp * LANES_P + lane % LANES_P;
    const int filter = min(first_filter, K - THREAD_K), within = min(column, columns - 1);
    const int strip = within / out_w, image = strip / ((out_h + THREAD_P - 1) / THREAD_P);
    const int out_row = strip % ((out_h + THREAD_P - 1) / THREAD_P) * THREAD_P, out_column = within % out_w;

    // Strides of the layout.
#if FILTER_SIZE == 0
    const int x_channel = nhwc ? 1 : H * W, x_column = nhwc ? C : 1, x_row = W * x_column;
    const int y_channel = nhwc ? 1 : out_h * out_w, y_column = nhwc ? K : 1, y_row = out_w * y_column;
    const int w_channel = nhwc ? 1 : R * S, w_tap = nhwc ? channels : 1;
#elif CHANNELS_LAST
    const int x_channel = 1, x_column = C, x_row = W * C;
    const int y_channel = 1, y_column = K, y_row = out_w * K;
#else
    const int x_channel = H * W, x_column = 1, x_row = W;
    const int y_channel = out_h * out_w, y_column = 1, y_row = out_w;
#endif
#if FILTER_SIZE > 0 && !DEPTHWISE && CHANNELS_LAST
    const int w_channel = 1, w_tap = channels;
#elif FILTER_SIZE > 0 && !DEPTHWISE
    const int w_channel = TAPS, w_tap = 1;
#endif

#if FILTER_SIZE == 0
    const int top = out_row * stride - pad, left = out_column * stride - pad;
    const int depth = channels * R * S;
    const int from_f = filter * depth, from_x = image * C * H * W + filter / filters * channels * x_channel;
#if PRAGMA_UNROLL
#pragma unroll UNROLL_C
#endif
    for (int c = 0; c < channels; ++c)
        for (int r = 0; r < R; ++r)
            for (int s = 0; s < S; ++s) {
                float f[THREAD_K];
#pragma unroll
                for (int k = 0; k < THREAD_K; ++k)
                    load<1>(&f[k], w + (from_f + k * depth + c * w_channel + (r * S + s) * w_tap));
                const int in_column = left + s * dilation;
#pragma unroll
                for (int p = 0; p < THREAD_P; ++p) {
                    const int in_row = top + p * stride + r * dilation;
                    float value = 0.0f;
                    if ((unsigned)in_row < (unsigned)H && (unsigned)in_column < (unsigned)W)
                        load<1>(&value, x + (from_x + c * x_channel + in_row * x_row + in_column * x_column));
#pragma unroll
                    for (int k = 0; k < THREAD_K; ++k)
                        sum[k][p] += f[k] * value;
                }
            }
#else
    const int top = out_row * FILTER_STEP - pad, left = out_column * FILTER_STEP - pad;
    alignas(16) float f[THREAD_K * TAPS];
#if DEPTHWISE
    constexpr int STEP_F = THREAD_K < 4 ? THREAD_K : 4;
    const int from_x = image * C * H * W + filter * x_channel;
#pragma unroll
    for (int i = 0; i < THREAD_K * TAPS; i += STEP_F)
        load<STEP_F>(&f[i], w + filter * TAPS + i);
    add_taps(sum, f, x, from_x, top, left, H, W, x_row, x_column, x_channel);
#else
    const int first_x = image * C * H * W + filter / filters * channels * x_channel;
#if PRAGMA_UNROLL
#pragma unroll UNROLL_C
#endif
    for (int c = 0; c < channels; ++c) {
        const int from_x = first_x + c * x_channel, from_f = filter * channels * TAPS + c * w_channel;
#pragma unroll
        for (int k = 0; k < THREAD_K; ++k)
#pragma unroll
            for (int tap = 0; tap < TAPS; ++tap)
                load<1>(&f[k * TAPS + tap], w + (from_f + k * channels * TAPS + tap * w_tap));
        add_taps(sum, f, x, from_x, top, left, H, W, x_row, x_column, x_channel);
    }
#endif
#endif

    const int to = image * K * out_h * out_w + filter * y_channel + out_row * y_row + out_column * y_column;
    if (first_filter < K && column < columns) {
#pragma unroll
        for (int p = 0; p < THREAD_P; ++p)
            if (out_row + p < out_h)
#pragma unroll
                for (int k = 0; k < THREAD_K; k += WIDTH_Y) {
                    alignas(16) float out[WIDTH_Y];
#pragma unroll
                    for (int j = 0; j < WIDTH_Y; ++j)
                        out[j] = sum[k + j][p];
                    move<WIDTH_Y>(y + (to + p * y_row + k * y_channel), out);
                }
    }
#endif
}
