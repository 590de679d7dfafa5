/*
FlashAttention on Hopper: wgmma fed by TMA, one warpgroup that loads and two to four that multiply.

A block of threads takes tiles of Br query rows of one head; each consumer warpgroup owns 64 of the rows and walks over
the key blocks from its own diagonal down to the first. Against mma:
- wgmma reads Q, K and V from shared memory by itself and runs while the warpgroup does something else: S of the next
  block and O += P V of this one are under way together. P stays in registers, as the A operand of the second product.
- TMA loads whole boxes on behalf of one thread; barriers count bytes and say what is full and what is
  empty. The loading warpgroup gives its registers to the others.
- Blocks of threads stay for the whole launch and are dealt equal work without a counter in memory, so that the next
  tile's Q, K and V are loaded while this one's O is stored.
- A warpgroup stops at its own diagonal, takes that block at half width where it needs no more, and changes its place
  in the tile from tile to tile, so that one that has less to do in this tile runs ahead into the next.
- O is rescaled only when a row's maximum has grown by more than a factor of 2^8 in P since it was last adopted. The
  largest P of a row is then seldom 1, and is rounded. In return a head's first 64 rows, where out is largest and the
  fewest roundings average out, multiply V by what rounding has left of P, too.

The climb is told in README.md, section "The climb of wgmma".

What binds, by the profiler's counters of one launch (with sections of 32 MB), in % of the peak; tensor cores,
exponentials and issue while the SMs are busy:

                            clock    tensor  exponentials  issue  shared memory  L2   DRAM read
    4,16384,48,64   256x64  1.79 GHz   65        66          57        49        19    2.4 GB
    4,16384,48,64  192x128  1.77 GHz   65        66          50        41        25    3.9 GB
    4,4096,16,128  128x128  1.63 GHz   83        42          37        52        49    0.35 GB

That launch at 4,16384 took 10.5 ms, 626 TFLOP/s; launch after launch it is 550, for then power binds: nvidia-smi names
the power cap as what holds the clock in 1431 of 1454 samples, with HS = 128 at 1.4 to 1.65 GHz. So instructions cost
even where their unit is idle. Lost, in those calls or the one before: an eighth of the exponentials as a polynomial on
the FMA pipe (4 to 6%), a quarter (8 to 10%); O += P V issued before S = Q K^T (2% with 256x64, 7% with 192x128, 17% at
HS = 128); O rescaled from a factor of 2^2, of 2, or whenever the maximum grows (1 to 4%, 3 to 9%, 4 to 15%);
exponentials without a look at the maximum, redone where a sum exceeds 2^8 (from -1 to 2% gained with 256x64, 3 to 10%
lost with 192x128, 4 to 8% at 4,4096); one ring of stages for K and V (2 to 3%); turns at HS = 128 (4%). Turns at the
tensor cores gained 3 to 6% with three warpgroups, nothing with four. Lost earlier: Q in registers (1 to 3%), three
warpgroups with 64 keys (15% at T = 1024), 64 keys at HS = 128 (14%).

Papers: Dao, FlashAttention-2 (2023), algorithm 1; Shah et al., FlashAttention-3 (2024), sections 3.1 and 3.2.
*/
#include "attention.h"
#include "llmc/hopper.cuh"
#include "llmc/mma.cuh"

namespace wgmma {

using namespace hopper;

constexpr int WARPGROUP_ROWS = 64;                // rows of a warpgroup
constexpr int BOX_ELEMENTS = WARPGROUP_ROWS * 64; // what one copy moves: 64 rows of 64 elements

// A configuration: head size, consumer warpgroups, keys of a block, stages of the pipeline, and whether the warpgroups
// take turns at the tensor cores.
template <int HS_, int WARPGROUPS, int BC, int STAGES, bool PINGPONG> struct ForwardTiles {
    static constexpr int HS = HS_, warpgroups = WARPGROUPS, Bc = BC, stages = STAGES;
    static constexpr int Br = warpgroups * WARPGROUP_ROWS, boxes = HS / 64, box_bytes = BOX_ELEMENTS * 2;
    static constexpr int threads = (warpgroups + 1) * WARPGROUP_SIZE; // the first warpgroup loads
    static constexpr int producer_registers = warpgroups == 2 ? 40 : 32;
    static constexpr int consumer_registers = warpgroups == 2 ? 232 : warpgroups == 3 ? 160 : 112;
    static constexpr bool pingpong = PINGPONG;
    static constexpr float scale = mma::inverse_sqrt(HS);

    struct Shared {
        floatX Q[warpgroups][boxes][BOX_ELEMENTS], O[warpgroups][boxes][BOX_ELEMENTS];
        floatX K[stages][boxes][Bc * 64], V[stages][boxes][Bc * 64];
        Mbarrier Q_full[warpgroups], Q_empty[warpgroups];
        Mbarrier K_full[stages], K_empty[stages], V_full[stages], V_empty[stages];
    };
    static constexpr size_t shared_bytes = sizeof(Shared);
};

struct ForwardProblem {
    int T, NH, heads;
    int section_heads; // heads of a section of the tile order: so many that their K and V stay in L2
};

// Static persistent tile scheduler: the sequence of query tiles (head, i) of one CTA. Producers and consumers of the CTA
// each run their own copy, without communication.
//
// Tile order: heads are cut into sections of section_heads heads; within a section, tiles are sorted by their number of
// keys, all heads of one length before the next length. Odd sections counted from the last one descend, even ones ascend,
// so that the length does not jump between sections and the launch ends with short tiles.
// CTAs take the tiles in serpentine order: round n goes from the first CTA to the last if n is even, and back if it is
// odd. So every CTA gets nearly the same number of keys.
template <class C> struct TileScheduler {
    const ForwardProblem& p;
    int n = 0; // round: how many tiles this CTA had before
    int head, i;

    __device__ explicit TileScheduler(const ForwardProblem& p) : p(p) { decode(); }
    __device__ int tiles_per_head() const { return CEIL_DIV(p.T, C::Br); }
    __device__ int tile_index() const { return n * gridDim.x + (n % 2 == 0 ? blockIdx.x : gridDim.x - 1 - blockIdx.x); }
    __device__ bool valid() const { return tile_index() < p.heads * tiles_per_head(); }
    __device__ void advance() {
        n++;
        decode();
    }
    __device__ void decode() { // (head, i) from tile_index()
        int section = tile_index() / (p.section_heads * tiles_per_head()), first = section * p.section_heads;
        int heads = max(1, min(p.section_heads, p.heads - first)); // the last section may have fewer
        int index = tile_index() - first * tiles_per_head();
        head = first + index % heads;
        i = index / heads;
        bool descending = (CEIL_DIV(p.heads, p.section_heads) - section) % 2 == 1;
        if (descending) { i = tiles_per_head() - 1 - i; }
    }
    __device__ int b() const { return head / p.NH; }
    __device__ int h() const { return head % p.NH; }
    // The first of the 64 rows of warpgroup w. The warpgroups rotate over the tile's rows from round to round, because
    // lower rows have more keys.
    __device__ int row(int w) const { return i * C::Br + (w + n) % C::warpgroups * WARPGROUP_ROWS; }
    // The number of key blocks that the tile needs, and that the rows of warpgroup w need.
    __device__ int key_blocks() const { return CEIL_DIV(min((i + 1) * C::Br, p.T), C::Bc); }
    __device__ int key_blocks(int w) const { return row(w) < p.T ? CEIL_DIV(row(w) + WARPGROUP_ROWS, C::Bc) : 0; }
};

// Position in a ring of pipeline stages: the stage, and the parity of the current pass over the ring, which is the mbarrier
// phase parity to wait for.
template <int stages> struct PipelineState {
    int stage = 0;
    uint32_t parity = 0;
    __device__ void advance() {
        stage++;
        if (stage == stages) { stage = 0, parity ^= 1; }
    }
    __device__ PipelineState next() const {
        PipelineState state = *this;
        state.advance();
        return state;
    }
};

// The softmax of a thread's two rows so far: rows lane/4 and lane/4 + 8 of its warp's sixteen.
struct OnlineSoftmax {
    // An older maximum stays in use while no score exceeds it by more: P stays below 2^8, m within 8 of the maximum.
    static constexpr float rescale_threshold = 8 / LOG2_E;
    float scale;           // 1/sqrt(HS), known when compiling
    float m[2];            // the maximum in use, as the contract has it: scaled
    float sum[2] = {0, 0}; // of exp(scale S - m), this thread's columns only
    float factor[2];       // for what was summed up before m grew

    __device__ explicit OnlineSoftmax(float scale) : scale(scale) {
        m[0] = m[1] = -INFINITY;
        factor[0] = factor[1] = 1;
    }
    // Adopts the maxima of S where some row of the warp needs it; true where O is to be multiplied by the factors.
    template <int N> __device__ bool update(const float (&S)[N]) {
        float four[4] = {S[0], S[1], S[2], S[3]}; // two for each row: shorter chains
#pragma unroll
        for (int i = 4; i < N; i++) { four[i % 4] = fmaxf(four[i % 4], S[i]); }
        float x[2] = {fmaxf(four[0], four[1]), fmaxf(four[2], four[3])};
        bool exceeds = scale * x[0] - m[0] > rescale_threshold || scale * x[1] - m[1] > rescale_threshold;
        exceeds = __any_sync(0xffffffffu, exceeds);
        if (exceeds) {
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
        return exceeds;
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

// -inf above the diagonal, which the last 64 columns of S hold: row r of the strip sees their columns up to r.
template <int N> __device__ inline void mask_causal(float (&S)[N], int warp, int lane) {
    int row = warp * 16 + lane / 4, column = lane % 4 * 2;
#pragma unroll
    for (int i = N - 32; i < N; i++) {
        int n = (i - (N - 32)) / 4;
        if (column + 8 * n + i % 2 > row + i / 2 % 2 * 8) { S[i] = -INFINITY; }
    }
}

// The producers, two threads. One keeps the pipeline of K and V filled, as far ahead as its stages reach,
template <class C>
__device__ inline void produce_kv(typename C::Shared& s, const CUtensorMap* qkv, const ForwardProblem& p) {
    PipelineState<C::stages> state;
    for (TileScheduler<C> tile(p); tile.valid(); tile.advance()) {
        int b = tile.b(), h = tile.h();
        for (int j = tile.key_blocks() - 1; j >= 0; j--, state.advance()) { // key blocks, diagonal first
            auto load = [&](floatX(&smem)[C::boxes][C::Bc * 64], int which, Mbarrier& full, Mbarrier& empty) {
                empty.wait(state.parity ^ 1);
                full.expect_tx(C::boxes * C::Bc * 128);
                for (int x = 0; x < C::boxes; x++) {
                    for (int r = 0; r < C::Bc; r += WARPGROUP_ROWS) {
                        cp_async_bulk_tensor(shared_address(smem[x]) + r * 128, qkv, x * 64, which * p.NH + h,
                                             j * C::Bc + r, b, full);
                    }
                }
            };
            int n = state.stage;
            load(s.K[n], 1, s.K_full[n], s.K_empty[n]);
            load(s.V[n], 2, s.V_full[n], s.V_empty[n]);
        }
    }
}
// the other gives each warpgroup its rows of the next tile's Q once it has done with the last.
template <class C>
__device__ inline void produce_q(typename C::Shared& s, const CUtensorMap* qkv, const ForwardProblem& p) {
    for (TileScheduler<C> tile(p); tile.valid(); tile.advance()) {
        for (int w = 0; w < C::warpgroups; w++) {
            s.Q_empty[w].wait((tile.n + 1) % 2);
            s.Q_full[w].expect_tx(C::boxes * C::box_bytes);
            for (int x = 0; x < C::boxes; x++) {
                cp_async_bulk_tensor(shared_address(s.Q[w][x]), qkv, x * 64, tile.h(), tile.row(w), tile.b(),
                                     s.Q_full[w]);
            }
        }
    }
}

// A consumer: warpgroup w, which takes 64 rows of every tile.
template <class C> struct ForwardConsumer {
    static constexpr int HS = C::HS, Bc = C::Bc;
    typename C::Shared& s;
    const int w;
    PipelineState<C::stages> state; // the block whose V comes next
    float O[HS / 2];
    uint32_t P[Bc / 16][4]; // of the block at the state

    __device__ ForwardConsumer(typename C::Shared& s, int w) : s(s), w(w) {}

    static __device__ int lane() { return mma::mov_tid_x() % WARP_SIZE; }
    static __device__ int warp() { return mma::mov_tid_x() % WARPGROUP_SIZE / WARP_SIZE; }

    // While one warpgroup has its turn at the tensor cores, the others find their maxima and exponentials. A turn for
    // each key block of the tile, needed or not.
    __device__ void pingpong_sync() {
        if (C::pingpong) { bar_sync(1 + C::warpgroups + w, 2 * WARPGROUP_SIZE); }
    }
    __device__ void pingpong_arrive() {
        if (C::pingpong) { bar_arrive(1 + C::warpgroups + (w + 1) % C::warpgroups, 2 * WARPGROUP_SIZE); }
    }
    __device__ void arrive(Mbarrier& empty) {
        if (lane() == 0) { empty.arrive(); }
    }

    // Begins S (64, 2N) = Q K^T with the first 2 N keys of a block.
    template <int N> __device__ void issue_scores(float (&S)[N], PipelineState<C::stages> block) {
        s.K_full[block.stage].wait(block.parity);
        uint64_t a = tile_descriptor_k_major(shared_address(s.Q[w]));
        uint64_t b = tile_descriptor_k_major(uniform(shared_address(s.K[block.stage])));
        fence_operand(S);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < HS / 16; i++) { // 16 channels are 32 bytes, 64 a box
            wgmma_mma_async(S, a + i / 4 * (C::box_bytes / 16) + i % 4 * 2, b + i / 4 * (Bc * 128 / 16) + i % 4 * 2,
                            i > 0);
        }
        wgmma_commit_group();
        fence_operand(S);
    }
    // Begins O += P V with the first `keys` keys of the block at the state.
    template <int keys, int N> __device__ void issue_output(const uint32_t (&P)[N][4]) {
        s.V_full[state.stage].wait(state.parity);
        uint64_t b = tile_descriptor_n_major(uniform(shared_address(s.V[state.stage])), Bc * 128);
        fence_operand(O);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < keys / 16; i++) { wgmma_mma_async(O, P[i], b + i * (16 * 128 / 16)); }
        wgmma_commit_group();
        fence_operand(O);
    }
    __device__ void finish_output() {
        wgmma_wait_group<0>();
        fence_operand(O);
        arrive(s.V_empty[state.stage]);
        state.advance();
    }
    // P = S, rounded: the accumulator of one product is, register by register, the operand A of the other.
    template <int N> __device__ void round_to_p(const float (&S)[N]) {
#pragma unroll
        for (int i = 0; i < N / 2; i++) { P[i / 4][i % 4] = mma::cvt_rn_x2(S[2 * i], S[2 * i + 1]); }
    }

    // P of the diagonal's block, of which the first `keys` are needed: in S, unrounded.
    template <int keys> __device__ void compute_diagonal(float (&S)[keys / 2], OnlineSoftmax& softmax) {
        pingpong_sync();
        issue_scores(S, state);
        pingpong_arrive();
        wgmma_wait_group<0>();
        fence_operand(S);
        arrive(s.K_empty[state.stage]);
        mask_causal(S, warp(), lane());
        softmax.update(S);
        softmax.exponentiate(S);
    }
    template <int keys> __device__ void first_key_block(OnlineSoftmax& softmax) {
        float S[keys / 2];
        compute_diagonal<keys>(S, softmax);
        round_to_p(S);
    }
    // O of the first strip of a head: P V with P in two parts, rounded and what rounding has left of it.
    __device__ void first_tile(OnlineSoftmax& softmax) {
        float S[WARPGROUP_ROWS / 2];
        compute_diagonal<WARPGROUP_ROWS>(S, softmax);
        arrive(s.Q_empty[w]);
        uint32_t rest[WARPGROUP_ROWS / 16][4];
#pragma unroll
        for (int i = 0; i < WARPGROUP_ROWS / 4; i++) {
            uint32_t& p = P[i / 4][i % 4] = mma::cvt_rn_x2(S[2 * i], S[2 * i + 1]);
            float2 rounded = mma::float2_of(p);
            rest[i / 4][i % 4] = mma::cvt_rn_x2(S[2 * i] - rounded.x, S[2 * i + 1] - rounded.y);
        }
        issue_output<WARPGROUP_ROWS>(P);
        wgmma_wait_group<0>();
        issue_output<WARPGROUP_ROWS>(rest);
        finish_output();
    }
    // O += P V of the last block, of which `keys` were needed, and P of this one.
    template <int keys> __device__ void key_block(OnlineSoftmax& softmax) {
        float S[Bc / 2];
        pingpong_sync();
        issue_scores(S, state.next());
        issue_output<keys>(P);
        pingpong_arrive();
        wgmma_wait_group<1>();
        fence_operand(S);
        arrive(s.K_empty[state.next().stage]);
        bool rescale_O = softmax.update(S);
        softmax.exponentiate(S);
        finish_output();
        round_to_p(S);
        if (rescale_O) {
#pragma unroll
            for (int i = 0; i < HS / 2; i++) { O[i] *= softmax.factor[i / 2 % 2]; }
        }
    }
    __device__ void last_key_block() {
        arrive(s.Q_empty[w]);
        issue_output<Bc>(P);
        finish_output();
    }
    // A block that other strips of the tile need.
    __device__ void skip_key_block() {
        pingpong_sync();
        pingpong_arrive();
        s.K_full[state.stage].wait(state.parity);
        arrive(s.K_empty[state.stage]);
        s.V_full[state.stage].wait(state.parity);
        arrive(s.V_empty[state.stage]);
        state.advance();
    }

    // out = O / l, by way of shared memory
    __device__ void store(OnlineSoftmax& softmax, const CUtensorMap* out, float* l, float* m,
                          const TileScheduler<C>& tile) {
        const int row = tile.row(w), T = tile.p.T, warp = this->warp(), lane = this->lane();
        float factor[2];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int t = row + warp * 16 + 8 * h + lane / 4;
            float sum = softmax.l(h);
            factor[h] = 1 / sum;
            if (lane % 4 == 0 && t < T) {
                l[(int64_t)tile.head * T + t] = sum;
                m[(int64_t)tile.head * T + t] = softmax.m[h];
            }
        }
        const bool leader = warp == 0 && lane == 0;
        if (leader) { cp_async_bulk_wait_group_read<0>(); } // of the last tile
        bar_sync(1 + w, WARPGROUP_SIZE);
        uint32_t lane_row = shared_address(s.O[w]) + (warp * 16 + lane % 16) * 128;
#pragma unroll
        for (int n = 0; n < HS / 8; n += 2) { // chunks of 8 channels
            float x[8];
#pragma unroll
            for (int i = 0; i < 8; i++) { x[i] = factor[i / 2 % 2] * O[4 * n + i]; }
            int chunk = (n % 8 + lane / 16) ^ lane % 8;
            mma::stmatrix_x4(lane_row + n / 8 * C::box_bytes + chunk * 16, mma::cvt_rn_x2(x[0], x[1]),
                             mma::cvt_rn_x2(x[2], x[3]), mma::cvt_rn_x2(x[4], x[5]), mma::cvt_rn_x2(x[6], x[7]));
        }
        fence_proxy_async();
        bar_sync(1 + w, WARPGROUP_SIZE);
        if (leader) {
            for (int x = 0; x < C::boxes; x++) {
                cp_async_bulk_tensor(out, x * 64, tile.h(), row, tile.b(), shared_address(s.O[w][x]));
            }
            cp_async_bulk_commit_group();
        }
    }

    __device__ void run(const CUtensorMap* out, float* l, float* m, const ForwardProblem& p) {
        if (w == C::warpgroups - 1) { pingpong_arrive(); } // the first turn
        for (TileScheduler<C> tile(p); tile.valid(); tile.advance()) {
            int blocks = tile.key_blocks(w);
            for (int n = blocks; n < tile.key_blocks(); n++) { skip_key_block(); }
            s.Q_full[w].wait(tile.n % 2);
            if (blocks == 0) { // all rows are past T
                arrive(s.Q_empty[w]);
                continue;
            }
            OnlineSoftmax softmax(C::scale);
#pragma unroll
            for (int i = 0; i < HS / 2; i++) { O[i] = 0; }
            bool half = blocks * Bc > tile.row(w) + WARPGROUP_ROWS; // of the diagonal's block is needed
            if (tile.row(w) == 0) {
                first_tile(softmax);
            } else {
                if (half) {
                    first_key_block<WARPGROUP_ROWS>(softmax);
                    key_block<WARPGROUP_ROWS>(softmax);
                } else {
                    first_key_block<Bc>(softmax);
                    if (blocks > 1) { key_block<Bc>(softmax); }
                }
#pragma unroll 1
                for (int n = 2; n < blocks; n++) { key_block<Bc>(softmax); }
                last_key_block();
            }
            store(softmax, out, l, m, tile);
        }
        if (threadIdx.x % WARPGROUP_SIZE == 0) { cp_async_bulk_wait_group_read<0>(); }
    }
};

// out (B,T,NH,HS) and qkv (B,T,3,NH,HS) by descriptors; l, m (B,NH,T)
template <class C> __global__ void __launch_bounds__(C::threads, 1)
    attention_forward_kernel(const __grid_constant__ CUtensorMap out, float* l, float* m,
                             const __grid_constant__ CUtensorMap qkv, const __grid_constant__ ForwardProblem p) {
#if defined(HOPPER_DEVICE_CODE)
    extern __shared__ __align__(1024) char shared[];
    typename C::Shared& s = *reinterpret_cast<typename C::Shared*>(shared);
    if (threadIdx.x == 0) {
        for (int w = 0; w < C::warpgroups; w++) { s.Q_full[w].init(1), s.Q_empty[w].init(4); } // one arrival a warp
        for (int n = 0; n < C::stages; n++) {
            s.K_full[n].init(1), s.K_empty[n].init(4 * C::warpgroups);
            s.V_full[n].init(1), s.V_empty[n].init(4 * C::warpgroups);
        }
        fence_mbarrier_init();
    }
    __syncthreads();
    int warpgroup = uniform(threadIdx.x / WARPGROUP_SIZE);
    if (warpgroup == 0) {
        setmaxnreg_dec<C::producer_registers>();
        if (threadIdx.x == 0) { produce_kv<C>(s, &qkv, p); }
        if (threadIdx.x == WARP_SIZE) { produce_q<C>(s, &qkv, p); }
    } else {
        setmaxnreg_inc<C::consumer_registers>();
        ForwardConsumer<C>(s, warpgroup - 1).run(&out, l, m, p);
    }
#endif
}

// As many heads as have 16 MB of K and V, which stay in L2 (50 MB) while the tiles that read them pass.
inline int64_t kv_bytes(int heads, int T, int HS) { return (int64_t)heads * T * HS * 4; }
inline int heads_per_section(int heads, int T, int HS) {
    int64_t sections = CEIL_DIV(kv_bytes(heads, T, HS), (int64_t)16 << 20);
    return CEIL_DIV(heads, (int)min((int64_t)heads, sections));
}

template <class C> void launch_forward(floatX* out, float* l, float* m, const floatX* qkv, int B, int T, int NH, int HS,
                                       cudaStream_t stream) {
    int num_sms;
    CUtensorMap qkv_map, out_map;
    if (hopper_num_sms(&num_sms) != STATUS_OK) { return; }
    if (tensor_map_of_heads(&qkv_map, qkv, B, T, 3 * NH, HS) != STATUS_OK) { return; }
    if (tensor_map_of_heads(&out_map, out, B, T, NH, HS) != STATUS_OK) { return; }
    auto kernel = attention_forward_kernel<C>;
    const auto shared = cudaFuncAttributeMaxDynamicSharedMemorySize;
    if (cuda_try(cudaFuncSetAttribute(kernel, shared, (int)C::shared_bytes)) != STATUS_OK) { return; }
    int tiles = CEIL_DIV(T, C::Br), blocks = min(B * NH * tiles, num_sms);
    ForwardProblem p = {T, NH, B * NH, heads_per_section(B * NH, T, HS)};
    kernel<<<blocks, C::threads, C::shared_bytes, stream>>>(out_map, l, m, qkv_map, p);
    cuda_try(cudaGetLastError());
}

// A table row, named after the rows and keys of a block.
template <class C> constexpr AttentionForwardConfig forward_config(const char* name) {
    return {name, C::HS, C::shared_bytes, launch_forward<C>};
}
static constexpr AttentionForwardConfig forward_configs[] = {
    forward_config<ForwardTiles<64, 4, 64, 9, false>>("256x64"),
    forward_config<ForwardTiles<64, 3, 128, 5, true>>("192x128"),
    forward_config<ForwardTiles<64, 2, 128, 5, true>>("128x128"),
    forward_config<ForwardTiles<128, 2, 128, 2, false>>("128x128"),
};

} // namespace wgmma

#if __INCLUDE_LEVEL__ == 0 // the program, not an include
#include "attention_bench.h"
int main(int argc, char** argv) { return attention_forward_main(argc, argv, "wgmma", wgmma::forward_configs, 90); }
#endif
