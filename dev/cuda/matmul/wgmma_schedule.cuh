/*
The index arithmetic of wgmma_matmul.cuh, apart from it so that a test can enumerate it on the CPU (test_wgmma_matmul.cu): which
cluster takes which tile, where TMA and wgmma expect an element of a tile in shared memory, and which element of an accumulator
a thread holds.

A GEMM is D (M,N) = A B^T with A (M,K) and B (N,K), whichever of their dimensions is contiguous in memory. A k-block is 64 of
K. A tile of D is computed by a cluster, each CTA of it a half.
*/
#ifndef WGMMA_SCHEDULE_CUH
#define WGMMA_SCHEDULE_CUH

#include "llmc/cuda/common.cuh"

namespace wgmma {

constexpr int K_BLOCK = 64;      // of K in a stage: 128 bytes of 16-bit elements
constexpr int BLOCK_ROWS = 64;   // M of wgmma
constexpr int SWIZZLE_ROW = 128; // bytes of a box row
// A chunk is 64 rows of 128 bytes of a warpgroup's part of D on its way to or from memory: a box.
constexpr int CHUNK_COLUMNS = SWIZZLE_ROW / 2, CHUNK_BYTES = BLOCK_ROWS * SWIZZLE_ROW;

// ----------------------------------------------------------------------------
// The order of tiles

struct GemmSize {
    int M, N, K;
};

// The order in which clusters take tiles: cluster c has tiles c, c + clusters, ... They go down `group` rows of tiles, then to
// the next column: operands stay in L2. A last column of narrower tiles, which take less time, may come apart: last.
struct TileOrder {
    int m_tiles, n_tiles; // rows and columns of tiles, without the column that comes apart
    int tiles;            // all
    int k_blocks, group;
    __host__ __device__ constexpr int first_apart() const { return m_tiles * n_tiles; }
};

// A tile of D
struct TileIndex {
    int m, n;
};

__host__ __device__ constexpr TileIndex tile_at(const TileOrder& o, int index) {
    if (index >= o.first_apart()) { return {index - o.first_apart(), o.n_tiles}; }
    const int in_group = o.group * o.n_tiles, first_row = index / in_group * o.group;
    const int rows = o.m_tiles - first_row < o.group ? o.m_tiles - first_row : o.group;
    return {first_row + index % in_group % rows, index % in_group / rows};
}

// The order for tiles of tile_m by tile_n. last_apart: the tiles that N truncates come last if they are at most one round,
// which is then a short one.
constexpr TileOrder tile_order(GemmSize s, int tile_m, int tile_n, int clusters, bool last_apart) {
    TileOrder o = {CEIL_DIV(s.M, tile_m), CEIL_DIV(s.N, tile_n), 0, CEIL_DIV(s.K, K_BLOCK), 1};
    o.tiles = o.m_tiles * o.n_tiles;
    // B past 16 MB does not stay in L2 beside what else passes through: read it once for 16 rows of tiles.
    if ((int64_t)s.N * s.K * 2 > 16 << 20) { o.group = 16; }
    if (last_apart && s.N % tile_n != 0 && o.n_tiles > 1 && o.m_tiles <= clusters) { o.n_tiles--; }
    return o;
}

// The shape of a CTA's work: tiles of 128 rows by BN columns, which its two consumers compute alternately, in row_blocks
// blocks of 64 rows. A cluster's tile is two of them, one below the other, which share B.
template <int BN_> struct Tile {
    static constexpr int BN = BN_, row_blocks = 2, BM = row_blocks * BLOCK_ROWS;
    static constexpr bool narrows = BN == 192; // a last tile of up to 64 or 128 columns is multiplied at that width
    static constexpr int cluster = 2, cluster_rows = BM * cluster;
    static constexpr int releases = 4 * cluster; // arrivals that release a stage: of a consumer's warps, in all CTAs

    // The first row of the CTA `rank` of the cluster, and the first column, in D
    __host__ __device__ static constexpr int row(const TileIndex& tile, int rank) {
        return tile.m * cluster_rows + rank * BM;
    }
    __host__ __device__ static constexpr int column(const TileIndex& tile) { return tile.n * BN; }
};

// The tiles in use, rows x columns, in clusters of two
typedef Tile<128> PingPong128x128x2;
typedef Tile<192> PingPong128x192x2;

// ----------------------------------------------------------------------------
// Offsets in shared memory

// The offset of a byte of a row of 128 bytes in TMA's swizzle of as many, relative to a box aligned to 1024 bytes.
__host__ __device__ constexpr int swizzled_offset(int row, int byte) {
    return row * SWIZZLE_ROW + ((byte / 16) ^ (row % 8)) * 16 + byte % 16;
}

// A stage of an operand: ROWS rows of A (or B) by a k-block, in PARTS of equal size, each loaded by one CTA of the cluster
// for all.
// K-major: box rows are rows of the operand. MN-major: box rows go along K, and a box holds 64 rows of the operand; where the
// parts would not be whole boxes, each part is an equal share of the rows of every box.
template <int ROWS_, bool MN_MAJOR, int PARTS> struct OperandTile {
    static constexpr int rows = ROWS_, parts = PARTS, part_rows = rows / parts;
    static constexpr bool mn_major = MN_MAJOR, cuts_k = mn_major && parts > 1 && part_rows % 64 != 0;
    static constexpr int box_rows = cuts_k ? K_BLOCK / parts : mn_major ? K_BLOCK : part_rows; // of the tensor map
    static constexpr int boxes = cuts_k ? rows / 64 : 1;                                       // of a part
    static constexpr int box_bytes = (mn_major ? K_BLOCK : part_rows) * SWIZZLE_ROW;           // with all parts of it
    static constexpr int bytes = (cuts_k ? 1 : parts) * boxes * box_bytes;
    static_assert(!mn_major || (rows % 64 == 0 && (cuts_k || part_rows == 64)), "whole boxes");
    static_assert(part_rows % 8 == 0 && box_rows % 8 == 0 && box_rows <= 256, "the swizzle has a period of 8 box rows");

    // Box i of part p: its offset, and the first row of the operand and the first of the k-block in it.
    __host__ __device__ static constexpr int box_offset(int p, int i) {
        return cuts_k ? i * box_bytes + p * box_rows * SWIZZLE_ROW : p * box_bytes;
    }
    __host__ __device__ static constexpr int box_row(int p, int i) { return cuts_k ? i * 64 : p * part_rows; }
    __host__ __device__ static constexpr int box_k(int p) { return cuts_k ? p * box_rows : 0; }
    // Byte offsets of wgmma's descriptor: to row `row`, a multiple of 64, and to the i-th 16 of K.
    __host__ __device__ static constexpr int row_offset(int row) {
        return mn_major ? row / 64 * box_bytes : row * SWIZZLE_ROW;
    }
    __host__ __device__ static constexpr int k_offset(int i) { return mn_major ? i * 16 * SWIZZLE_ROW : i * 32; }
};

// ----------------------------------------------------------------------------
// Accumulators

// Thread t of a warpgroup holds in d[4 n + 2 h + e] of an accumulator (64, N):
__host__ __device__ constexpr int fragment_row(int t, int i) { return t / 32 * 16 + i / 2 % 2 * 8 + t % 32 / 4; }
__host__ __device__ constexpr int fragment_column(int t, int i) { return i / 4 * 8 + t % 4 * 2 + i % 2; }

// The address for stmatrix_x4 and ldmatrix_x4, relative to the chunk, of thread t and octets n and n + 1 of columns; n is even.
// XOR with n is all that remains of swizzled_offset(), because chunks are aligned to 1024 bytes.
__host__ __device__ constexpr int matrix_base(int t) { return swizzled_offset(t / 32 * 16 + t % 16, t % 32 / 16 * 16); }
__host__ __device__ constexpr int matrix_offset(int base, int n) { return base ^ (n * 16); }

} // namespace wgmma

#endif
