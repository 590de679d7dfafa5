/*
GEMMs of 8-bit operands on Hopper (wgmma_matmul.cuh). Those of the MLP have epilogues that quantise what the next GEMMs read, so
that no pass over an activation stands between them; that of the classifier adds up its softmax. Inputs that are LayerNorm's
output are in int8, and so are the weights that they meet, both with a scale for each row. All others are in e4m3.

    qkv           out (R,3C) = inp W^T + bias in 16 bit
    fc            pre (R,4C) = inp W^T + bias in 16 bit, and the codes of act = gelu(pre), in rows
    dgelu         the codes of dpre = (dout W) gelu'(pre), in rows and in columns; those of gelu(pre), in columns; dbias
    classifier    logits (R,Vp) in 16 bit, losses, and what their gradient follows from in each row

Tensor cores add products of e4m3 to 14 bits (PROTOCOL.md): with K = C, some thousand, that loses far less than quantising.

In the order of codes along K (quantize.cuh), a thread's four of 16 columns are neighbours in a row, and so are those of its
two rows in a column. stmatrix takes rows as they are and transposes columns; both leave by TMA.
*/
#ifndef WGMMA_FP8_CUH
#define WGMMA_FP8_CUH

#include "fp8.cuh"
#include "wgmma_matmul.cuh"
#include "llmc/cuda/classifier.cuh"

namespace wgmma {

// Codes of a warp's 16 rows of 64 columns: word [j][h] has those of the thread's row h = 0 or 1 (fragment_row) and its columns
// of the 16 from 16 j on, in the order of codes.
typedef uint32_t Codes[4][2];

// box (64 rows, 128 columns), in TMA's swizzle, = the codes of the warp's rows, chunk c of the columns. base: matrix_base()
__device__ inline void stage_rows(uint32_t box, const Codes& codes, int c, int base) {
#pragma unroll
    for (int j = 0; j < 4; j += 2) { // 16 codes are an octet of 16-bit elements
        mma::stmatrix_x4(box + matrix_offset(base, 4 * c + j), codes[j][0], codes[j][1], codes[j + 1][0],
                         codes[j + 1][1]);
    }
}

// box (64 columns, 128 rows), in TMA's swizzle, = words transposed: of octet n of columns, the codes of columns e = 0, 1 and
// rows h = 0, 1 at byte 2 e + h. piece: which 16 of the rows are the warp's
__device__ inline void stage_columns(uint32_t box, const uint32_t (&words)[8], int piece, int lane) {
    const uint32_t at = box + swizzled_offset(lane, piece * 16);
    mma::stmatrix_x4_trans(at, words[0], words[1], words[2], words[3]);
    mma::stmatrix_x4_trans(at + 32 * SWIZZLE_ROW, words[4], words[5], words[6], words[7]);
}

// In place of Int8Scales: sums of e4m3 are scaled later
struct Unscaled {
    __device__ Unscaled(const EpilogueInput&, const ConsumerTile&) {}
    __device__ float scaled(float sum, int, int) const { return sum; }
};

// The epilogue of either direction. BACKWARD: aux is pre; once a chunk of its columns has been read, the slots of its two boxes
// hold the columns of dpre and of the activation. Forward they hold pre. Once TMA has stored the first chunk's, the last chunk
// puts the tile's codes in rows there. The fence before TMA waits for a thread's own accesses, and a warp has its scheduler for
// itself, so nothing else runs meanwhile: what goes to global memory without TMA goes last. 4C columns are whole tiles.
template <bool BACKWARD> struct QuantisedGelu {
    static constexpr bool has_aux = BACKWARD, column_sums = BACKWARD, transposes = BACKWARD;
    static constexpr int ring_chunks = BACKWARD ? 0 : 4; // of pre: a tile's

    template <class Sum, int row_blocks, int N, class Finish, class Aux>
    static __device__ void store(Sum (&acc)[row_blocks][N], Finish finish, const Aux& aux, const Ring& ring,
                                 const GemmMaps& maps, const EpilogueInput& in, const ConsumerTile& tile) {
        constexpr int columns = CHUNK_COLUMNS, chunks = 2 * N / columns;
        constexpr uint32_t NANS = 0x7f7f7f7f;
        static_assert(row_blocks == 2, "a chunk's two boxes of pre are the two boxes of columns");
        static_assert(BACKWARD || chunks * row_blocks == ring_chunks, "a slot for each box of pre");
        const int base = matrix_base(tile.thread());
        const auto box_of = [&](int turn) {
            return shared_address(BACKWARD ? aux.chunk(turn) : ring.chunks + turn * CHUNK_BYTES);
        };
        const int pair = tile.column + fragment_column(tile.thread(), 0);
        uint32_t bias[chunks * columns / 8] = {};
#pragma unroll
        for (int n = 0; !BACKWARD && n < chunks * columns / 8; n++) {
            bias[n] = __ldcg(reinterpret_cast<const unsigned*>(in.bias + pair + n * 8));
        }
        const float scale = BACKWARD ? __ldg(in.a_scale) * __ldg(in.b_scale) : 0, out_scale = __ldg(in.scale);
        const float act_inverse = BACKWARD ? 1.0f / __ldg(in.act_scale) : 0;
        const unsigned known = __ldcg(in.amax);
        const std::conditional_t<BACKWARD, Unscaled, Int8Scales<row_blocks, N>> scales(in, tile);
        finish();
        // Forward, act is divided by out_scale before: its codes need no factor, its magnitude needs out_scale. Backward,
        // products lack `scale`: codes need scale / out_scale, magnitude and sums need scale.
        const float inverse = BACKWARD ? scale / out_scale : 1.0f, unit = BACKWARD ? scale : out_scale;
        Codes codes[chunks][row_blocks];
        float column_sum[chunks] = {}, tile_largest = 0;
#pragma unroll
        for (int c = 0; c < chunks; c++) {
            const int column = tile.column + c * columns;
            const bool last = c == chunks - 1;
            float largest = 0;
            float sums[16] = {}; // of the thread's rows, as sum_columns() takes them
            uint32_t act_words[row_blocks][8];
#pragma unroll
            for (int block = 0; block < row_blocks; block++) {
                float of_row[2] = {}; // the largest of the thread's rows h
                const int turn = c * row_blocks + block;
                const uint32_t box = box_of(turn);
                if constexpr (BACKWARD) {
                    aux.wait(turn);
                } else if (turn == 0) { // until TMA has read the last tile's from the slots
                    if (tile.leader()) { cp_async_bulk_wait_group_read<0>(); }
                    tile.sync();
                }
#pragma unroll
                for (int j = 0; j < columns / 16; j++) { // two octets of columns
                    uint32_t pre4[4] = {};
                    if constexpr (BACKWARD) { mma::ldmatrix_x4(pre4, box + matrix_offset(base, 2 * j)); }
                    float2 out[2][2]; // of two octets, rows h
#pragma unroll
                    for (int o = 0; o < 2; o++) {
                        const int octet = 2 * j + o;
                        float2 act[2];
#pragma unroll
                        for (int h = 0; h < 2; h++) {
                            const int i = c * columns / 2 + octet * 4 + h * 2, q = 2 * o + h;
                            const float2 x = {scales.scaled(acc[block][i], block, i),
                                              scales.scaled(acc[block][i + 1], block, i + 1)};
                            if constexpr (!BACKWARD) {
                                const float2 b = mma::float2_of(bias[c * columns / 8 + octet]);
                                pre4[q] = mma::cvt_rn_x2(x.x + b.x, x.y + b.y);
                            }
                            const float2 pre = mma::float2_of(pre4[q]);
                            const float over = BACKWARD ? 1.0f : out_scale;
                            const float2 sigma = {gelu_sigma(pre.x, over), gelu_sigma(pre.y, over)};
                            act[h] = {gelu(pre.x, sigma.x), gelu(pre.y, sigma.y)};
                            out[o][h] = act[h];
                            if constexpr (BACKWARD) {
                                out[o][h] = {x.x * gelu_derivative(pre.x, sigma.x),
                                             x.y * gelu_derivative(pre.y, sigma.y)};
                                sums[2 * octet] += out[o][h].x, sums[2 * octet + 1] += out[o][h].y;
                            }
                            of_row[h] = larger_magnitude(larger_magnitude(of_row[h], out[o][h].x), out[o][h].y);
                        }
                        if (BACKWARD) { act_words[block][octet] = four_codes(act[0], act[1], act_inverse); }
                    }
#pragma unroll
                    for (int h = 0; h < 2; h++) {
                        codes[c][block][j][h] = four_codes(out[0][h], out[1][h], BACKWARD ? inverse : 1.0f);
                    }
                    if constexpr (!BACKWARD) {
                        mma::stmatrix_x4(box + matrix_offset(base, 2 * j), pre4[0], pre4[1], pre4[2], pre4[3]);
                    }
                }
#pragma unroll
                for (int h = 0; h < 2; h++) { // forward, rows beyond M are gelu(bias)
                    const int row = tile.row + block * BLOCK_ROWS + fragment_row(tile.thread(), 2 * h);
                    largest = larger_magnitude(largest, BACKWARD || row < in.M ? of_row[h] : 0.0f);
                }
            }
            if (!(largest <= FLT_MAX)) { // saturating would hide it
#pragma unroll
                for (int i = 0; i < row_blocks * 8; i++) { codes[c][i / 8][i / 2 % 4][i % 2] = NANS; }
            }
            tile_largest = larger_magnitude(tile_largest, largest);
            // Until all have read pre and the sums of the chunk before; the last, until TMA has read the first chunk's boxes
            if (last && tile.leader()) { cp_async_bulk_wait_group_read<0>(); }
            if (BACKWARD || last) { tile.sync(); }
            if (last) {
#pragma unroll
                for (int i = 0; i < chunks * row_blocks; i++) {
                    stage_rows(box_of(i % row_blocks), codes[i / row_blocks][i % row_blocks], i / row_blocks, base);
                }
            }
            if constexpr (BACKWARD) {
                const int t = tile.thread(), warp = t / WARP_SIZE, lane = t % WARP_SIZE;
                float2 sum = sum_columns(sums, t);
                sum = {sum.x * scale, sum.y * scale};
                const uint32_t box = box_of(c * row_blocks), act_box = box_of(c * row_blocks + 1);
                *reinterpret_cast<float2*>(&ring.sums[warp][kept_column(t, 0)]) = sum;
#pragma unroll
                for (int block = 0; block < row_blocks; block++) {
                    uint32_t words[8];
#pragma unroll
                    for (int n = 0; n < 8; n++) {
                        words[n] =
                            __byte_perm(codes[c][block][n / 2][0], codes[c][block][n / 2][1], n % 2 ? 0x7351 : 0x6240);
                    }
                    stage_columns(box, words, block * 4 + warp, lane);
                    stage_columns(act_box, act_words[block], block * 4 + warp, lane);
                }
            }
            fence_proxy_async();
            tile.sync();
            if (tile.leader()) {
                if constexpr (BACKWARD) {
                    cp_async_bulk_tensor(&maps.out, tile.row / 2, column, box_of(c * row_blocks));
                    cp_async_bulk_tensor(&maps.second, tile.row / 2, column, box_of(c * row_blocks + 1));
                }
#pragma unroll
                for (int block = 0; block < row_blocks; block++) {
                    const int row = tile.row + block * BLOCK_ROWS;
                    if (!BACKWARD) { cp_async_bulk_tensor(&maps.out, column, row, box_of(c * row_blocks + block)); }
                    if (last) { cp_async_bulk_tensor(&maps.rows, tile.column / 2, row, box_of(block)); }
                }
                cp_async_bulk_commit_group();
            }
            const int t = tile.thread();
            if (BACKWARD && t < columns) {
                column_sum[c] = ring.sums[0][t] + ring.sums[1][t] + (ring.sums[2][t] + ring.sums[3][t]);
            }
        }
        const int t = tile.thread();
        if (in.counts && is_counted(tile.row)) {
#pragma unroll
            for (int i = 0; i < chunks * row_blocks; i++) {
                const int c = i / row_blocks, block = i % row_blocks;
                const int row = tile.row + block * BLOCK_ROWS + t / WARP_SIZE * 16;
                const auto& words = reinterpret_cast<const uint32_t(&)[8]>(codes[c][block]);
                warp_count_codes(in.counts, words, row < in.M);
            }
        }
#pragma unroll
        for (int c = 0; c < chunks; c++) {
            const int column = tile.column + c * columns + t;
            if (BACKWARD && t < columns && tile.row < in.M) {
                in.column_partials[(int64_t)(tile.row / (row_blocks * BLOCK_ROWS)) * in.N + column] = column_sum[c];
            }
        }
        warp_collect_amax(in.amax, known, tile_largest * unit);
    }
};

// Two codes along K are an element of 16 bits.
static Gemm gemm_of_codes(int M, int N, int K, const MatmulTensors* t) {
    return {{M, N, K / 2}, (const floatX*)t->a, (const floatX*)t->b, nullptr, nullptr, nullptr};
}

static EpilogueInput codes_input(const MatmulTensors* t, const Fp8Outputs& out) {
    EpilogueInput in = {};
    in.a_scale = t->a_scale, in.b_scale = t->b_scale, in.a_row_scales = t->a_row_scales;
    in.b_row_scales = t->b_row_scales;
    in.scale = out.scale, in.act_scale = out.act_scale, in.amax = out.amax, in.counts = out.counts;
    return in;
}

// Statistics and losses of 32 rows, as classifier_statistics() has them, from the sums (tiles,R) of e^logit. Where these leave
// fp32's range, from the logits themselves.
static __global__ void __launch_bounds__(CLASSIFIER_THREADS)
    logit_statistics_kernel(float2* statistics, float* losses, const float* sums, const floatX* logits,
                            const int* targets, float gradient_scale, int tiles, int R, int V, int Vp) {
    // ex2 flushes terms below 2^-126: 2^16 of them are 2^-20 of the smallest sum. gradient_scale by the largest is normal.
    constexpr float SMALLEST = 0x1p-90f, LARGEST = 0x1p90f;
    __shared__ float partial[WARP_SIZE][WARP_SIZE + 1];
    __shared__ int served[WARP_SIZE];
    const int lane = threadIdx.x % WARP_SIZE, slice = threadIdx.x / WARP_SIZE, first = blockIdx.x * WARP_SIZE;
    float l = 0;
    for (int tile = slice; tile < tiles && first + lane < R; tile += WARP_SIZE) {
        l += sums[(int64_t)tile * R + first + lane];
    }
    partial[slice][lane] = l;
    __syncthreads();
    l = warp_sum(partial[lane][slice]); // a warp for each row
    const int row = first + slice, serves = row >= R || (l >= SMALLEST && l <= LARGEST);
    if (lane == 0 && row < R && serves) {
        losses[row] += logf(l) - (float)logits[(int64_t)row * Vp + targets[row]];
        statistics[row] = make_float2(0, gradient_scale / l);
    }
    served[slice] = serves;
    if (!__syncthreads_or(!serves)) { return; }
    for (int n = 0; n < WARP_SIZE; n++) {
        if (served[n]) { continue; }
        classifier_row_statistics(statistics, losses, logits, targets, gradient_scale, first + n, V, Vp);
        __syncthreads();
    }
}

} // namespace wgmma

Status fp8_qkv(const MatmulTensors* t, MatmulSizes s, cudaStream_t stream) {
    using namespace wgmma;
    EpilogueInput in = codes_input(t, {});
    in.bias = t->bias;
    Gemm gemm = gemm_of_codes(s.R, s.OUT, s.IN, t);
    gemm.out = t->out;
    return launch_gemm<MatmulTiles<PingPong128x128x2, false, Int8AddBias, INT8>>(gemm, in, stream);
}

Status fp8_fc(const MatmulTensors* t, const Fp8Outputs& out, MatmulSizes s, cudaStream_t stream) {
    using namespace wgmma;
    EpilogueInput in = codes_input(t, out);
    in.bias = t->bias;
    Gemm gemm = gemm_of_codes(s.R, s.OUT, s.IN, t);
    gemm.out = t->pre, gemm.rows = (floatX*)out.rows;
    return launch_gemm<MatmulTiles<PingPong128x128x2, false, QuantisedGelu<false>, INT8>>(gemm, in, stream);
}

size_t fp8_classifier_scratch_bytes(MatmulSizes s) {
    return sizeof(float) * s.R * (size_t)CEIL_DIV(s.OUT, wgmma::PingPong128x128x2::BN);
}
Status fp8_classifier(const MatmulTensors* t, float2* statistics, MatmulSizes s, void* scratch, cudaStream_t stream) {
    using namespace wgmma;
    typedef PingPong128x128x2 T;
    EpilogueInput in = codes_input(t, {});
    in.row_sums = (float*)scratch, in.classes = s.vocab_size;
    Gemm gemm = gemm_of_codes(s.R, s.OUT, s.IN, t);
    gemm.out = t->logits;
    TRY((launch_gemm<MatmulTiles<T, false, Int8LogitSums, INT8>>(gemm, in, stream)));
    logit_statistics_kernel<<<CEIL_DIV(s.R, WARP_SIZE), CLASSIFIER_THREADS, 0, stream>>>(
        statistics, t->losses, in.row_sums, t->logits, t->targets, t->gradient_scale, CEIL_DIV(s.OUT, T::BN), s.R,
        s.vocab_size, s.OUT);
    return cuda_try(cudaGetLastError());
}

Status fp8_dgelu(const MatmulTensors* t, const Fp8Outputs& out, MatmulSizes s, void* scratch, cudaStream_t stream) {
    using namespace wgmma;
    typedef PingPong128x128x2 T;
    static_assert(T::row_blocks * BLOCK_ROWS == QUANTIZE_ROWS, "partial sums of as many rows");
    EpilogueInput in = codes_input(t, out);
    in.column_partials = (float*)scratch;
    Gemm gemm = gemm_of_codes(s.R, s.IN, s.OUT, t);
    gemm.out = (floatX*)out.columns, gemm.second = (floatX*)out.act_columns, gemm.rows = (floatX*)out.rows;
    gemm.aux = t->pre;
    TRY((launch_gemm<MatmulTiles<T, false, QuantisedGelu<true>, E4M3>>(gemm, in, stream)));
    column_sum_partials(t->dbias, (float*)scratch, CEIL_DIV(s.R, QUANTIZE_ROWS), s.IN, s.IN, stream);
    return status_now();
}

#endif
