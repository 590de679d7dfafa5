/*
The building blocks of the mma variants: swizzled tiles in shared memory, and a warp's matrix multiplications on them.
Everything is in bf16, with fp32 accumulation; the instructions are in llmc/cuda/mma.cuh and ptx.cuh.
*/
#ifndef MMA_TILES_CUH
#define MMA_TILES_CUH

#include "llmc/cuda/mma.cuh"

namespace mma {

// ----------------------------------------------------------------------------
// Tiles in shared memory: rows of HS elements, 16-byte chunk c of row r stored at chunk c ^ key(r).
//
// ldmatrix reads one chunk of 8 rows in a pass. Without the swizzle they would be 2 HS bytes apart, in the same four banks (an
// 8-way conflict); with it the 8 rows are in different banks, and so are the chunks that cp.async and the epilogues move. A row
// of 64 or 128 elements is a multiple of the banks' 128 bytes and needs 8 keys; rows of 32 or 96 elements alternate between the
// two halves of the banks and need 4.

template <int HS> struct Tile {
    static constexpr int row_bytes = 2 * HS, chunks = HS / 8;
    static constexpr int keys = HS % 64 == 0 ? 8 : 4;

    // Byte offset of chunk c of row r.
    static __device__ int offset(int r, int c) {
        int key = keys == 8 ? r % 8 : r / 2 % 4;
        return r * row_bytes + (c ^ key) * 16;
    }
    // The byte address `rows` (a multiple of 8) rows down and `chunk` (even, known at compile time) chunks to the right of
    // `base`, whose own chunk has no bits in common with `chunk`. Only the key's bits need an XOR: the rest is an immediate.
    static __device__ uint32_t at(uint32_t base, int rows, int chunk) {
        return (base ^ (chunk % keys * 16)) + rows * row_bytes + chunk / keys * keys * 16;
    }
    // A lane's offset into a tile for one ldmatrix_x4 of the A fragment of 16 rows and 2 chunks (or, transposed, of the B
    // fragments of 16 rows by 16 columns).
    static __device__ int lane_a(int lane) { return offset(lane % 16, lane / 16); }
    // The same for the B fragments of the transpose of 16 rows and 2 chunks: {b0,b1} of rows 0..7, then those of rows 8..15.
    static __device__ int lane_b(int lane) { return offset(lane % 8 + lane / 16 * 8, lane / 8 % 2); }
};

// Copies rows x HS elements, `stride` elements from row to row, into a tile; rows from `valid` on become 0.
template <int HS, int rows, int threads>
__device__ inline void load_tile(uint32_t tile, const floatX* source, int stride, int valid) {
    constexpr int chunks = Tile<HS>::chunks;
    static_assert(rows * chunks % threads == 0, "every thread copies the same number of chunks");
    uint32_t thread = mov_tid_x();
    if constexpr (threads % (8 * chunks) == 0) { // a thread's chunk and key are the same in all its rows
        constexpr int step = threads / chunks;   // rows
        int r = thread / chunks, c = thread % chunks;
        tile += Tile<HS>::offset(r, c);
        source += (int64_t)r * stride + c * 8;
#pragma unroll
        for (int i = 0; i < rows / step; i++) {
            cp_async_16(tile + i * step * Tile<HS>::row_bytes, source, r + i * step < valid ? 16 : 0);
            source += (int64_t)step * stride;
        }
    } else {
#pragma unroll
        for (int i = 0; i < rows * chunks / threads; i++) {
            uint32_t index = i * threads + thread, r = index / chunks, c = index % chunks;
            cp_async_16(tile + Tile<HS>::offset(r, c), source + (int64_t)r * stride + c * 8, (int)r < valid ? 16 : 0);
        }
    }
}

// Stores a warp's accumulators x (16 M, HS), rounded to 16 bit, to 16 M rows of a tile.
template <int HS, int M>
__device__ inline void store_accumulators(uint32_t tile, const float (&x)[M][HS / 8][4], int lane) {
#pragma unroll
    for (int i = 0; i < M; i++) {
#pragma unroll
        for (int n = 0; n < HS / 8; n += 2) {
            const float(&u)[4] = x[i][n];
            const float(&v)[4] = x[i][n + 1];
            uint32_t r0 = cvt_rn_x2(u[0], u[1]), r1 = cvt_rn_x2(u[2], u[3]);
            uint32_t r2 = cvt_rn_x2(v[0], v[1]), r3 = cvt_rn_x2(v[2], v[3]);
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
            stmatrix_x4(Tile<HS>::at(tile + Tile<HS>::lane_a(lane), i * 16, n), r0, r1, r2, r3);
#else
            uint32_t base = tile + i * 16 * Tile<HS>::row_bytes + lane % 4 * 4;
            int r = lane / 4;
            st_shared(base + Tile<HS>::offset(r, n), r0);
            st_shared(base + Tile<HS>::offset(r + 8, n), r1);
            st_shared(base + Tile<HS>::offset(r, n + 1), r2);
            st_shared(base + Tile<HS>::offset(r + 8, n + 1), r3);
#endif
        }
    }
}

// A warp copies `rows` rows of a tile to global memory, 16 bytes a lane; rows from `valid` on are skipped.
template <int HS, int rows>
__device__ inline void store_tile(floatX* destination, uint32_t tile, int stride, int valid, int lane) {
    constexpr int chunks = Tile<HS>::chunks;
    static_assert(rows * chunks % WARP_SIZE == 0, "every lane copies the same number of chunks");
#pragma unroll
    for (int i = 0; i < rows * chunks / WARP_SIZE; i++) {
        int index = i * WARP_SIZE + lane, r = index / chunks, c = index % chunks;
        uint4 v = ld_shared_v4(tile + Tile<HS>::offset(r, c));
        if (r < valid) { __stcg(reinterpret_cast<uint4*>(destination + (int64_t)r * stride + c * 8), v); }
    }
}

// Stores a warp's accumulators x (16 M, HS) to 16 M rows of global memory, through rows of a tile that are the warp's own.
template <int HS, int M> __device__ inline void
store_rows(floatX* destination, uint32_t tile, const float (&x)[M][HS / 8][4], int stride, int valid, int lane) {
    __syncwarp(); // all lanes have read the old contents of the tile
    store_accumulators<HS>(tile, x, lane);
    __syncwarp();
    store_tile<HS, 16 * M>(destination, tile, stride, valid, lane);
}

// ----------------------------------------------------------------------------
// The order of thread blocks: a grid of (blocks of a head x heads of a group, groups). Within a group, the first blocks of all
// heads start first, then the second ones, and so on: longest work first, while the tensors that every block of a head reads
// stay in L2. Blocks are in x, because y ends at 65535.

struct AttentionGrid {
    dim3 size;
    Divisor group; // heads of a group
};
// The grid for `blocks` blocks of each head, at most INT_MAX in all. reread_bytes: bytes of a head that all its blocks read; a
// group's may fill half of L2 (a quarter, and all heads at once, were slower: dev/LOG.md).
inline AttentionGrid attention_grid(int blocks, int heads, int64_t reread_bytes, int l2_bytes) {
    const int groups = min(65535, CEIL_DIV(heads, (int)max((int64_t)1, l2_bytes / 2 / reread_bytes)));
    const int group = CEIL_DIV(heads, groups); // evenly; the last group may be smaller
    return {dim3((unsigned)(group * blocks), (unsigned)CEIL_DIV(heads, group)), Divisor(group)};
}
// The same on the current GPU. An error if there is none.
inline Status attention_grid(AttentionGrid* grid, int blocks, int heads, int64_t reread_bytes) {
    int device, l2_bytes;
    TRY(cuda_try(cudaGetDevice(&device)));
    TRY(cuda_try(cudaDeviceGetAttribute(&l2_bytes, cudaDevAttrL2CacheSize, device)));
    *grid = attention_grid(blocks, heads, reread_bytes, l2_bytes);
    return STATUS_OK;
}
// A thread block's head, which does not exist in the last group if that is smaller, and its block of the head
struct AttentionTask {
    int head, block;
    __host__ __device__ AttentionTask(int2 ctaid, const Divisor& group) {
        block = group.quotient(ctaid.x), head = ctaid.y * group.d + ctaid.x - block * group.d;
    }
};

// ----------------------------------------------------------------------------
// A warp's matrix multiplications. Accumulators (16 M, 8 N) are float[M][N][4], A fragments (16 M, 16 K) uint32_t[K][M][4], as
// mma_m16n8k16 has them. Tile addresses already hold the lane's part, lane_a or lane_b.

// f(x, i, n, e) for each element of accumulators; f(i, h) for each of a lane's rows, 16 i + 8 h + lane/4.
template <int M, int N, class F> __device__ inline void for_each(float (&x)[M][N][4], F f) {
#pragma unroll
    for (int i = 0; i < M; i++) {
#pragma unroll
        for (int n = 0; n < N; n++) {
#pragma unroll
            for (int e = 0; e < 4; e++) { f(x[i][n][e], i, n, e); }
        }
    }
}
template <int M, class F> __device__ inline void for_each_row(F f) {
#pragma unroll
    for (int i = 0; i < M; i++) {
#pragma unroll
        for (int h = 0; h < 2; h++) { f(i, h); }
    }
}

// S = -inf before the rows' documents. (row, column) is the lane's first element of S; starts (T).
template <int M, int N>
__device__ inline void mask_documents(float (&S)[M][N][4], int row, int column, const int* starts, int T) {
    for_each_row<M>([&](int i, int h) {
        const int start = starts[min(row + 16 * i + 8 * h, T - 1)] - column;
#pragma unroll
        for (int n = 0; n < N; n++) {
            if (8 * n < start) { S[i][n][2 * h] = -INFINITY; }
            if (8 * n + 1 < start) { S[i][n][2 * h + 1] = -INFINITY; }
        }
    });
}

template <int M, int N> __device__ inline void fill(float (&x)[M][N][4], float value) {
    for_each(x, [=](float& element, int, int, int) { element = value; });
}
template <int M, int N> __device__ inline void multiply(float (&x)[M][N][4], float factor) {
    for_each(x, [=](float& element, int, int, int) { element *= factor; });
}

// a = chunks 2k and 2k+1 of 16 M rows of a tile, with lane_a.
template <int HS, int M> __device__ inline void load_a(uint32_t (&a)[M][4], uint32_t tile, int k) {
#pragma unroll
    for (int i = 0; i < M; i++) { ldmatrix_x4(a[i], Tile<HS>::at(tile, i * 16, 2 * k)); }
}

// One step, 16 of the HS columns, of s (16 M, 8 N) += A B^T: chunks 2k and 2k+1 of the 8 N rows of B, with lane_b.
template <int HS, int M, int N>
__device__ inline void mma_abt_step(float (&s)[M][N][4], const uint32_t (&a)[M][4], uint32_t tile, int k) {
#pragma unroll
    for (int n = 0; n < N; n += 2) {
        uint32_t b[4];
        ldmatrix_x4(b, Tile<HS>::at(tile, n * 8, 2 * k));
#pragma unroll
        for (int i = 0; i < M; i++) {
            mma_m16n8k16(s[i][n], a[i], b[0], b[1]);
            mma_m16n8k16(s[i][n + 1], a[i], b[2], b[3]);
        }
    }
}

// A warp's 16 M rows as operand A throughout a kernel: fragments in registers or, where registers are short, the tile in shared
// memory.
template <int HS, int M, bool in_registers> struct WarpRows {
    uint32_t address; // in the tile, with lane_a
    uint32_t fragments[in_registers ? HS / 16 : 1][M][4];

    __device__ void load() {
        if constexpr (in_registers) {
#pragma unroll
            for (int k = 0; k < HS / 16; k++) { load_a<HS>(fragments[k], address, k); }
        }
    }
};
// s (16 M, 8 N) += rows B^T
template <int HS, int M, bool in_registers, int N>
__device__ inline void mma_abt(float (&s)[M][N][4], const WarpRows<HS, M, in_registers>& rows, uint32_t tile) {
#pragma unroll
    for (int k = 0; k < HS / 16; k++) {
        if constexpr (in_registers) {
            mma_abt_step<HS>(s, rows.fragments[k], tile, k);
        } else {
            uint32_t a[M][4];
            load_a<HS>(a, rows.address, k);
            mma_abt_step<HS>(s, a, tile, k);
        }
    }
}

// o (16 M, HS) += A B, with A (16 M, 16) in fragments and the 16 rows of B in a tile, with lane_a.
template <int HS, int M>
__device__ inline void mma_ab_step(float (&o)[M][HS / 8][4], const uint32_t (&a)[M][4], uint32_t tile) {
#pragma unroll
    for (int n = 0; n < HS / 8; n += 2) {
        uint32_t b[4];
        ldmatrix_x4_trans(b, Tile<HS>::at(tile, 0, n));
#pragma unroll
        for (int i = 0; i < M; i++) {
            mma_m16n8k16(o[i][n], a[i], b[0], b[1]);
            mma_m16n8k16(o[i][n + 1], a[i], b[2], b[3]);
        }
    }
}

// a (16 M, 16) = columns 16 k to 16 k + 15 of accumulators, rounded: an accumulator of one GEMM is, register by
// register, operand A of the next.
template <int M, int N> __device__ inline void round_a(uint32_t (&a)[M][4], const float (&s)[M][N][4], int k) {
#pragma unroll
    for (int i = 0; i < M; i++) {
        a[i][0] = cvt_rn_x2(s[i][2 * k][0], s[i][2 * k][1]);
        a[i][1] = cvt_rn_x2(s[i][2 * k][2], s[i][2 * k][3]);
        a[i][2] = cvt_rn_x2(s[i][2 * k + 1][0], s[i][2 * k + 1][1]);
        a[i][3] = cvt_rn_x2(s[i][2 * k + 1][2], s[i][2 * k + 1][3]);
    }
}

// s -= a in columns 16 k to 16 k + 15: leaves the rounding error of round_a().
template <int M, int N> __device__ inline void subtract_a(float (&s)[M][N][4], const uint32_t (&a)[M][4], int k) {
#pragma unroll
    for (int i = 0; i < M; i++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            float2 rounded = float2_of(a[i][e]);
            float(&x)[4] = s[i][2 * k + e / 2];
            x[e % 2 * 2] -= rounded.x, x[e % 2 * 2 + 1] -= rounded.y;
        }
    }
}

} // namespace mma

#endif
