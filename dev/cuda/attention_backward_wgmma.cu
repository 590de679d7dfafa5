/*
FlashAttention backward on Hopper: one kernel, five GEMMs a tile, and dQ summed in a fixed order.

    S = Q K^T / sqrt(HS)    P = exp(S - m) / l      dP = dO V^T              D = rowsum(dO o O)    dS = P o (dP - D)
    dV = P^T dO             dK = dS^T Q / sqrt(HS)  dQ = dS K / sqrt(HS)

A CTA owns a block of 128 or 192 keys and loops over the query blocks that attend to them. Against mma (2 kernels, 7 GEMMs):
- S^T = K Q^T and dP^T = V dO^T by wgmma; so P^T and dS^T are operand A of dV and dK in the registers that they are computed
  in. Only dS passes through shared memory, because dQ = dS K needs the keys of all warpgroups.
- dQ is added to fp32 accumulators in scratch by TMA reduce-add, in the order in which CTAs took the key blocks from the
  work counter (DqChain): the same bits always, and a CTA waits only for work that was taken before its own.
- D of a key block's own queries is computed by its consumers: dout is read once. Masked 64 x 64 scores are skipped.
Roles, in attention/wgmma_backward_*.cuh: two producers, two dQ writers, two or three consumer warpgroups. attention/PROTOCOL.md
draws them. Papers: Dao, FlashAttention-2 (2023), algorithm 2; Shah et al., FlashAttention-3 (2024).
*/
#include "attention/wgmma_backward_writers.cuh"
#include "attention/wgmma_backward_pair.cuh"
#include "attention/wgmma_backward_rotating.cuh"
#include "llmc/cuda/dependent_launch.cuh"

namespace wgmma {

// dqkv and qkv (B,T,3,NH,HS), dout and out (B,T,NH,HS) as TMA descriptors; dq and kv: dqkv and qkv again, in parts of heads,
// (B,T,3,NH * parts,dq_channels). One persistent CTA per SM. GIVEN_STARTS: one of two launches, between which starts (B,T)
// choose: with C::documents this one computes where a row has several documents, else where none has.
template <class C, bool GIVEN_STARTS> __global__ void __launch_bounds__(C::threads, 1)
    attention_backward_kernel(const __grid_constant__ CUtensorMap dqkv, const __grid_constant__ CUtensorMap dout,
                              const __grid_constant__ CUtensorMap qkv, const __grid_constant__ CUtensorMap out,
                              const __grid_constant__ CUtensorMap dq, const __grid_constant__ CUtensorMap kv,
                              const __grid_constant__ BackwardScratch scratch,
                              const __grid_constant__ BackwardProblem p, const int* starts) {
#if defined(HOPPER_DEVICE_CODE)
    if constexpr (GIVEN_STARTS) {
        if (several_documents(starts, p.heads / p.NH.d, p.T) != C::documents) {
            griddepcontrol_wait(); // the other launch, behind this one, waits for this one alone
            return;
        }
    }
    extern __shared__ __align__(1024) char shared[];
    typename C::Shared& s = *reinterpret_cast<typename C::Shared*>(shared);
    // Arrivals that end a phase: of one consumer's 4 warps; of all consumers' warps; of all readers of a work item.
    constexpr int consumer = 4 * WARP_ARRIVALS, consumers = C::warpgroups * consumer;
    constexpr int work_readers = 1 + C::writers + consumers; // producer, dQ writers, consumer warps
    if (threadIdx.x == 0) {
        s.O_full.init(1), s.O_empty.init(consumers);
        s.dKV_empty.init(C::writers);
        for (int n = 0; n < C::v_stages; n++) {
            s.V_full[n].init(1), s.V_empty[n].init(C::rotating_dq ? C::warpgroups : consumers);
        }
        for (int n = 0; n < 2; n++) {
            s.K_full[n].init(1), s.K_empty[n].init(C::rotating_dq ? consumer : C::writers);
            s.Q_full[n].init(1), s.Q_empty[n].init(consumers), s.dO_full[n].init(1), s.dO_empty[n].init(consumers);
            s.dS_full[n].init(consumers), s.dS_empty[n].init(C::rotating_dq ? consumer : consumers);
            s.work_full[n].init(1), s.work_empty[n].init(work_readers);
        }
        for (int w = 0; w < C::writers; w++) {
            s.dQ_full[w].init(consumer), s.dQ_ready[w].init(1), s.dKV_full[w].init(consumer);
        }
        fence_mbarrier_init();
    }
    __syncthreads();
    int warpgroup = uniform(threadIdx.x / WARPGROUP_SIZE);
    if (warpgroup == 0) {
        setmaxnreg_dec<C::producer_registers>();
        int warp = threadIdx.x / WARP_SIZE;
        if (threadIdx.x % WARP_SIZE == 0) {
            if (warp == 0) { produce<C, true>(s, &qkv, &kv, &dout, &out, p, scratch); }
            if (warp == 1) { produce<C, false>(s, &qkv, &kv, &dout, &out, p, scratch); }
            if (warp > 1) { write_dq<C>(s, &dqkv, &dq, p, scratch, warp - 2); }
        }
    } else {
        setmaxnreg_inc<C::consumer_registers>();
        BackwardConsumer<C> consumer(s, warpgroup - 1);
        if constexpr (C::rotating_dq) {
            consumer.run_rotating(&dqkv, p);
        } else {
            consumer.run(p, scratch);
        }
    }
#endif
}

// The kernel in front.

// Stores lse = log2(l) + m log2(e) of a row of all heads' padded rows; inf past T.
__device__ inline void store_lse(float* lse, int64_t row, const float* l, const float* m, int T, int padded_T) {
    const int t = row % padded_T;
    const int64_t at = row / padded_T * T + min(t, T - 1);
    const float sum = __fmul_rn(m[at], LOG2_E) + mma::lg2_approx(l[at]); // rounded as in forward: P is the same
    lse[row / 16 * 16 + statistics_row(row % 16)] = t < T ? sum : INFINITY;
}
constexpr int lse_rows = 1024; // that a CTA takes where it computes no D
// With documents: scratch's starts and steps. All threads of the grid, 256 a CTA.
template <class C>
__device__ inline void prepare_documents(const BackwardScratch& scratch, const int* starts, const BackwardProblem& p) {
    const int64_t rows = (int64_t)p.heads / p.NH.d * p.padded_T;
    for (int64_t n = (int64_t)blockIdx.x * 256 + threadIdx.x; n < rows; n += (int64_t)gridDim.x * 256) {
        const int b = n / p.padded_T, t = n % p.padded_T;
        const int* row = starts + (int64_t)b * p.T;
        const int start = row[min(t, p.T - 1)];
        scratch.starts[n / 16 * 16 + statistics_row(n % 16)] = start;
        if (t >= p.T) { continue; }
        store_document_steps<C>(scratch.steps + (int64_t)b * p.key_blocks, t, start, row[min(t + 1, p.T - 1)], p);
    }
}
// lse of all rows, -D = -rowsum(dO o O) from row first_D_row (of all heads' padded rows) on, and all counts at 0. The first
// lse_ctas CTAs take lse_rows rows each, which get no D; the others 128 rows, from the last to the first, so that L2 holds
// dout of the first heads at the end. dout, out (B,T,NH,HS); l, m (B,NH,T). HS / 8 lanes read a row of dout and out, 16 bytes
// each; at HS = 96 four more do nothing. starts (B,T), with documents.
template <class C> __global__ void __launch_bounds__(256)
    attention_backward_statistics_kernel(const __grid_constant__ BackwardScratch scratch, const floatX* dout,
                                         const floatX* out, const float* l, const float* m, int T, int NH,
                                         int counts_per_block, unsigned lse_ctas, int64_t first_D_row,
                                         const int* starts, const __grid_constant__ BackwardProblem p) {
#if defined(HOPPER_DEVICE_CODE)
    constexpr int HS = C::HS;
    griddepcontrol_launch_dependents();
    const int blocks = CEIL_DIV(T, padded_rows), padded_T = blocks * padded_rows;
    const bool only_lse = blockIdx.x < lse_ctas;
    const int64_t first_row =
        only_lse ? (int64_t)blockIdx.x * lse_rows : first_D_row + (int64_t)(gridDim.x - 1 - blockIdx.x) * padded_rows;
    const int64_t last_row = only_lse ? min(first_row + lse_rows, first_D_row) : first_row + padded_rows;
    const int64_t counts = last_row / padded_rows * counts_per_block;
    for (int64_t n = first_row / padded_rows * counts_per_block + threadIdx.x; n < counts; n += 256) {
        scratch.dq_counts[n] = 0;
    }
    if (blockIdx.x == 0 && threadIdx.x == 255) { *scratch.work_counter = 0; }
    if constexpr (C::documents) { prepare_documents<C>(scratch, starts, p); }
    if (only_lse) {
#pragma unroll
        for (int i = 0; i < lse_rows / 256; i++) {
            const int64_t row = first_row + i * 256 + threadIdx.x;
            if (row < last_row) { store_lse(scratch.lse, row, l, m, T, padded_T); }
        }
        return;
    }
    constexpr int lanes = HS == 96 ? 16 : HS / x128::size; // of a row
    constexpr int rows = 256 / lanes, passes = padded_rows / rows;
    const int head = first_row / padded_T, first = first_row % padded_T;
    const int64_t base = out_offset(head / NH, head % NH, T, NH, HS) + threadIdx.x % lanes * x128::size;
    x128 x[passes], y[passes];
#pragma unroll
    for (int i = 0; i < passes; i++) {
        int t = first + i * rows + threadIdx.x / lanes;
        int64_t at = base + (int64_t)min(t, T - 1) * NH * HS;
        if (HS == 96 && threadIdx.x % lanes >= HS / x128::size) { // its sum is 0
            x[i] = y[i] = {};
            continue;
        }
        x[i] = load128(dout + at);
        y[i] = load128_stream(out + at);
    }
    float* minus_D = scratch.minus_D + first_row;
    if (threadIdx.x < padded_rows) { store_lse(scratch.lse, first_row + threadIdx.x, l, m, T, padded_T); }
#pragma unroll
    for (int i = 0; i < passes; i++) {
        float sum = 0;
#pragma unroll
        for (int k = 0; k < x128::size; k++) { sum = fmaf((float)x[i][k], (float)y[i][k], sum); }
#pragma unroll
        for (int offset = lanes / 2; offset > 0; offset /= 2) { sum += __shfl_xor_sync(0xffffffffu, sum, offset); }
        int r = i * rows + threadIdx.x / lanes;
        if (threadIdx.x % lanes == 0) { minus_D[r / 16 * 16 + statistics_row(r % 16)] = first + r < T ? -sum : 0; }
    }
#endif
}

// ----------------------------------------------------------------------------
// Launchers

// Bytes of scratch: two fp32 accumulators of dQ, two statistics of each row, two counts of each dQ tile (64 queries by at most
// 64 channels), one of each 128 rows, and the work counter; starts and steps of documents.
inline size_t backward_scratch_bytes(int B, int T, int NH, int HS) {
    const size_t rows = (size_t)B * NH * CEIL_DIV(T, padded_rows) * padded_rows;
    const size_t dq_tiles = rows / 64 * CEIL_DIV(HS, 64);
    const size_t documents = rows / NH + rows / NH / padded_rows;
    return rows * (2 * HS + 2) * sizeof(float) + (dq_tiles * 2 + rows / padded_rows + 1 + documents) * sizeof(int);
}

// dq_sums or nullptr; starts (B,T), with documents
template <class C> void launch_backward_kernels(floatX* dqkv, float* dq_sums, const floatX* dout, const floatX* qkv,
                                                const floatX* out, const float* l, const float* m, const int* starts,
                                                void* scratch, int B, int T, int NH, int HS, cudaStream_t stream) {
    int num_sms;
    DeviceCode gpu;
    CUtensorMap qkv_map, dqkv_map, dout_map, out_map, dq_map, kv_map;
    if (hopper_num_sms(&num_sms) != STATUS_OK || device_code(&gpu) != STATUS_OK) { return; }
    if (tensor_map_of_heads(&qkv_map, qkv, B, T, 3 * NH, HS) != STATUS_OK) { return; }
    if (tensor_map_of_heads(&dqkv_map, dqkv, B, T, 3 * NH, HS) != STATUS_OK) { return; }
    if (tensor_map_of_heads(&dout_map, dout, B, T, NH, HS) != STATUS_OK) { return; }
    if (tensor_map_of_heads(&out_map, out, B, T, NH, HS) != STATUS_OK) { return; }
    if (tensor_map_of_heads(&dq_map, dqkv, B, T, 3 * NH * C::parts, C::dq_channels) != STATUS_OK) { return; }
    if (tensor_map_of_heads(&kv_map, qkv, B, T, 3 * NH * C::parts, C::dq_channels) != STATUS_OK) { return; }
    const BackwardProblem p = backward_problem<C>(B, T, NH, num_sms);

    BackwardScratch parts;
    const int64_t rows = (int64_t)p.heads * p.padded_T;
    parts.dq_accumulators = (float*)scratch;
    parts.lse = parts.dq_accumulators + 2 * p.dq_tiles * C::dq_elements;
    parts.minus_D = parts.lse + rows;
    parts.starts = (int*)(parts.minus_D + rows);
    parts.steps = parts.starts + (C::documents ? (int64_t)B * p.padded_T : 0);
    parts.dq_counts = parts.steps + (C::documents ? (int64_t)B * p.key_blocks : 0);
    parts.D_ready = parts.dq_counts + 2 * p.dq_tiles;
    parts.work_counter = parts.D_ready + p.work_items;
    parts.dq_sums = dq_sums;

    const int64_t first_D_row = C::computes_D ? (int64_t)p.first_reversed_head * p.padded_T : 0;
    const int lse_ctas = (int)CEIL_DIV(first_D_row, (int64_t)lse_rows);
    const int D_ctas = (int)((rows - first_D_row) / padded_rows);
    const int counts = 2 * (padded_rows / C::Br) * C::dq_tiles + 1; // of 128 rows
    attention_backward_statistics_kernel<C><<<lse_ctas + D_ctas, 256, 0, stream>>>(
        parts, dout, out, l, m, T, NH, counts, lse_ctas, first_D_row, starts, p);
    if (cuda_try(cudaGetLastError()) != STATUS_OK) { return; }
    // CTAs start before the statistics kernel has ended
    const auto launch = [&](auto kernel, size_t shared_bytes) {
        launch_dependent(gpu, kernel, min(p.work_items, num_sms), C::threads, shared_bytes, 1, stream, dqkv_map,
                         dout_map, qkv_map, out_map, dq_map, kv_map, parts, p, starts);
    };
    if constexpr (C::documents) {
        typedef typename C::WithoutDocuments D;
        launch(attention_backward_kernel<D, true>, D::shared_bytes);
    }
    launch(attention_backward_kernel<C, C::documents>, C::shared_bytes);
}

template <class C> void launch_backward(floatX* dqkv, const floatX* dout, const floatX* qkv, const floatX* out,
                                        const float* l, const float* m, void* scratch, int B, int T, int NH, int HS,
                                        cudaStream_t stream) {
    launch_backward_kernels<C>(dqkv, nullptr, dout, qkv, out, l, m, nullptr, scratch, B, T, NH, HS, stream);
}
template <class C> void launch_backward_with_sums(floatX* dqkv, float* dq_sums, const floatX* dout, const floatX* qkv,
                                                  const floatX* out, const float* l, const float* m, void* scratch,
                                                  int B, int T, int NH, int HS, cudaStream_t stream) {
    launch_backward_kernels<C>(dqkv, dq_sums, dout, qkv, out, l, m, nullptr, scratch, B, T, NH, HS, stream);
}
template <class C> void launch_backward_documents(floatX* dqkv, const floatX* dout, const floatX* qkv,
                                                  const floatX* out, const float* l, const float* m, const int* starts,
                                                  void* scratch, int B, int T, int NH, int HS, cudaStream_t stream) {
    typedef typename C::WithDocuments D;
    launch_backward_kernels<D>(dqkv, nullptr, dout, qkv, out, l, m, starts, scratch, B, T, NH, HS, stream);
}

// The rows of dq_sums: one for each 16 queries, up to the end of the last query block.
template <class C> int dq_sum_rows(int B, int T) { return B * CEIL_DIV(T, C::Br) * (C::Br / 16); }

// A row of the table of configurations; names are queries of a step x keys of a block.
template <class C> constexpr AttentionBackwardConfig backward_config(const char* name) {
    static_assert(C::WithDocuments::shared_bytes <= HOPPER_SHARED_BYTES,
                  "a Hopper has too little shared memory for it");
    return {name,
            C::HS,
            C::WithDocuments::shared_bytes,
            launch_backward<C>,
            backward_scratch_bytes,
            C::rotating_dq ? nullptr : launch_backward_with_sums<C>,
            C::rotating_dq ? nullptr : dq_sum_rows<C>,
            launch_backward_documents<C>};
}
static constexpr AttentionBackwardConfig backward_configs[] = {
    backward_config<BackwardTiles<64, 2>>("128x128"),
    backward_config<BackwardTiles<64, 3>>("64x192"),
    backward_config<BackwardTiles<96, 2>>("64x128"),
    backward_config<BackwardTiles<128, 2>>("64x128"),
};

} // namespace wgmma

#if __INCLUDE_LEVEL__ == 0 // the program, not an include
int main(int argc, char** argv) { return variant_main(argc, argv, wgmma::backward_configs, 90); }
#endif
