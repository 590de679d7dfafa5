/*
FlashAttention on Hopper: wgmma fed by TMA, one warpgroup that loads and two to four that multiply.

A block of threads takes tiles of Br query rows of one head; each consumer warpgroup owns a strip of 64 of the rows and
walks over the key blocks from its own diagonal down to the first. Against mma:
- wgmma reads K, V and Q from shared memory by itself and runs while the warpgroup does something else: S of the next
  block and O += P V of this one are under way together, and the softmax of the next runs under the latter.
- The copy engine loads whole boxes on behalf of one thread; barriers count bytes and say what is full and what is
  empty. The loading warpgroup gives its registers to the others.
- Blocks of threads stay for the whole launch. They take pairs of a long and a short tile, all pairs being equally long;
  so the next tile's Q, K and V are loaded while this one's O is stored, and no counter in memory is needed.
- A warpgroup takes the diagonal block at half width where its strip needs no more, and masks 64 columns only.
- O is rescaled only when a row's maximum has grown by more than a factor of 2^8 in P since it was last adopted.

Papers: Dao, FlashAttention-2 (2023), algorithm 1; Shah et al., FlashAttention-3 (2024), sections 3.1 and 3.2.
*/
#include "attention.h"
#include "llmc/hopper.cuh"
#include "llmc/mma.cuh"

namespace wgmma {

using namespace hopper;

constexpr int STRIP = 64;                // rows of a warpgroup
constexpr int BOX_ELEMENTS = STRIP * 64; // what one copy moves: 64 rows of 64 elements

// A configuration: head size, consumer warpgroups, keys of a block, stages of the pipeline.
template <int HS_, int WARPGROUPS, int BC, int STAGES> struct ForwardTiles {
    static constexpr int HS = HS_, warpgroups = WARPGROUPS, Bc = BC, stages = STAGES;
    static constexpr int Br = warpgroups * STRIP, boxes = HS / 64, box_bytes = BOX_ELEMENTS * 2;
    static constexpr int threads = (warpgroups + 1) * WARPGROUP_SIZE; // the first warpgroup loads
    static constexpr int producer_registers = warpgroups == 2 ? 24 : 32;
    static constexpr int consumer_registers = warpgroups == 2 ? 240 : warpgroups == 3 ? 160 : 112;
    static constexpr float scale = mma::inverse_sqrt(HS);

    struct Shared {
        floatX Q[warpgroups][boxes][BOX_ELEMENTS], O[warpgroups][boxes][BOX_ELEMENTS];
        floatX K[stages][boxes][Bc * 64], V[stages][boxes][Bc * 64];
        Mbarrier Q_full[warpgroups], Q_empty[warpgroups];
        Mbarrier K_full[stages], K_empty[stages], V_full[stages], V_empty[stages];
    };
    static constexpr size_t shared_bytes = sizeof(Shared);
};

// Which query tiles a block works on, in pairs of a heavy and a light one, all pairs being equally long. Producer and
// consumers take the same walk.
template <class C> struct Walk {
    int T, tiles, pairs, pair;
    int head, tile, n = 0; // n: how many tiles came before this one
    bool light = false;

    __device__ Walk(int T, int heads) : T(T), tiles(CEIL_DIV(T, C::Br)), pair(blockIdx.x) {
        pairs = heads * CEIL_DIV(tiles, 2);
        locate();
    }
    __device__ bool more() const { return pair < pairs; }
    __device__ void next() {
        n++;
        if (!light && 2 * tile != tiles - 1) {
            light = true;
        } else {
            light = false;
            pair += gridDim.x;
        }
        locate();
    }
    __device__ void locate() {
        int half = CEIL_DIV(tiles, 2), q = pair % half;
        head = pair / half;
        tile = light ? q : tiles - 1 - q;
    }
    // Key blocks that some row of the tile needs, and those that strip w needs.
    __device__ int blocks() const { return CEIL_DIV(min((tile + 1) * C::Br, T), C::Bc); }
    __device__ int first_row(int w) const { return tile * C::Br + w * STRIP; }
    __device__ int blocks_of(int w) const { return first_row(w) < T ? CEIL_DIV(first_row(w) + STRIP, C::Bc) : 0; }
};

// A stage of the pipeline, and the parity of the round over the stages.
template <int stages> struct Cursor {
    int stage = 0;
    uint32_t parity = 0;
    __device__ void advance() {
        stage++;
        if (stage == stages) { stage = 0, parity ^= 1; }
    }
};

// The softmax of a thread's two rows so far: rows lane/4 and lane/4 + 8 of its warp's sixteen.
struct RunningSoftmax {
    // An older maximum stays in use while no score exceeds it by more: P stays below 2^8, m within 8 of the maximum.
    static constexpr float slack = 8 / LOG2_E;
    float scale;           // 1/sqrt(HS), known when compiling
    float m[2];            // the maximum in use, as the contract has it: scaled
    float sum[2] = {0, 0}; // of exp(scale S - m), this thread's columns only
    float factor[2];       // of what was summed before the latest update

    __device__ explicit RunningSoftmax(float scale) : scale(scale) {
        m[0] = m[1] = -INFINITY, factor[0] = factor[1] = 1;
    }
    // Adopts the maxima of S where some row of the warp needs it; true where the factor is to be applied.
    template <int N> __device__ bool update(const float (&S)[N]) {
        float x[2] = {S[0], S[2]};
#pragma unroll
        for (int i = 0; i < N; i++) { x[i / 2 % 2] = fmaxf(x[i / 2 % 2], S[i]); }
        bool grown = scale * x[0] - m[0] > slack || scale * x[1] - m[1] > slack;
        grown = __any_sync(0xffffffffu, grown);
        if (grown) {
#pragma unroll
            for (int h = 0; h < 2; h++) { // the four lanes of a quad share a row
                x[h] = fmaxf(x[h], __shfl_xor_sync(0xffffffffu, x[h], 1));
                x[h] = fmaxf(x[h], __shfl_xor_sync(0xffffffffu, x[h], 2));
                float old = m[h];
                m[h] = fmaxf(old, scale * x[h]);
                factor[h] = ex2_approx_ftz(__fmul_rn(old, LOG2_E) - __fmul_rn(m[h], LOG2_E));
                sum[h] *= factor[h];
            }
        }
        return grown;
    }
    // S = exp(scale S - m). Both terms in powers of two, the second rounded before it is subtracted, as backward does
    // it: so P is the same there.
    template <int N> __device__ void exponentiate(float (&S)[N]) {
        float shift[2] = {-__fmul_rn(m[0], LOG2_E), -__fmul_rn(m[1], LOG2_E)};
#pragma unroll
        for (int i = 0; i < N; i++) {
            S[i] = ex2_approx_ftz(fmaf(S[i], scale * LOG2_E, shift[i / 2 % 2]));
            sum[i / 2 % 2] += S[i];
        }
    }
    // The whole row's sum
    __device__ float l(int h) const {
        float x = sum[h] + __shfl_xor_sync(0xffffffffu, sum[h], 1);
        return x + __shfl_xor_sync(0xffffffffu, x, 2);
    }
};

// -inf above the diagonal, which the last 64 columns of S hold: row r of the strip sees columns up to r.
template <int N> __device__ inline void mask_causal(float (&S)[N], int warp, int lane) {
    int row = warp * 16 + lane / 4, column = lane % 4 * 2;
#pragma unroll
    for (int i = N - 32; i < N; i++) {
        int n = (i - (N - 32)) / 4;
        if (column + 8 * n + i % 2 > row + i / 2 % 2 * 8) { S[i] = -INFINITY; }
    }
}

// The producer: one thread that keeps the pipeline filled.
template <class C>
__device__ inline void produce(typename C::Shared& s, const CUtensorMap* qkv, int T, int NH, int heads) {
    Cursor<C::stages> cursor;
    for (Walk<C> walk(T, heads); walk.more(); walk.next()) {
        int b = walk.head / NH, h = walk.head % NH;
        for (int w = 0; w < C::warpgroups; w++) {
            s.Q_empty[w].wait((walk.n + 1) % 2);
            s.Q_full[w].expect_tx(C::boxes * C::box_bytes);
            for (int x = 0; x < C::boxes; x++) {
                cp_async_bulk_tensor(shared_address(s.Q[w][x]), qkv, x * 64, h, walk.first_row(w), b, s.Q_full[w]);
            }
        }
        for (int j = walk.blocks() - 1; j >= 0; j--, cursor.advance()) {
            int n = cursor.stage;
            auto load = [&](floatX(&tile)[C::boxes][C::Bc * 64], int which, Mbarrier& full, Mbarrier& empty) {
                empty.wait(cursor.parity ^ 1);
                full.expect_tx(C::Bc * C::HS * 2);
                for (int x = 0; x < C::boxes; x++) {
                    for (int r = 0; r < C::Bc; r += STRIP) {
                        cp_async_bulk_tensor(shared_address(tile[x]) + r * 128, qkv, x * 64, which * NH + h,
                                             j * C::Bc + r, b, full);
                    }
                }
            };
            load(s.K[n], 1, s.K_full[n], s.K_empty[n]);
            load(s.V[n], 2, s.V_full[n], s.V_empty[n]);
        }
    }
}

// A consumer: one warpgroup, which takes strip w of every tile.
template <class C> struct Consumer {
    static constexpr int HS = C::HS, Bc = C::Bc;
    typename C::Shared& s;
    const int w, warp, lane;
    Cursor<C::stages> k, v; // the next blocks of K and V
    float O[HS / 2];
    uint32_t P[Bc / 16][4];

    __device__ Consumer(typename C::Shared& s, int w)
        : s(s), w(w), warp(threadIdx.x % WARPGROUP_SIZE / WARP_SIZE), lane(threadIdx.x % WARP_SIZE) {}

    __device__ void release(Mbarrier& empty) {
        if (lane == 0) { empty.arrive(); }
    }
    // Issues S = Q K^T with the first 2 N keys of the stage.
    template <int N> __device__ void issue_scores(float (&S)[N]) {
        s.K_full[k.stage].wait(k.parity);
        uint64_t a = tile_descriptor_k_major(shared_address(s.Q[w]));
        uint64_t b = tile_descriptor_k_major(shared_address(s.K[k.stage]));
        hold(S);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < HS / 16; i++) {
            wgmma_mma_async(S, a + i / 4 * (C::box_bytes / 16) + i % 4 * 2, b + i / 4 * (Bc * 128 / 16) + i % 4 * 2,
                            i > 0);
        }
        wgmma_commit_group();
        hold(S);
    }
    // Issues O += P V with the first `keys` keys of the stage.
    template <int keys> __device__ void issue_output() {
        s.V_full[v.stage].wait(v.parity);
        uint64_t b = tile_descriptor_n_major(shared_address(s.V[v.stage]), Bc * 128);
        hold(O);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < keys / 16; i++) { wgmma_mma_async(O, P[i], b + i * 128); }
        wgmma_commit_group();
        hold(O);
    }
    __device__ void release_k() { release(s.K_empty[k.stage]), k.advance(); }
    __device__ void release_v() { release(s.V_empty[v.stage]), v.advance(); }

    template <int N> __device__ void round(const float (&S)[N]) {
#pragma unroll
        for (int i = 0; i < N / 2; i++) { P[i / 4][i % 4] = mma::cvt_rn_x2(S[2 * i], S[2 * i + 1]); }
    }

    // The block of the diagonal, of which `keys` are needed
    template <int keys> __device__ void first(RunningSoftmax& softmax) {
        float S[keys / 2];
        issue_scores(S);
        wgmma_wait_group<0>();
        hold(S);
        release_k();
        mask_causal(S, warp, lane);
        softmax.update(S);
        softmax.exponentiate(S);
        round(S);
    }
    // S of this block under the products of the last, of which `keys` were needed.
    template <int keys> __device__ void step(RunningSoftmax& softmax) {
        float S[Bc / 2];
        issue_scores(S);
        issue_output<keys>();
        wgmma_wait_group<1>();
        hold(S);
        release_k();
        bool grown = softmax.update(S);
        softmax.exponentiate(S);
        wgmma_wait_group<0>();
        hold(O);
        release_v();
        round(S);
        if (grown) {
#pragma unroll
            for (int i = 0; i < HS / 2; i++) { O[i] *= softmax.factor[i / 2 % 2]; }
        }
    }
    template <int keys> __device__ void finish() {
        issue_output<keys>();
        wgmma_wait_group<0>();
        hold(O);
        release_v();
    }

    // out = O / l
    __device__ void store(RunningSoftmax& softmax, const CUtensorMap* out, float* l, float* m, const Walk<C>& walk,
                          int NH) {
        const int row = walk.first_row(w), T = walk.T;
        float factor[2];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int t = row + warp * 16 + 8 * h + lane / 4;
            float sum = softmax.l(h);
            factor[h] = 1 / sum;
            if (lane % 4 == 0 && t < T) {
                l[(int64_t)walk.head * T + t] = sum;
                m[(int64_t)walk.head * T + t] = softmax.m[h];
            }
        }
        const bool leader = warp == 0 && lane == 0;
        if (leader) { cp_async_bulk_wait_group_read<0>(); } // of the last tile
        bar_sync(1 + w, WARPGROUP_SIZE);
        uint32_t lane_row = shared_address(s.O[w]) + (warp * 16 + lane % 16) * 128;
#pragma unroll
        for (int n = 0; n < HS / 8; n += 2) {
            const float* x = O + 4 * n;
            uint32_t r0 = mma::cvt_rn_x2(factor[0] * x[0], factor[0] * x[1]),
                     r1 = mma::cvt_rn_x2(factor[1] * x[2], factor[1] * x[3]);
            uint32_t r2 = mma::cvt_rn_x2(factor[0] * x[4], factor[0] * x[5]),
                     r3 = mma::cvt_rn_x2(factor[1] * x[6], factor[1] * x[7]);
            stmatrix_x4(lane_row + n / 8 * C::box_bytes + ((n % 8 + lane / 16) ^ lane % 8) * 16, r0, r1, r2, r3);
        }
        fence_proxy_async();
        bar_sync(1 + w, WARPGROUP_SIZE);
        if (leader) {
            for (int x = 0; x < C::boxes; x++) {
                cp_async_bulk_tensor(out, x * 64, walk.head % NH, row, walk.head / NH, shared_address(s.O[w][x]));
            }
            cp_async_bulk_commit_group();
        }
    }

    __device__ void run(const CUtensorMap* out, float* l, float* m, int T, int NH, int heads) {
        for (Walk<C> walk(T, heads); walk.more(); walk.next()) {
            int blocks = walk.blocks_of(w);
            for (int skipped = walk.blocks() - blocks; skipped > 0; skipped--) {
                s.K_full[k.stage].wait(k.parity);
                release_k();
                s.V_full[v.stage].wait(v.parity);
                release_v();
            }
            s.Q_full[w].wait(walk.n % 2);
            if (blocks == 0) {
                release(s.Q_empty[w]);
                continue;
            }
            RunningSoftmax softmax(C::scale);
#pragma unroll
            for (int i = 0; i < HS / 2; i++) { O[i] = 0; }
            bool half = blocks * Bc > walk.first_row(w) + STRIP;
            if (half) {
                first<STRIP>(softmax);
                if (blocks > 1) { step<STRIP>(softmax); }
            } else {
                first<Bc>(softmax);
                if (blocks > 1) { step<Bc>(softmax); }
            }
#pragma unroll 1
            for (int j = 2; j < blocks; j++) { step<Bc>(softmax); }
            release(s.Q_empty[w]);
            if (half && blocks == 1) {
                finish<STRIP>();
            } else {
                finish<Bc>();
            }
            store(softmax, out, l, m, walk, NH);
        }
        if (warp == 0 && lane == 0) { cp_async_bulk_wait_group_read<0>(); }
    }
};

// out (B,T,NH,HS) and qkv (B,T,3,NH,HS) by descriptors; l, m (B,NH,T)
template <class C> __global__ void __launch_bounds__(C::threads, 1)
    attention_forward_kernel(const __grid_constant__ CUtensorMap out, float* l, float* m,
                             const __grid_constant__ CUtensorMap qkv, int T, int NH, int heads) {
#if defined(HOPPER_DEVICE_CODE)
    extern __shared__ __align__(1024) char shared[];
    typename C::Shared& s = *reinterpret_cast<typename C::Shared*>(shared);
    if (threadIdx.x == 0) {
        for (int w = 0; w < C::warpgroups; w++) { s.Q_full[w].init(1), s.Q_empty[w].init(4); }
        for (int n = 0; n < C::stages; n++) {
            s.K_full[n].init(1), s.K_empty[n].init(4 * C::warpgroups);
            s.V_full[n].init(1), s.V_empty[n].init(4 * C::warpgroups);
        }
        fence_mbarrier_init();
    }
    __syncthreads();
    int warpgroup = __shfl_sync(0xffffffffu, threadIdx.x / WARPGROUP_SIZE, 0);
    if (warpgroup == 0) {
        setmaxnreg_dec<C::producer_registers>();
        if (threadIdx.x == 0) { produce<C>(s, &qkv, T, NH, heads); }
    } else {
        setmaxnreg_inc<C::consumer_registers>();
        Consumer<C>(s, warpgroup - 1).run(&out, l, m, T, NH, heads);
    }
#endif
}

template <class C> void launch_forward(floatX* out, float* l, float* m, const floatX* qkv, int B, int T, int NH, int HS,
                                       cudaStream_t stream) {
    uint64_t n = 2 * HS; // bytes of a head's row
    CUtensorMap qkv_map = tensor_map(qkv, {(uint64_t)HS, 3ull * NH, (uint64_t)T, (uint64_t)B},
                                     {n, 3 * NH * n, 3 * NH * n * T}, {64, 1, STRIP, 1});
    CUtensorMap out_map = tensor_map(out, {(uint64_t)HS, (uint64_t)NH, (uint64_t)T, (uint64_t)B},
                                     {n, NH * n, NH * n * T}, {64, 1, STRIP, 1});
    int device, multiprocessors;
    cuda_check(cudaGetDevice(&device));
    cuda_check(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device));
    auto kernel = attention_forward_kernel<C>;
    cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)C::shared_bytes));
    int pairs = B * NH * CEIL_DIV(CEIL_DIV(T, C::Br), 2);
    kernel<<<min(pairs, multiprocessors), C::threads, C::shared_bytes, stream>>>(out_map, l, m, qkv_map, T, NH, B * NH);
    cuda_check(cudaGetLastError());
}

// A table row, named after the rows and keys of a block.
template <class C> constexpr AttentionForwardConfig forward_config(const char* name) {
    return {name, C::HS, C::shared_bytes, launch_forward<C>};
}
static const AttentionForwardConfig forward_configs[] = {
    forward_config<ForwardTiles<64, 2, 128, 5>>("128x128"),
    forward_config<ForwardTiles<64, 3, 128, 4>>("192x128"),
    forward_config<ForwardTiles<64, 4, 64, 6>>("256x64"),
    forward_config<ForwardTiles<128, 2, 128, 2>>("128x128"),
};

// The best configuration for the head size.
inline void attention_forward(floatX* out, float* l, float* m, const floatX* qkv, int B, int T, int NH, int HS,
                              cudaStream_t stream) {
    attention_config(forward_configs, HS).launch(out, l, m, qkv, B, T, NH, HS, stream);
}

} // namespace wgmma

#if __INCLUDE_LEVEL__ == 0 // the program, not an include
#include "attention_bench.h"
int main(int argc, char** argv) { return attention_forward_main(argc, argv, "wgmma", wgmma::forward_configs, 90); }
#endif
