/*
The epilogues of wgmma_matmul.cuh. store() moves a consumer warpgroup's part of D from registers to global memory in chunks of
64 rows of 128 bytes: arithmetic on the fragment, stmatrix to a chunk of shared memory in TMA's swizzle, TMA store.

    Elementwise<F>    16-bit outputs; F is the arithmetic: Plain, AddBias, AddBiasAndSkip, BiasGelu, BiasGeluDerivative,
                      GeluOfBias, TimesDerivative, GeluBackward<..>
    Int8AddBias       16-bit output, of int8 operands: the sum times both rows' scales, and a bias
    ExponentialSums   16-bit output: the unnormalised softmax of cross entropy, and its sums over each row of a tile
    Int8LogitSums     the same sums, of int8 operands; the output is the logits

F may have an operand in memory, `aux` (M,N): its chunks are loaded during the main loop, or into slots whose chunks have been
stored, and the first output overwrites them in place. Chunks of other outputs go through a ring.
*/
#ifndef WGMMA_EPILOGUES_CUH
#define WGMMA_EPILOGUES_CUH

#include "wgmma_schedule.cuh"
#include "llmc/cuda/gelu.cuh"
#include "llmc/cuda/hopper.cuh"
#include "llmc/cuda/mma.cuh"
#include "llmc/cuda/quantize.cuh"

namespace wgmma {

using namespace hopper;

// The tensor maps of a GEMM. second: the second output. rows: 8-bit codes (M,N), two neighbours an element of 16 bits. Unused
// ones are not set.
struct GemmMaps {
    CUtensorMap a, b, out, second, aux, rows;
};

// The arguments of the epilogues beside the tensor maps
struct EpilogueInput {
    int M, N;
    const floatX* bias;         // (N)
    float* column_partials;     // (.., N): column sums of the first output over a consumer's rows of each tile
    const float* target_logits; // ExponentialSums: (M)
    float* row_sums;            // of that and Int8LogitSums: (N/BN rounded up, M)
    int classes;                // likewise: columns from here on are padding
    // of 8-bit operands (wgmma_fp8.cuh)
    const float *a_scale, *b_scale;  // of e4m3
    const float* a_row_scales;       // (M), of int8
    const nv_bfloat16* b_row_scales; // (N), of int8
    const float *scale, *act_scale;  // of the codes in GemmMaps' rows and, of dgelu, in out; of those in second
    unsigned* amax;                  // largest magnitude of the tensor that rows has the codes of
    CodeCounts* counts;              // of the codes in rows, or NULL
};

// A consumer's shared memory for outputs
struct Ring {
    char* chunks;
    float (*sums)[64]; // column sums of each warp
};

// The position of a consumer's part of a tile, and the consumer's threads.
struct ConsumerTile {
    int row, column; // the first ones in D
    int barrier;     // a named barrier of the warpgroup
    // The index in the warpgroup, read again at each use: registers are short.
    static __device__ int thread() { return mma::mov_tid_x() % WARPGROUP_SIZE; }
    static __device__ bool leader() { return thread() == 0; } // issues TMA
    __device__ void sync() const { bar_sync(barrier, WARPGROUP_SIZE); }
};

// ----------------------------------------------------------------------------
// Arithmetic on two neighbouring elements x of a row: out[0], and out[1] where there is a second output, in 16 bit

struct Plain { // x
    static constexpr int outputs = 1;
    static constexpr bool bias = false, aux = false, column_sums = false;
    static __device__ void apply(uint32_t (&out)[1], float2 x, float2, float2) { out[0] = mma::cvt_rn_x2(x.x, x.y); }
};

struct AddBias { // x + bias
    static constexpr int outputs = 1;
    static constexpr bool bias = true, aux = false, column_sums = false;
    static __device__ void apply(uint32_t (&out)[1], float2 x, float2 bias, float2) {
        out[0] = mma::cvt_rn_x2(x.x + bias.x, x.y + bias.y);
    }
};

struct AddBiasAndSkip { // skip + (x + bias)
    static constexpr int outputs = 1;
    static constexpr bool bias = true, aux = true, column_sums = false;
    static __device__ void apply(uint32_t (&out)[1], float2 x, float2 bias, float2 skip) {
        out[0] = mma::cvt_rn_x2(skip.x + (x.x + bias.x), skip.y + (x.y + bias.y));
    }
};

// gelu'(pre), rounded
__device__ inline uint32_t gelu_derivative_x2(float2 pre, float2 sigma) {
    return mma::cvt_rn_x2(gelu_derivative(pre.x, sigma.x), gelu_derivative(pre.y, sigma.y));
}

struct BiasGelu { // pre = x + bias;  gelu(pre) of the rounded pre: GeluBackward recomputes the same bits
    static constexpr int outputs = 2;
    static constexpr bool bias = true, aux = false, column_sums = false;
    static __device__ void apply(uint32_t (&out)[2], float2 x, float2 bias, float2) {
        out[0] = mma::cvt_rn_x2(x.x + bias.x, x.y + bias.y);
        const float2 pre = mma::float2_of(out[0]);
        out[1] = mma::cvt_rn_x2(gelu(pre.x, gelu_sigma(pre.x)), gelu(pre.y, gelu_sigma(pre.y)));
    }
};

struct BiasGeluDerivative { // gelu'(pre);  gelu(pre), of pre = x + bias rounded as BiasGelu rounds it
    static constexpr int outputs = 2;
    static constexpr bool bias = true, aux = false, column_sums = false;
    static __device__ void apply(uint32_t (&out)[2], float2 x, float2 bias, float2) {
        const float2 pre = {mma::rounded_to_16_bit(x.x + bias.x), mma::rounded_to_16_bit(x.y + bias.y)};
        const float2 sigma = {gelu_sigma(pre.x), gelu_sigma(pre.y)};
        out[0] = gelu_derivative_x2(pre, sigma);
        out[1] = mma::cvt_rn_x2(gelu(pre.x, sigma.x), gelu(pre.y, sigma.y));
    }
};

struct GeluOfBias { // gelu(x + bias), rounded as BiasGelu rounds
    static constexpr int outputs = 1;
    static constexpr bool bias = true, aux = false, column_sums = false;
    static __device__ void apply(uint32_t (&out)[1], float2 x, float2 bias, float2) {
        uint32_t both[2];
        BiasGelu::apply(both, x, bias, {});
        out[0] = both[1];
    }
};

struct TimesDerivative { // x derivative; also returned in fp32, for column_sums
    static constexpr int outputs = 1;
    static constexpr bool bias = false, aux = true, column_sums = true;
    static __device__ float2 apply(uint32_t (&out)[1], float2 x, float2, float2 derivative) {
        const float2 y = {x.x * derivative.x, x.y * derivative.y};
        out[0] = mma::cvt_rn_x2(y.x, y.y);
        return y;
    }
};

// x gelu'(pre), the derivative rounded as BiasGeluDerivative stores it; also returned in fp32, for column_sums. AGAIN: also
// gelu(pre).
template <bool AGAIN> struct GeluBackward {
    static constexpr int outputs = AGAIN ? 2 : 1;
    static constexpr bool bias = false, aux = true, column_sums = true;
    static __device__ float2 apply(uint32_t (&out)[outputs], float2 x, float2, float2 pre) {
        const float2 sigma = {gelu_sigma(pre.x), gelu_sigma(pre.y)};
        uint32_t dpre[1];
        const float2 y = TimesDerivative::apply(dpre, x, {}, mma::float2_of(gelu_derivative_x2(pre, sigma)));
        out[0] = dpre[0];
        if constexpr (AGAIN) { out[1] = mma::cvt_rn_x2(gelu(pre.x, sigma.x), gelu(pre.y, sigma.y)); }
        return y;
    }
};

// ----------------------------------------------------------------------------

template <class F> struct Elementwise {
    static constexpr int outputs = F::outputs;
    static constexpr bool has_aux = F::aux, column_sums = F::column_sums;
    static constexpr bool transposes = false; // true: out, second are codes (N,M), two along M an element of 16 bits
    static constexpr int ring_outputs = has_aux ? outputs - 1 : outputs; // those whose chunks are in the ring
    static constexpr int depth = has_aux ? 1 : 2;                        // chunks of each in the ring
    static constexpr int ring_chunks = depth * ring_outputs;             // of a warpgroup

    // The bias of the thread's pairs of columns in the chunk that begins at `column`
    template <int octets>
    static __device__ void load_bias(uint32_t (&bias)[octets], const EpilogueInput& in, int column) {
#pragma unroll
        for (int n = 0; F::bias && n < octets; n++) {
            const int pair = column + n * 8;
            bias[n] = pair < in.N ? __ldg(reinterpret_cast<const unsigned*>(in.bias + pair)) : 0;
        }
    }

    // acc: row_blocks blocks of 64 rows, one below the other, once finish() has been called; aux: Consumer::Aux.
    template <int row_blocks, int N, class Finish, class Aux>
    static __device__ void store(float (&acc)[row_blocks][N], Finish finish, const Aux& aux, const Ring& ring,
                                 const GemmMaps& maps, const EpilogueInput& in, const ConsumerTile& tile) {
        constexpr int columns = CHUNK_COLUMNS, chunks = 2 * N / columns;
        static_assert(columns == 64, "sum_columns() takes a chunk of 64 columns");
        // A sync() separates a tile's stores from the ring's next ones, and reads of column sums from the next writes to them.
        static_assert(row_blocks % depth == 0 && row_blocks > 1, "a tile begins with the ring's first slot");
        const int base = matrix_base(tile.thread());
        uint32_t bias[columns / 8] = {};
        load_bias(bias, in, tile.column + fragment_column(tile.thread(), 0));
        finish();
#pragma unroll
        for (int c = 0; c < chunks; c++) {
            if (!F::aux && c > 0 && tile.column + c * columns >= in.N) { break; } // aux: all its loads must be consumed
            float sums[16] = {}; // of the thread's rows, as sum_columns() takes them
#pragma unroll
            for (int block = 0; block < row_blocks; block++) {
                const int turn = c * row_blocks + block;
                if constexpr (ring_chunks > 0) { // until TMA has read what is in the ring's slot
                    if (tile.leader()) { cp_async_bulk_wait_group_read<depth - 1>(); }
                    tile.sync();
                }
                auto box = [&](int o) -> uint32_t {
                    if constexpr (F::aux) { return shared_address(o == 0 ? aux.chunk(turn) : ring.chunks); }
                    return shared_address(ring.chunks + (turn % depth * outputs + o) * CHUNK_BYTES);
                };
                if constexpr (F::aux) { aux.wait(turn); }
#pragma unroll
                for (int j = 0; j < columns / 16; j++) { // two octets of columns
                    uint32_t aux4[4] = {}, out[outputs][4];
                    if constexpr (F::aux) { mma::ldmatrix_x4(aux4, box(0) + matrix_offset(base, 2 * j)); }
#pragma unroll
                    for (int q = 0; q < 4; q++) {
                        const int i = c * columns / 2 + j * 8 + q * 2;
                        uint32_t pair[outputs];
                        const float2 x = {acc[block][i], acc[block][i + 1]}, b = mma::float2_of(bias[2 * j + q / 2]);
                        if constexpr (column_sums) {
                            const float2 y = F::apply(pair, x, b, mma::float2_of(aux4[q]));
                            sums[j * 4 + q / 2 * 2] += y.x, sums[j * 4 + q / 2 * 2 + 1] += y.y;
                        } else {
                            F::apply(pair, x, b, mma::float2_of(aux4[q]));
                        }
#pragma unroll
                        for (int o = 0; o < outputs; o++) { out[o][q] = pair[o]; }
                    }
#pragma unroll
                    for (int o = 0; o < outputs; o++) {
                        mma::stmatrix_x4(box(o) + matrix_offset(base, 2 * j), out[o][0], out[o][1], out[o][2],
                                         out[o][3]);
                    }
                }
                const bool last = block == row_blocks - 1;
                if (last && c + 1 < chunks) {
                    load_bias(bias, in, tile.column + (c + 1) * columns + fragment_column(tile.thread(), 0));
                }
                if (column_sums && last) {
                    const int t = tile.thread();
                    *reinterpret_cast<float2*>(&ring.sums[t / 32][kept_column(t, 0)]) = sum_columns(sums, t);
                }
                fence_proxy_async();
                tile.sync();
                const int row = tile.row + block * BLOCK_ROWS, column = tile.column + c * columns;
                if (tile.leader()) {
                    cp_async_bulk_tensor(&maps.out, column, row, box(0));
                    if (outputs == 2) { cp_async_bulk_tensor(&maps.second, column, row, box(outputs - 1)); }
                    cp_async_bulk_commit_group();
                    if constexpr (F::aux) { aux.refill(turn); }
                }
                const int t = tile.thread();
                if (column_sums && last && t < columns && tile.row < in.M && column + t < in.N) {
                    in.column_partials[(int64_t)(tile.row / (row_blocks * BLOCK_ROWS)) * in.N + column + t] =
                        ring.sums[0][t] + ring.sums[1][t] + (ring.sums[2][t] + ring.sums[3][t]);
                }
            }
        }
    }
};

// 2^((D - target_logits) log2 e + TARGET_EXPONENT): the target's is 2^TARGET_EXPONENT
constexpr float TARGET_EXPONENT = -24;
__device__ inline float target_offset(float target_logit) { return fmaf(-target_logit, LOG2_E, TARGET_EXPONENT); }

// What the sums of int8 operands are to be multiplied by, of a thread's N in each of row_blocks blocks of rows
template <int row_blocks, int N> struct Int8Scales {
    float rows[row_blocks][2]; // of rows h = 0 and 1 of a block
    uint32_t columns[N / 4];   // of the pair of columns in each octet, as they are stored

    __device__ Int8Scales(const EpilogueInput& in, const ConsumerTile& tile) {
#pragma unroll
        for (int i = 0; i < 2 * row_blocks; i++) {
            const int row = tile.row + i / 2 * BLOCK_ROWS + fragment_row(tile.thread(), i % 2 * 2);
            rows[i / 2][i % 2] = row < in.M ? __ldg(in.a_row_scales + row) : 0;
        }
#pragma unroll
        for (int n = 0; n < N / 4; n++) {
            const int pair = tile.column + fragment_column(tile.thread(), 0) + n * 8;
            columns[n] = pair < in.N ? __ldcg(reinterpret_cast<const unsigned*>(in.b_row_scales + pair)) : 0;
        }
    }
    // sum, element i of a block's accumulator, scaled
    __device__ float scaled(int sum, int block, int i) const {
        const float2 pair = mma::float2_of(columns[i / 4]);
        return (float)sum * rows[block][i / 2 % 2] * (i % 2 ? pair.y : pair.x);
    }
    // all of them
    __device__ void scale(float (&out)[row_blocks][N], const int (&sums)[row_blocks][N]) const {
#pragma unroll
        for (int i = 0; i < row_blocks * N; i++) { out[i / N][i % N] = scaled(sums[i / N][i % N], i / N, i % N); }
    }
};

struct Int8AddBias : Elementwise<AddBias> {
    template <int row_blocks, int N, class Finish, class Aux>
    static __device__ void store(int (&acc)[row_blocks][N], Finish finish, const Aux& aux, const Ring& ring,
                                 const GemmMaps& maps, const EpilogueInput& in, const ConsumerTile& tile) {
        const Int8Scales<row_blocks, N> scales(in, tile);
        float products[row_blocks][N];
        const auto finish_and_scale = [&] {
            finish();
            scales.scale(products, acc);
        };
        Elementwise<AddBias>::store(products, finish_and_scale, aux, ring, maps, in, tile);
    }
};

// Logits, in acc: those of the padding become -infinity. exponential(x, block, i), of element i, may change x; its sums over
// the tile's columns are stored for each row.
template <int row_blocks, int N, class Exponential>
__device__ inline void store_exponential_sums(float (&acc)[row_blocks][N], Exponential exponential,
                                              const EpilogueInput& in, const ConsumerTile& tile) {
    constexpr int BN = 2 * N;
    if (tile.column + BN > in.classes) {
        const int classes = in.classes - tile.column;
#pragma unroll
        for (int block = 0; block < row_blocks; block++) {
#pragma unroll
            for (int i = 0; i < N; i++) {
                if (fragment_column(tile.thread(), i) >= classes) { acc[block][i] = -INFINITY; }
            }
        }
    }
    float* const sums = in.row_sums + (int64_t)(tile.column / BN) * in.M;
#pragma unroll
    for (int block = 0; block < row_blocks; block++) {
        float l[4] = {}; // of rows h = 0 and 1, columns e = 0 and 1: element i is of row i / 2 % 2 and column i % 2
#pragma unroll
        for (int i = 0; i < N; i++) { l[i % 4] += exponential(acc[block][i], block, i); }
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float sum = l[2 * h] + l[2 * h + 1];
            for (int lane = 1; lane < 4; lane *= 2) { sum += __shfl_xor_sync(0xffffffffu, sum, lane); }
            const int row = tile.row + block * BLOCK_ROWS + fragment_row(tile.thread(), 2 * h);
            if (tile.thread() % 4 == 0 && row < in.M && tile.column < in.N) { sums[row] = sum; }
        }
    }
}

// Unnormalised softmax: D <- the exponentials above, 0 in the padding, and their sums
struct ExponentialSums : Elementwise<Plain> {
    template <int row_blocks, int N, class Finish, class Aux>
    static __device__ void store(float (&acc)[row_blocks][N], Finish finish, const Aux& aux, const Ring& ring,
                                 const GemmMaps& maps, const EpilogueInput& in, const ConsumerTile& tile) {
        float offset[row_blocks][2];
#pragma unroll
        for (int i = 0; i < 2 * row_blocks; i++) {
            const int row = tile.row + i / 2 * BLOCK_ROWS + fragment_row(tile.thread(), i % 2 * 2);
            offset[i / 2][i % 2] = row < in.M ? target_offset(__ldg(in.target_logits + row)) : 0;
        }
        finish();
        const auto exponential = [&](float& x, int block, int i) {
            return x = ex2_approx_ftz(fmaf(x, LOG2_E, offset[block][i / 2 % 2]));
        };
        store_exponential_sums(acc, exponential, in, tile);
        Elementwise<Plain>::store(
            acc, [] {}, aux, ring, maps, in, tile);
    }
};

// D <- the logits, and the sums of e^D
struct Int8LogitSums : Elementwise<Plain> {
    template <int row_blocks, int N, class Finish, class Aux>
    static __device__ void store(int (&acc)[row_blocks][N], Finish finish, const Aux& aux, const Ring& ring,
                                 const GemmMaps& maps, const EpilogueInput& in, const ConsumerTile& tile) {
        const Int8Scales<row_blocks, N> scales(in, tile);
        float logits[row_blocks][N];
        finish();
        scales.scale(logits, acc);
        const auto exponential = [](float& x, int, int) {
            x = (float)(floatX)x; // as it is stored
            return ex2_approx_ftz(x * LOG2_E);
        };
        store_exponential_sums(logits, exponential, in, tile);
        Elementwise<Plain>::store(
            logits, [] {}, aux, ring, maps, in, tile);
    }
};

} // namespace wgmma

#endif
