/*
GEMM on Hopper, D (M,N) = A B^T of 16-bit or 8-bit operands, added in fp32 or, of int8, in integers: persistent CTAs, wgmma fed
by TMA. PROTOCOL.md draws it.
Warpgroup 0 is the producer: one thread fills a ring of stages, a k-block of A and B each. Warpgroups 1 and 2 are consumers in
ping-pong: they take the CTA's tiles alternately. One starts its main loop once the other has issued its last k-block (a parity
cannot tell passes over the ring that are two apart): one multiplies while the other stores. The two CTAs of a cluster, whose
tiles share rows of B, load a half of them each, by multicast to both. PROTOCOL.md has a table of the barriers.
*/
#ifndef WGMMA_MATMUL_CUH
#define WGMMA_MATMUL_CUH

#include "wgmma_epilogues.cuh"

namespace wgmma {

enum Operands { BITS_16, E4M3, INT8 };

// A configuration: tile, whether B is MN-major (A is K-major), epilogue. Of 8 bits, both operands are K-major, and two codes
// along K count as an element of 16 bits: only wgmma sees the difference. Accumulators of int8 are integers.
template <class TILE, bool B_MN_MAJOR, class EPILOGUE, Operands OPERANDS = BITS_16> struct MatmulTiles {
    static_assert(OPERANDS == BITS_16 || !B_MN_MAJOR, "8-bit operands are K-major");
    typedef TILE T;
    static constexpr Operands operands = OPERANDS;
    typedef EPILOGUE Epilogue;
    // Consumers locate their next tile, by two divisions, while the first k-block of a tile is multiplied: where epilogues take
    // longer than main loops, nothing else hides that.
    static constexpr bool looks_ahead = OPERANDS != BITS_16;
    typedef OperandTile<T::BM, false, 1> TileA;
    typedef OperandTile<T::BN, B_MN_MAJOR, T::cluster> TileB;
    // setmaxnreg: the sum must not exceed what the kernel is launched with, 168 registers a thread
    static constexpr int threads = 3 * WARPGROUP_SIZE;
    static constexpr int producer_registers = 40, consumer_registers = 232;
    static_assert(producer_registers + 2 * consumer_registers <= 3 * (65536 / threads / 8 * 8),
                  "setmaxnreg would wait for ever");
    static constexpr int stage_bytes = TileA::bytes + TileB::bytes;

    // Per consumer: chunks of its part of a tile; slots for chunks of aux, at most 32 KB; slots in all, with those of the ring.
    static constexpr int tile_chunks = T::row_blocks * T::BN / CHUNK_COLUMNS;
    static constexpr int aux_slots =
        tile_chunks * CHUNK_BYTES > 32768 && Epilogue::has_aux ? 32768 / CHUNK_BYTES : tile_chunks;
    static constexpr int aux_area = Epilogue::has_aux ? aux_slots * CHUNK_BYTES : 0;
    static constexpr int chunk_area = aux_area + Epilogue::ring_chunks * CHUNK_BYTES;
    static constexpr int sum_rows = Epilogue::column_sums ? 4 : 1;
    static constexpr int other_bytes = 2 * (chunk_area + sum_rows * 256) + 512;
    static constexpr int stages = ((int)HOPPER_SHARED_BYTES - other_bytes) / stage_bytes;

    struct Shared {
        char A[stages][TileA::bytes], B[stages][TileB::bytes];
        char chunks[2][chunk_area];
        float sums[2][sum_rows][64];
        Mbarrier full[stages], empty[stages], aux_full[2][aux_slots];
    };
    static constexpr size_t shared_bytes = sizeof(Shared);

    // Named barriers (bar.sync; id 0 is __syncthreads). Consumer w uses BAR_EPILOGUE + w.
    enum NamedBarrier {
        BAR_EPILOGUE = 1, // 128 threads of consumer w
        BAR_ORDER = 3,    // 256: consumer w waits, the other arrives: w may start its main loop
    };
};

struct MatmulParams {
    GemmMaps maps;
    TileOrder order;
    EpilogueInput in;
    int end_column; // columns from here on are not multiplied; INT_MAX: tiles are multiplied whole
};

// Loads part `part` of a stage of an operand, k-block k of the rows from `row` on, into all CTAs that load a part.
template <class Operand>
__device__ inline void load_operand(char* stage, const CUtensorMap* map, int row, int k, int part, Mbarrier& full) {
#pragma unroll
    for (int i = 0; i < Operand::boxes; i++) {
        const uint32_t box = shared_address(stage) + Operand::box_offset(part, i);
        const int r = row + Operand::box_row(part, i);
        const int first_k = k * K_BLOCK + Operand::box_k(part);
        const int x = Operand::mn_major ? r : first_k, y = Operand::mn_major ? first_k : r;
        if (Operand::parts > 1) {
            cp_async_bulk_tensor_multicast(box, map, x, y, full, (1 << Operand::parts) - 1);
        } else {
            cp_async_bulk_tensor(box, map, x, y, full);
        }
    }
}

// The producer thread: loads A and B of every k-block of the CTA's tiles.
template <class C> __device__ inline void produce(typename C::Shared& s, const MatmulParams& p) {
    typedef typename C::TileA A;
    typedef typename C::TileB B;
    typedef typename C::T T;
    const int rank = cluster_ctarank(), clusters = gridDim.x / T::cluster;
    PipelineState<C::stages> state;
    for (int index = blockIdx.x / T::cluster; index < p.order.tiles; index += clusters) {
        const TileIndex tile = tile_at(p.order, index);
        const int row = T::row(tile, rank), column = T::column(tile);
#pragma unroll 1
        for (int k = 0; k < p.order.k_blocks; k++, state.advance()) {
            Mbarrier& full = s.full[state.stage];
            s.empty[state.stage].wait(state.parity ^ 1);
            full.expect_tx(C::stage_bytes);
            load_operand<A>(s.A[state.stage], &p.maps.a, row, k, 0, full);
            load_operand<B>(s.B[state.stage], &p.maps.b, column, k, rank, full);
        }
    }
}

// Consumer warpgroup w.
template <class C> struct Consumer {
    typedef typename C::T T;
    typedef typename C::Epilogue Epilogue;
    static constexpr int row_blocks = T::row_blocks;
    typename C::Shared& s;
    const MatmulParams& p;
    const int w;
    PipelineState<C::stages> state; // of the next k-block
    typedef std::conditional_t<C::operands == INT8, int, float> Sum;
    Sum acc[row_blocks][T::BN / 2]; // row_blocks wgmma accumulators (64, BN), one below the other

    __device__ Consumer(typename C::Shared& s, const MatmulParams& p, int w) : s(s), p(p), w(w) {}

    static __device__ int thread() { return mma::mov_tid_x() % WARPGROUP_SIZE; }

    // Releases a stage for this warp, in all CTAs of the cluster, which may load into it. No __syncwarp: only wgmma reads
    // stages, and all lanes have waited for it together.
    __device__ void release(int stage) {
        const int lane = mma::mov_tid_x() % WARP_SIZE;
        if (lane < T::cluster) { s.empty[stage].arrive_cluster(lane); }
    }

    // Issues acc = (first) or += A B^T of the k-block at `state`, for the first COLUMNS rows of B.
    template <int COLUMNS> __device__ void issue(bool first) {
        typedef typename C::TileA A;
        typedef typename C::TileB B;
        const uint32_t b_tile = uniform(shared_address(s.B[state.stage]));
        const uint64_t a = tile_descriptor_k_major(uniform(shared_address(s.A[state.stage])));
        const uint64_t b =
            B::mn_major ? tile_descriptor_n_major(b_tile, B::box_bytes) : tile_descriptor_k_major(b_tile);
#pragma unroll
        for (int block = 0; block < row_blocks; block++) { fence_operand(acc[block]); }
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < K_BLOCK / 16; i++) {
#pragma unroll
            for (int block = 0; block < row_blocks; block++) {
                const uint64_t rows = a + (A::row_offset(block * BLOCK_ROWS) + A::k_offset(i)) / 16;
                auto& d = reinterpret_cast<Sum(&)[COLUMNS / 2]>(acc[block]);
                const uint64_t columns = b + B::k_offset(i) / 16;
                if constexpr (C::operands == E4M3) {
                    wgmma_mma_async_e4m3(d, rows, columns, !(first && i == 0));
                } else if constexpr (C::operands == INT8) {
                    wgmma_mma_async_int8(d, rows, columns, !(first && i == 0));
                } else {
                    wgmma_mma_async<0, B::mn_major>(d, rows, columns, !(first && i == 0));
                }
            }
        }
        wgmma_commit_group();
#pragma unroll
        for (int block = 0; block < row_blocks; block++) { fence_operand(acc[block]); }
    }

    // The loads of the consumer's part of aux. Chunks are numbered by `turn` in the order in which the epilogue takes them:
    // down the blocks of rows, then to the next columns. One thread calls load(), fill() and refill().
    struct Aux {
        typename C::Shared& s;
        const CUtensorMap* map;
        int w, row, column, tiles; // tiles: how many the consumer has finished
        __device__ char* chunk(int turn) const { return s.chunks[w] + turn % C::aux_slots * CHUNK_BYTES; }
        // Waits until the chunk has arrived. The phase: a slot is used `uses` times in each finished tile.
        __device__ void wait(int turn) const {
            const int slot = turn % C::aux_slots, uses = CEIL_DIV(C::tile_chunks - slot, C::aux_slots);
            s.aux_full[w][slot].wait((tiles * uses + turn / C::aux_slots) % 2);
        }
        __device__ void load(int turn) const {
            Mbarrier& full = s.aux_full[w][turn % C::aux_slots];
            full.expect_tx(CHUNK_BYTES);
            cp_async_bulk_tensor(shared_address(chunk(turn)), map, column + turn / row_blocks * CHUNK_COLUMNS,
                                 row + turn % row_blocks * BLOCK_ROWS, full);
        }
        // Loads a tile's first chunks, once TMA has read the last tile's outputs from their slots
        __device__ void fill() const {
            cp_async_bulk_wait_group_read<0>();
            for (int turn = 0; turn < C::aux_slots; turn++) { load(turn); }
        }
        // After the store of chunk `turn` is committed: loads the chunk that reuses the slot of chunk turn - 1
        __device__ void refill(int turn) const {
            if (turn == 0 || turn - 1 + C::aux_slots >= C::tile_chunks) { return; }
            cp_async_bulk_wait_group_read<1>();
            load(turn - 1 + C::aux_slots);
        }
    };

    // acc = A B^T of a tile. meanwhile(): what is done while the first k-block is multiplied. The wgmma of the last k-block may
    // still be in flight: finish_multiply() waits for it.
    template <int COLUMNS = T::BN, class Meanwhile> __device__ void multiply(const Meanwhile& meanwhile) {
        bar_sync(C::BAR_ORDER + w, 2 * WARPGROUP_SIZE);
        int k = 0, last = 0; // last: the stage before `state`
        const auto step = [&] {
            s.full[state.stage].wait(state.parity);
            issue<COLUMNS>(k == 0);
            if (k > 0) {
                wgmma_wait_group<1>();
                release(last);
            }
            last = state.stage;
            state.advance();
            k++;
        };
        if constexpr (Epilogue::has_aux || C::looks_ahead) {
            step();
            meanwhile();
        }
        // k_blocks is read from the parameters each time: kept, it is a register too many, and ptxas serialises wgmma.
#pragma unroll 1
        while (k < p.order.k_blocks) { step(); }
        bar_arrive(C::BAR_ORDER + 1 - w, 2 * WARPGROUP_SIZE);
    }
    __device__ void finish_multiply() {
        wgmma_wait_group<0>();
#pragma unroll
        for (int block = 0; block < row_blocks; block++) { fence_operand(acc[block]); }
        release((state.stage + C::stages - 1) % C::stages);
    }

    __device__ void run() {
        const int clusters = gridDim.x / T::cluster;
        if (w == 1) { // consumer 0 begins
            bar_arrive(C::BAR_ORDER, 2 * WARPGROUP_SIZE);
            state.advance(p.order.k_blocks);
        }
        TileIndex next = {};
        for (int n = 0;; n++) { // the consumer's tiles
            const int index = blockIdx.x / T::cluster + (2 * n + w) * clusters;
            if (index >= p.order.tiles) { break; }
            const int rank = cluster_ctarank(); // read for each tile: a register less than kept over the loop
            const TileIndex at = C::looks_ahead && n > 0 ? next : tile_at(p.order, index);
            const ConsumerTile tile = {T::row(at, rank), T::column(at), C::BAR_EPILOGUE + w};
            const Aux aux = {s, &p.maps.aux, w, tile.row, tile.column, n};
            const int columns = T::narrows ? p.end_column - tile.column : T::BN;
            const auto meanwhile = [&] {
                if (C::looks_ahead) { next = tile_at(p.order, index + 2 * clusters); }
                if (Epilogue::has_aux && thread() == 0) { aux.fill(); }
            };
            if (columns <= 64) {
                multiply<T::narrows ? 64 : T::BN>(meanwhile);
            } else if (columns <= 128) {
                multiply<T::narrows ? 128 : T::BN>(meanwhile);
            } else {
                multiply(meanwhile);
            }
            const Ring ring = {s.chunks[w] + C::aux_area, s.sums[w]};
            const auto finish = [&] { finish_multiply(); };
            Epilogue::store(acc, finish, aux, ring, p.maps, p.in, tile);
            state.advance(p.order.k_blocks); // the other's tile
        }
        // Shared memory stays the CTA's until TMA has read the last tile from it.
        if (thread() == 0) { cp_async_bulk_wait_group_read<0>(); }
    }
};

// D = A B^T through C::Epilogue; one persistent CTA per SM.
template <class C> __global__ void __launch_bounds__(C::threads, 1)
    matmul_kernel(const __grid_constant__ MatmulParams p) {
#if defined(HOPPER_DEVICE_CODE)
    extern __shared__ __align__(1024) char shared[];
    typename C::Shared& s = *reinterpret_cast<typename C::Shared*>(shared);
    if (threadIdx.x == 0) {
        for (int n = 0; n < C::stages; n++) { s.full[n].init(1), s.empty[n].init(C::T::releases); }
        for (int w = 0; w < 2; w++) {
            for (Mbarrier& full : s.aux_full[w]) { full.init(1); }
        }
        fence_mbarrier_init();
    }
    __syncthreads();
    barrier_cluster_arrive(); // other CTAs load into this one's shared memory and arrive on its barriers
    barrier_cluster_wait();
    const int warpgroup = uniform(threadIdx.x / WARPGROUP_SIZE);
    if (warpgroup == 0) {
        setmaxnreg_dec<C::producer_registers>();
        if (threadIdx.x == 0) { produce<C>(s, p); }
        __syncwarp();
    } else {
        setmaxnreg_inc<C::consumer_registers>();
        Consumer<C>(s, p, warpgroup - 1).run();
        __syncwarp();
    }
    barrier_cluster_arrive(); // a CTA must not exit while others may access its shared memory
    barrier_cluster_wait();
#endif
}

// ----------------------------------------------------------------------------
// Host

// A GEMM. A is (M,K); B (N,K) or, MN-major, (K,N). out (M,N), second and aux likewise, or NULL.
// rows: 8-bit codes (M,N), or NULL.
struct Gemm {
    GemmSize size;
    const floatX *a, *b;
    floatX *out, *second;
    const floatX* aux;
    floatX* rows = nullptr;
};

// The number of clusters that are resident at once, with a CTA on each SM: GPCs have an even number of SMs.
template <class C> static inline Status num_clusters(int* clusters) {
    static_assert(C::T::cluster <= 2, "GPCs do not always have a multiple of four SMs");
    TRY(hopper_num_sms(clusters));
    *clusters /= C::T::cluster;
    return cuda_try(
        cudaFuncSetAttribute(matmul_kernel<C>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)C::shared_bytes));
}

template <class C> static inline Status gemm_maps(GemmMaps* maps, const Gemm& g) {
    typedef typename C::TileB B;
    const int M = g.size.M, N = g.size.N, K = g.size.K;
    TRY(tensor_map_of_matrix(&maps->a, g.a, M, K, C::TileA::box_rows));
    TRY(tensor_map_of_matrix(&maps->b, g.b, B::mn_major ? K : N, B::mn_major ? N : K, B::box_rows));
    const int rows = C::Epilogue::transposes ? N : M, columns = C::Epilogue::transposes ? M / 2 : N;
    if (g.out != nullptr) { TRY(tensor_map_of_matrix(&maps->out, g.out, rows, columns, BLOCK_ROWS)); }
    if (g.second != nullptr) { TRY(tensor_map_of_matrix(&maps->second, g.second, rows, columns, BLOCK_ROWS)); }
    if (g.rows != nullptr) { TRY(tensor_map_of_matrix(&maps->rows, g.rows, M, N / 2, BLOCK_ROWS)); }
    if (g.aux != nullptr) { TRY(tensor_map_of_matrix(&maps->aux, g.aux, M, N, BLOCK_ROWS)); }
    return STATUS_OK;
}

// in: arguments of the epilogue
template <class C> static inline Status launch_gemm(const Gemm& g, EpilogueInput in, cudaStream_t stream) {
    int clusters;
    MatmulParams p = {};
    TRY(num_clusters<C>(&clusters));
    TRY(gemm_maps<C>(&p.maps, g));
    p.order = tile_order(g.size, C::T::cluster_rows, C::T::BN, clusters, C::T::narrows);
    p.in = in, p.in.M = g.size.M, p.in.N = g.size.N;
    p.end_column = p.order.first_apart() < p.order.tiles ? p.in.N : INT_MAX;
    cudaLaunchAttribute cluster;
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {C::T::cluster, 1, 1};
    cudaLaunchConfig_t config = {};
    config.gridDim = min(p.order.tiles, clusters) * C::T::cluster;
    config.blockDim = C::threads;
    config.dynamicSmemBytes = C::shared_bytes;
    config.stream = stream;
    config.attrs = &cluster, config.numAttrs = 1;
    return cuda_try(cudaLaunchKernelEx(&config, matmul_kernel<C>, p));
}

} // namespace wgmma

#endif
