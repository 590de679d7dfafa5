/*
FlashAttention-2 on tensor cores: mma.sync fed by ldmatrix from swizzled shared memory, filled by cp.async.

A CTA owns Br query rows of one head and iterates over the key blocks, Bc keys at a time. A warp owns 16 M of the rows alone:
S, P and O never leave its registers, because the accumulators of S = Q K^T are, register by register, operand A of O += P V.
Against flash2, which multiplies on CUDA cores:
- 32 rows per warp (M = 2): a fragment of K or V that a warp loads feeds two mma. On Hopper that is what counts: a 16x64 tile
  costs 64 clocks of shared memory and 51 of tensor cores, a 32x64 tile 64 and 103.
- cp.async loads K and V of the next block while this one is multiplied: two stages, one __syncthreads a block.
- O is rescaled only when a row's maximum has grown by more than 8 / log2(e) since it was last adopted (P < 2^8).
- A warp stops at its own rows' diagonal; the block that contains it is processed in squares of 16 M: at T = 1024, 97% of the
  executed multiply-adds are useful.
- Long rows first, and heads in groups whose K and V stay in L2 while the group's query blocks run.
Paper: Dao, FlashAttention-2 (2023), algorithm 1.
*/
#include "attention/attention.h"
#include "attention/mma_tiles.cuh"
#include "attention/online_softmax.cuh"

namespace mma {

// Where the documents of a warp's rows begin: starts (T), of the first row and of the last. In shared memory, because
// registers are short.
struct WarpDocuments {
    const int* starts;
    int first, last;
};

// A configuration: warps of a CTA, rows of a warp / 16, keys of a block and of a step, CTAs per SM.
template <int HS_, int WARPS, int M_, int BC, int STEP, int CTAS, bool DOCUMENTS = false> struct ForwardTiles {
    typedef ForwardTiles<HS_, WARPS, M_, BC, STEP, 2, true> WithDocuments; // which takes more registers
    static constexpr bool documents = DOCUMENTS;                           // rows have `starts`
    static constexpr int HS = HS_, M = M_, Bc = BC, step = STEP, threads = WARPS * 32, ctas = CTAS;
    static constexpr int Br = WARPS * M * 16;
    static constexpr float scale = inverse_sqrt(HS);
    typedef WarpRows<HS, M, HS * M <= 128> Rows; // of Q, in registers if it takes at most 32 of them
    static constexpr int q_bytes = Br * HS * 2, kv_bytes = Bc * HS * 2;
    static_assert(Bc % step == 0 && step % (16 * M) == 0, "a step is whole squares of the diagonal");
    static constexpr int tile_bytes = q_bytes + 2 * 2 * kv_bytes; // Q (later O), then two stages of K and V
    // With documents, also where those of each warp's first and last row begin
    static constexpr size_t shared_bytes = tile_bytes + (documents ? WARPS * sizeof(WarpDocuments) : 0);
};

// The online softmax of a warp's 16 M rows. A lane serves rows 16 i + 8 h + lane/4, as [i][h]. With documents a row may see
// none of the first keys: m then begins finite, as -inf - -inf is no number, and below all scores of the contract.
template <int M, bool documents> struct OnlineSoftmax {
    float scale;     // 1/sqrt(HS), a compile-time constant
    float m[M][2];   // the maximum in use, of scale * S
    float sum[M][2]; // of exp(scale S - m), this lane's columns only

    __device__ explicit OnlineSoftmax(float scale) : scale(scale) {
        for_each_row<M>([&](int i, int h) { m[i][h] = documents ? -1e30f : -INFINITY, sum[i][h] = 0; });
    }
    // Adopts the maxima of S if some row of the warp exceeds its own by more than `threshold`; then sum and O are multiplied by
    // exp(old m - m).
    template <int N, int D>
    __device__ void update(const float (&S)[M][N][4], float (&O)[M][D][4], const float threshold) {
        float x[M][2];
        bool exceeds = false;
        for_each_row<M>([&](int i, int h) {
            x[i][h] = fmaxf(S[i][0][2 * h], S[i][0][2 * h + 1]);
#pragma unroll
            for (int n = 1; n < N; n++) { x[i][h] = fmaxf(x[i][h], fmaxf(S[i][n][2 * h], S[i][n][2 * h + 1])); }
            exceeds |= scale * x[i][h] - m[i][h] > threshold;
        });
        if (!__any_sync(0xffffffffu, exceeds)) { return; }
        for_each_row<M>([&](int i, int h) {
            float factor = adopt_row_maximum(m[i][h], sum[i][h], x[i][h], scale);
#pragma unroll
            for (int n = 0; n < D; n++) { O[i][n][2 * h] *= factor, O[i][n][2 * h + 1] *= factor; }
        });
    }
    // S <- P = exp(scale S - m) in columns 16 k to 16 k + 15; sum += P.
    template <int N> __device__ void exponentiate(float (&S)[M][N][4], int k) {
#pragma unroll
        for (int i = 0; i < M; i++) {
#pragma unroll
            for (int e = 0; e < 8; e++) {
                float& s = S[i][2 * k + e / 4][e % 4];
                s = exp_score(s, scale, -(m[i][e / 2 % 2] * LOG2_E), sum[i][e / 2 % 2]);
            }
        }
    }
    // The sum over the row's four lanes.
    __device__ float l(int i, int h) const { return row_sum_of_quad(sum[i][h]); }
};

// S = -inf above the diagonal. (row, column) is the lane's first element of S.
template <int M, int N> __device__ inline void mask_causal(float (&S)[M][N][4], int row, int column) {
    for_each(S, [=](float& s, int i, int n, int e) {
        if (column + 8 * n + e % 2 > row + 16 * i + e / 2 * 8) { s = -INFINITY; }
    });
}

// A warp's rows against 8 N keys: S = Q K^T, P = exp(S - m), O += P V. K and V are tile addresses with the lane's offset,
// (row, column) is the lane's first score. masked: near the diagonal, or in a document's first rows, which adopt every new
// maximum, or before some row's document. two_parts: also O += (P in fp32 - P in 16 bit) V.
template <class C, int N, bool masked, bool two_parts>
__device__ inline void attend(float (&O)[C::M][C::HS / 8][4], OnlineSoftmax<C::M, C::documents>& softmax,
                              const typename C::Rows& Q, uint32_t K, uint32_t V, int row, int column, int T,
                              const WarpDocuments* documents) {
    float S[C::M][N][4];
    fill(S, 0.0f);
    mma_abt(S, Q, K);
    if (masked) { mask_causal(S, row, column); }
    if constexpr (masked && C::documents) {
        if (column < documents->last) { mask_documents(S, row, column, documents->starts, T); }
    }
    softmax.update(S, O, masked ? 0 : RESCALE_THRESHOLD);
#pragma unroll
    for (int k = 0; k < N / 2; k++) { // 16 keys at a time, so that exponentials and mma overlap
        uint32_t P[C::M][4];
        softmax.exponentiate(S, k);
        round_a(P, S, k);
        mma_ab_step<C::HS>(O, P, V + k * 16 * Tile<C::HS>::row_bytes);
        if (two_parts) {
            subtract_a(S, P, k);
            round_a(P, S, k);
            mma_ab_step<C::HS>(O, P, V + k * 16 * Tile<C::HS>::row_bytes);
        }
    }
}

// out (B,T,NH,HS); l, m (B,NH,T); qkv (B,T,3,NH,HS); starts (B,T), with documents
template <class C> __global__ void __launch_bounds__(C::threads, C::ctas)
    attention_forward_kernel(floatX* out, float* l, float* m, const floatX* qkv, const int* starts, int T, int NH,
                             int heads, Divisor group) {
    constexpr int HS = C::HS, M = C::M, Br = C::Br, Bc = C::Bc, square = 16 * M;
    extern __shared__ __align__(1024) char shared[];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    AttentionTask task(mov_ctaid(), group);
    if (task.head >= heads) { return; }
    int b = task.head / NH, h = task.head % NH, stride = 3 * NH * HS;
    int i0 = (CEIL_DIV(T, Br) - 1 - task.block) * Br; // long rows first
    int last = (min(i0 + Br, T) - 1) / Bc;
    int row = i0 + warp * square; // the warp's first
    int first = 0;                // key block
    WarpDocuments* documents = reinterpret_cast<WarpDocuments*>(shared + C::tile_bytes) + warp;
    if constexpr (C::documents) {
        starts += (int64_t)b * T;
        first = starts[i0] / Bc;
        *documents = {starts, starts[min(row, T - 1)], starts[min(row + square, T) - 1]};
    }
    const floatX* q = qkv + qkv_offset(b, 0, h, T, NH, HS) + (int64_t)i0 * stride;
    const floatX* k = qkv + qkv_offset(b, 1, h, T, NH, HS);
    const floatX* v = k + NH * HS;

    uint32_t q_tile = (uint32_t)__cvta_generic_to_shared(shared), kv_tiles = q_tile + C::q_bytes;
    uint32_t q_rows = q_tile + warp * square * Tile<HS>::row_bytes; // the warp's own rows: Q, at the end O
    auto load_kv = [&](int j) {
        uint32_t tile = kv_tiles + j % 2 * 2 * C::kv_bytes;
        load_tile<HS, Bc, C::threads>(tile, k + (int64_t)j * Bc * stride, stride, T - j * Bc);
        load_tile<HS, Bc, C::threads>(tile + C::kv_bytes, v + (int64_t)j * Bc * stride, stride, T - j * Bc);
        cp_async_commit_group();
    };
    load_tile<HS, Br, C::threads>(q_tile, q, stride, T - i0);
    load_kv(first);

    float O[M][HS / 8][4];
    fill(O, 0.0f);
    OnlineSoftmax<M, C::documents> softmax(C::scale);
    typename C::Rows Q{q_rows + Tile<HS>::lane_a(lane)};
    int lane_row = row + lane / 4, lane_column = lane % 4 * 2;
    for (int j = first; j <= last; j++) { // key blocks, diagonal last
        cp_async_wait_group<0>();
        __syncthreads(); // block j has arrived, and all warps have finished with block j - 1
        if (j < last) { load_kv(j + 1); }
        if (j == first) { Q.load(); }
        uint32_t tile = kv_tiles + j % 2 * 2 * C::kv_bytes;
        if constexpr (C::documents) { lane = mov_tid_x() % 32; } // again, so that no registers hold the lane's offsets
        uint32_t K = tile + Tile<HS>::lane_b(lane), V = tile + C::kv_bytes + Tile<HS>::lane_a(lane);
        int end = min((j + 1) * Bc, row + square); // keys past the warp's rows are masked for all of them
        int column = j * Bc;
        if constexpr (C::documents) { // the first square that holds a key of the first row's document
            const int hidden = max(documents->first / square * square - column, 0);
            column += hidden, K += hidden * Tile<HS>::row_bytes, V += hidden * Tile<HS>::row_bytes;
        }
#pragma unroll 1
        while (column < end) {
            int position = row; // in the document: of one of the warp's rows, others are further
            bool full = column + C::step <= row + 1;
            if constexpr (C::documents) {
                const int last = documents->last;
                position = max(row - last, 0);
                full = full && column >= last && column + C::step <= (j + 1) * Bc;
            }
            full = full && position >= newest_maximum_rows(T);
            if (full) {
                attend<C, C::step / 8, false, false>(O, softmax, Q, K, V, lane_row, column + lane_column, T, documents);
            } else if (position >= two_part_rows(T)) { // by squares
                attend<C, square / 8, true, false>(O, softmax, Q, K, V, lane_row, column + lane_column, T, documents);
            } else {
                attend<C, square / 8, true, true>(O, softmax, Q, K, V, lane_row, column + lane_column, T, documents);
            }
            int keys = full ? C::step : square;
            column += keys, K += keys * Tile<HS>::row_bytes, V += keys * Tile<HS>::row_bytes;
        }
    }

    if constexpr (C::documents) { // recomputed, so that no registers hold it during the loop
        task = AttentionTask(mov_ctaid(), group);
        b = task.head / NH, h = task.head % NH;
    }
    for_each_row<M>([&](int i, int h) {
        int t = row + 16 * i + 8 * h + lane / 4;
        float sum = softmax.l(i, h), factor = 1 / sum;
#pragma unroll
        for (int n = 0; n < HS / 8; n++) { O[i][n][2 * h] *= factor, O[i][n][2 * h + 1] *= factor; } // O /= l
        if (lane % 4 == 0 && t < T) {
            l[(int64_t)task.head * T + t] = sum;
            m[(int64_t)task.head * T + t] = softmax.m[i][h];
        }
    });
    floatX* o = out + out_offset(b, h, T, NH, HS) + (int64_t)row * NH * HS;
    store_rows<HS>(o, q_rows, O, NH * HS, T - row, lane);
}

template <class C> void launch_forward_kernel(floatX* out, float* l, float* m, const floatX* qkv, const int* starts,
                                              int B, int T, int NH, int HS, cudaStream_t stream) {
    int64_t reread_bytes = (int64_t)T * HS * 2 * sizeof(floatX); // K and V
    AttentionGrid grid;
    if (attention_grid(&grid, CEIL_DIV(T, C::Br), B * NH, reread_bytes) != STATUS_OK) { return; }
    attention_launch(attention_forward_kernel<C>, grid.size, C::threads, C::shared_bytes, stream, out, l, m, qkv,
                     starts, T, NH, B * NH, grid.group);
}
template <class C> void launch_forward(floatX* out, float* l, float* m, const floatX* qkv, int B, int T, int NH, int HS,
                                       cudaStream_t stream) {
    launch_forward_kernel<C>(out, l, m, qkv, nullptr, B, T, NH, HS, stream);
}

// A row of the table; names are rows x keys of a block, and warps.
template <class C> constexpr AttentionForwardConfig forward_config(const char* name) {
    constexpr size_t shared_bytes = C::WithDocuments::shared_bytes;
    static_assert(shared_bytes <= 99 << 10, "so much shared memory has every GPU from 8.0 on");
    return {name,
            C::HS,
            shared_bytes,
            launch_forward<C>,
            nullptr,
            nullptr,
            launch_forward_kernel<typename C::WithDocuments>};
}
static constexpr AttentionForwardConfig forward_configs[] = {
    forward_config<ForwardTiles<32, 4, 2, 128, 64, 3>>("128x128 4 warps"),
    forward_config<ForwardTiles<64, 4, 2, 128, 64, 2>>("128x128 4 warps"),
    forward_config<ForwardTiles<96, 4, 2, 64, 32, 2>>("128x64 4 warps"),
    forward_config<ForwardTiles<128, 4, 2, 64, 32, 2>>("128x64 4 warps"),
};

} // namespace mma

#if __INCLUDE_LEVEL__ == 0 // the program, not an include
int main(int argc, char** argv) { return variant_main(argc, argv, mma::forward_configs, 80); }
#endif
