/*
The MLP's GEMMs of e4m3 operands on Hopper (wgmma_matmul.cuh), with epilogues that quantise what the next GEMMs read: no pass
over an activation stands between them.

    forward     pre (R,4C) = inp W^T + bias in 16 bit, and the codes of act = gelu(pre), in rows
    backward    the codes of dpre = (dout W) gelu'(pre), in rows and in columns; those of gelu(pre), in columns; dbias

Tensor cores add to 14 bits (PROTOCOL.md). K is C, at most some thousand: what that loses is far below what quantising loses.

A warp has 16 rows of 64 columns, a thread two columns of every eight: four shuffles give it 16 codes of a row, which it
stores, and twelve give it two columns of all 16 rows, which go to shared memory and leave by TMA.
*/
#ifndef WGMMA_FP8_CUH
#define WGMMA_FP8_CUH

#include "fp8.cuh"
#include "wgmma_matmul.cuh"

namespace wgmma {

// Codes of a warp's 16 rows of 64 columns: word n has those of the thread's columns e = 0, 1 of octet n and rows h = 0, 1
// (fragment_row, fragment_column), at byte 2 h + e.
typedef uint32_t Codes[8];

// to[s] = from[lane % 4] of the quad's lane s
__device__ inline void transpose_quad(uint32_t (&to)[4], const uint32_t (&from)[4], int lane) {
    const bool b0 = lane & 1, b1 = lane & 2;
    const uint32_t kept[2] = {b1 ? from[2] : from[0], b1 ? from[3] : from[1]};
    const uint32_t got[2] = {__shfl_xor_sync(0xffffffffu, b1 ? from[0] : from[2], 2),
                             __shfl_xor_sync(0xffffffffu, b1 ? from[1] : from[3], 2)};
    // of the lane itself, of that at distance 2, 1 and 3
    const uint32_t at0 = b0 ? kept[1] : kept[0], at2 = b0 ? got[1] : got[0];
    const uint32_t at1 = __shfl_xor_sync(0xffffffffu, b0 ? kept[0] : kept[1], 1);
    const uint32_t at3 = __shfl_xor_sync(0xffffffffu, b0 ? got[0] : got[1], 1);
    const uint32_t low0 = b1 ? at2 : at0, low1 = b1 ? at3 : at1, high0 = b1 ? at0 : at2, high1 = b1 ? at1 : at3;
    to[0] = b0 ? low1 : low0, to[1] = b0 ? low0 : low1, to[2] = b0 ? high1 : high0, to[3] = b0 ? high0 : high1;
}

// to[s] = from[lane / 4] of lane 4 s + lane % 4
__device__ inline void transpose_octets(uint32_t (&to)[8], const Codes& from, int lane) {
    uint32_t a[2][4], b[4][2];
    const bool g0 = lane & 4, g1 = lane & 8, g2 = lane & 16;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint32_t kept = g2 ? from[4 + i] : from[i];
        const uint32_t got = __shfl_xor_sync(0xffffffffu, g2 ? from[i] : from[4 + i], 16);
        a[0][i] = g2 ? got : kept, a[1][i] = g2 ? kept : got;
    }
#pragma unroll
    for (int s = 0; s < 2; s++) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint32_t kept = g1 ? a[s][2 + i] : a[s][i];
            const uint32_t got = __shfl_xor_sync(0xffffffffu, g1 ? a[s][i] : a[s][2 + i], 8);
            b[2 * s][i] = g1 ? got : kept, b[2 * s + 1][i] = g1 ? kept : got;
        }
    }
#pragma unroll
    for (int s = 0; s < 4; s++) {
        const uint32_t kept = g0 ? b[s][1] : b[s][0];
        const uint32_t got = __shfl_xor_sync(0xffffffffu, g0 ? b[s][0] : b[s][1], 4);
        to[2 * s] = g0 ? got : kept, to[2 * s + 1] = g0 ? kept : got;
    }
}

// rows (M,N) = the codes from row `row`, the warp's first, and column `column` on
__device__ inline void store_rows(uint8_t* rows, const Codes& codes, int row, int column, int M, int N, int lane) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
        uint32_t pairs[4], of_quad[4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            pairs[j] = __byte_perm(codes[2 * j], codes[2 * j + 1], h == 0 ? 0x5410 : 0x7632);
        }
        transpose_quad(of_quad, pairs, lane);
        const int r = row + h * 8 + lane / 4, c = column + lane % 4 * 16;
        if (r < M && c < N) {
            *reinterpret_cast<uint4*>(rows + (int64_t)r * N + c) =
                make_uint4(__byte_perm(of_quad[0], of_quad[1], 0x5410), __byte_perm(of_quad[2], of_quad[3], 0x5410),
                           __byte_perm(of_quad[0], of_quad[1], 0x7632), __byte_perm(of_quad[2], of_quad[3], 0x7632));
        }
    }
}

// box = the codes transposed, (64 columns, 128 rows) in TMA's swizzle; piece: which 16 of the rows are the warp's
__device__ inline void stage_columns(char* box, const Codes& codes, int piece, int lane) {
    uint32_t w[8];
    transpose_octets(w, codes, lane);
    const int first = lane / 4 * 8 + lane % 4 * 2;
#pragma unroll
    for (int e = 0; e < 2; e++) {
        uint32_t two[4]; // lanes 2 i and 2 i + 1: rows h = 0 of both, then h = 1
#pragma unroll
        for (int i = 0; i < 4; i++) { two[i] = __byte_perm(w[2 * i], w[2 * i + 1], e == 0 ? 0x6240 : 0x7351); }
        *reinterpret_cast<uint4*>(box + swizzled_offset(first + e, piece * 16)) =
            make_uint4(__byte_perm(two[0], two[1], 0x5410), __byte_perm(two[2], two[3], 0x5410),
                       __byte_perm(two[0], two[1], 0x7632), __byte_perm(two[2], two[3], 0x7632));
    }
}

// The epilogue of either direction. BACKWARD: aux is pre; once a chunk of its columns has been read, the slots of its two boxes
// hold the columns of dpre and of the activation. Rows are stored last, since the fence before TMA waits for a thread's stores.
template <bool BACKWARD> struct QuantisedGelu {
    static constexpr bool has_aux = BACKWARD, column_sums = BACKWARD, transposes = BACKWARD;
    static constexpr int depth = 2, ring_chunks = BACKWARD ? 0 : depth; // of pre

    template <int row_blocks, int N, class Finish, class Aux>
    static __device__ void store(float (&acc)[row_blocks][N], Finish finish, const Aux& aux, const Ring& ring,
                                 const GemmMaps& maps, const EpilogueInput& in, const ConsumerTile& tile) {
        constexpr int columns = CHUNK_COLUMNS, chunks = 2 * N / columns;
        static_assert(row_blocks == 2, "a chunk's two boxes of pre are the two boxes of columns");
        const int base = matrix_base(tile.thread());
        uint32_t bias[columns / 8] = {};
        if constexpr (!BACKWARD) {
            Elementwise<AddBias>::load_bias(bias, in, tile.column + fragment_column(tile.thread(), 0));
        }
        finish();
        const float inverse = 1.0f / __ldg(in.scale), act_inverse = BACKWARD ? 1.0f / __ldg(in.act_scale) : 0;
#pragma unroll
        for (int c = 0; c < chunks; c++) {
            const int column = tile.column + c * columns;
            if (!BACKWARD && c > 0 && column >= in.N) { break; }
            float largest = 0;
            float sums[16] = {}; // of the thread's rows, as sum_columns() takes them
            Codes codes[row_blocks], act_codes[row_blocks];
#pragma unroll
            for (int block = 0; block < row_blocks; block++) {
                const int turn = c * row_blocks + block;
                const uint32_t box =
                    shared_address(BACKWARD ? aux.chunk(turn) : ring.chunks + turn % depth * CHUNK_BYTES);
                if constexpr (BACKWARD) {
                    aux.wait(turn);
                } else { // until TMA has read what is in the ring's slot
                    if (tile.leader()) { cp_async_bulk_wait_group_read<depth - 1>(); }
                    tile.sync();
                }
#pragma unroll
                for (int j = 0; j < columns / 16; j++) { // two octets of columns
                    uint32_t pre4[4] = {};
                    if constexpr (BACKWARD) { mma::ldmatrix_x4(pre4, box + matrix_offset(base, 2 * j)); }
#pragma unroll
                    for (int octet = 2 * j; octet < 2 * j + 2; octet++) {
                        float2 out[2], act[2];
#pragma unroll
                        for (int h = 0; h < 2; h++) {
                            const int i = c * columns / 2 + octet * 4 + h * 2, q = octet % 2 * 2 + h;
                            const float2 x = {acc[block][i], acc[block][i + 1]};
                            if constexpr (!BACKWARD) {
                                const float2 b = mma::float2_of(bias[octet]);
                                pre4[q] = mma::cvt_rn_x2(x.x + b.x, x.y + b.y);
                            }
                            const float2 pre = mma::float2_of(pre4[q]), sigma = {gelu_sigma(pre.x), gelu_sigma(pre.y)};
                            act[h] = {gelu(pre.x, sigma.x), gelu(pre.y, sigma.y)};
                            out[h] = act[h];
                            if constexpr (BACKWARD) {
                                out[h] = {x.x * gelu_derivative(pre.x, sigma.x), x.y * gelu_derivative(pre.y, sigma.y)};
                                sums[2 * octet] += out[h].x, sums[2 * octet + 1] += out[h].y;
                            }
                            largest = larger_magnitude(larger_magnitude(largest, out[h].x), out[h].y);
                        }
                        codes[block][octet] = four_codes(out[0], out[1], inverse);
                        if (BACKWARD) { act_codes[block][octet] = four_codes(act[0], act[1], act_inverse); }
                    }
                    if constexpr (!BACKWARD) {
                        mma::stmatrix_x4(box + matrix_offset(base, 2 * j), pre4[0], pre4[1], pre4[2], pre4[3]);
                    }
                }
                if constexpr (!BACKWARD) {
                    fence_proxy_async();
                    tile.sync();
                    if (tile.leader()) {
                        cp_async_bulk_tensor(&maps.out, column, tile.row + block * BLOCK_ROWS, box);
                        cp_async_bulk_commit_group();
                    }
                }
            }
            const int t = tile.thread(), warp = t / WARP_SIZE, lane = t % WARP_SIZE;
            if constexpr (BACKWARD) {
                const float2 sum = sum_columns(sums, t);
                char *box = aux.chunk(c * row_blocks), *act_box = aux.chunk(c * row_blocks + 1);
                tile.sync(); // all have read pre, and the sums of the chunk before
                *reinterpret_cast<float2*>(&ring.sums[warp][kept_column(t, 0)]) = sum;
#pragma unroll
                for (int block = 0; block < row_blocks; block++) {
                    stage_columns(box, codes[block], block * 4 + warp, lane);
                    stage_columns(act_box, act_codes[block], block * 4 + warp, lane);
                }
                fence_proxy_async();
                tile.sync();
                if (tile.leader()) {
                    cp_async_bulk_tensor(&maps.out, tile.row / 2, column, shared_address(box));
                    cp_async_bulk_tensor(&maps.second, tile.row / 2, column, shared_address(act_box));
                    cp_async_bulk_commit_group();
                }
                if (t < columns && tile.row < in.M && column + t < in.N) {
                    in.column_partials[(int64_t)(tile.row / (row_blocks * BLOCK_ROWS)) * in.N + column + t] =
                        ring.sums[0][t] + ring.sums[1][t] + (ring.sums[2][t] + ring.sums[3][t]);
                }
            } else if (c + 1 < chunks) {
                Elementwise<AddBias>::load_bias(bias, in, column + columns + fragment_column(t, 0));
            }
#pragma unroll
            for (int block = 0; block < row_blocks; block++) {
                store_rows(in.rows, codes[block], tile.row + block * BLOCK_ROWS + warp * 16, column, in.M, in.N, lane);
            }
            warp_collect_amax(in.amax, largest);
        }
    }
};

// Two codes along K are an element of 16 bits.
static Gemm gemm_of_codes(int M, int N, int K, const MatmulTensors* t) {
    return {{M, N, K / 2}, (const floatX*)t->a, (const floatX*)t->b, nullptr, nullptr, nullptr};
}

static EpilogueInput codes_input(const MatmulTensors* t, const Fp8Outputs& out) {
    EpilogueInput in = {};
    in.a_scale = t->a_scale, in.b_scale = t->b_scale;
    in.rows = out.rows, in.scale = out.scale, in.act_scale = out.act_scale, in.amax = out.amax;
    return in;
}

} // namespace wgmma

Status fp8_fc(const MatmulTensors* t, const Fp8Outputs& out, MatmulSizes s, cudaStream_t stream) {
    using namespace wgmma;
    EpilogueInput in = codes_input(t, out);
    in.bias = t->bias;
    Gemm gemm = gemm_of_codes(s.R, s.OUT, s.IN, t);
    gemm.out = t->pre;
    return launch_gemm<MatmulTiles<PingPong128x128x2, false, QuantisedGelu<false>, true>>(gemm, in, stream);
}

Status fp8_dgelu(const MatmulTensors* t, const Fp8Outputs& out, MatmulSizes s, void* scratch, cudaStream_t stream) {
    using namespace wgmma;
    typedef PingPong128x128x2 T;
    static_assert(T::row_blocks * BLOCK_ROWS == QUANTIZE_ROWS, "partial sums of as many rows");
    EpilogueInput in = codes_input(t, out);
    in.column_partials = (float*)scratch;
    Gemm gemm = gemm_of_codes(s.R, s.IN, s.OUT, t);
    gemm.out = (floatX*)out.columns, gemm.second = (floatX*)out.act_columns, gemm.aux = t->pre;
    TRY((launch_gemm<MatmulTiles<T, false, QuantisedGelu<true>, true>>(gemm, in, stream)));
    column_sum_partials(t->dbias, (float*)scratch, CEIL_DIV(s.R, QUANTIZE_ROWS), s.IN, s.IN, stream);
    return status_now();
}

#endif
