/*
FlashAttention forward on Hopper: wgmma fed by TMA, a warpgroup of producers and two to four consumer warpgroups.

A CTA takes tiles of Br query rows of one head; each consumer owns 64 of the rows and iterates over the key blocks from its
own diagonal down to the first. Against mma:
- S = Q K^T of the next key block and O += P V of this one are in flight together; P is the register operand A of O += P V.
- Persistent CTAs and a static tile scheduler, longest first: Q, K and V of the next tile are loaded while this one's O is
  stored; K and V of a short tile that follows a longer one of its head are still in shared memory.
- A consumer stops at its own diagonal and takes the diagonal block at half width where that is enough. Consumers swap rows
  from tile to tile, so that one with less work in this tile runs ahead into the next.
- O is rescaled only when a row's maximum has grown by more than 8 / log2(e) since it was last adopted; so P < 2^8. As the
  largest P of a row is then not exactly 1, a head's first rows, where out is largest, multiply V by P's rounding error too.
Roles: one thread loads K and V, one loads Q; consumers release stages by mbarriers, and ping-pong in some configurations.
attention/PROTOCOL.md has timeline and barriers. Papers: FlashAttention-2 (2023), algorithm 1; -3 (2024), sections 3.1 and 3.2.
*/
#include "attention/attention.h"
#include "llmc/cuda/hopper.cuh"
#include "llmc/cuda/mma.cuh"
#include "attention/online_softmax.cuh"

namespace wgmma {

using namespace hopper;

constexpr int WARPGROUP_ROWS = 64; // query rows of a consumer: M of wgmma
constexpr int LISTED = 512;        // items of a CTA that a list has room for, and its end

// A configuration: head size, consumer warpgroups, keys of a block, pipeline stages, and whether consumers ping-pong: while one
// issues its GEMMs, the others compute their softmax (FlashAttention-3, section 3.1).
template <int HS_, int WARPGROUPS, int BC, int STAGES, bool PINGPONG, bool DOCUMENTS = false> struct ForwardTiles {
    typedef ForwardTiles<HS_, WARPGROUPS, BC, STAGES, PINGPONG, true> WithDocuments;
    typedef ForwardTiles<HS_, WARPGROUPS, BC, STAGES, PINGPONG, false> WithoutDocuments;
    static constexpr bool documents = DOCUMENTS; // rows have `starts`
    static constexpr int HS = HS_, warpgroups = WARPGROUPS, Bc = BC, stages = STAGES;
    static constexpr int Br = warpgroups * WARPGROUP_ROWS;
    // A TMA box: 64 rows of 64 channels or, where these do not divide HS, of 32
    static constexpr int box_channels = HS % 64 == 0 ? 64 : 32, box_row = box_channels * 2, boxes = HS / box_channels;
    static constexpr int box_elements = WARPGROUP_ROWS * box_channels, box_bytes = box_elements * 2;
    static constexpr int threads = (warpgroups + 1) * WARPGROUP_SIZE; // warpgroup 0: producers
    static constexpr int producer_registers = warpgroups == 2 ? 40 : 32;
    static constexpr int consumer_registers = warpgroups == 2 ? 232 : warpgroups == 3 ? 160 : 112;
    static constexpr bool pingpong = PINGPONG;
    static constexpr float scale = mma::inverse_sqrt(HS);

    // A consumer's 64 rows of a tile
    struct alignas(16) Rows {
        int head, b, h, row;         // row: the first of the 64
        int key_blocks, tile_blocks; // needed by these rows, and by the whole tile; tile_blocks = 0: no tile is left
        int resident, kept;          // as in TileScheduler
    };
    // With documents, also the first key blocks of these rows and of the tile, and where the document of the last row begins.
    // Two stages, so that consumers need not hold them in registers.
    struct DocumentRows : Rows {
        int first_block, first_tile_block, last_start;
    };
    static constexpr int row_stages = documents ? 2 : 1;
    typedef typename std::conditional<documents, DocumentRows, Rows>::type PostedRows;

    struct Shared { // tiles in TMA boxes, swizzled: Q and O (64, HS) for each consumer, K and V (Bc, HS) for each stage
        floatX Q[warpgroups][boxes][box_elements], O[warpgroups][boxes][box_elements];
        floatX K[stages][boxes][Bc * box_channels], V[stages][boxes][Bc * box_channels];
        PostedRows rows[row_stages][warpgroups];
        Mbarrier Q_full[warpgroups], Q_empty[warpgroups];
        Mbarrier K_full[stages], K_empty[stages], V_full[stages], V_empty[stages];
        int list[documents ? LISTED : 1]; // the CTA's items (list_tiles)
    };
    static constexpr size_t shared_bytes = sizeof(Shared);

    // Named barriers (bar.sync; id 0 is __syncthreads). Consumer w uses id + w.
    enum NamedBarrier {
        BAR_OUTPUT = 1,                        // 128 threads of consumer w: s.O[w] is free; s.O[w] is written
        BAR_PINGPONG = BAR_OUTPUT + warpgroups // 256: consumer w waits, the one before it arrives: w may issue GEMMs
    };
};

// The tiles of all heads as work items, in the order in which CTAs take them.
//
// The first paired_heads heads have items of two tiles: the longest with the shortest, the second longest with the second
// shortest, ..., so that all items have the same number of keys. If the number of tiles is odd, the longest is alone.
// The other heads, a tile an item, balance the last rounds. They are cut into sections of section_heads heads; in a section,
// tiles are sorted by their number of keys, all heads of one length before the next length. The last section descends, the
// one before it ascends, and so on: the length does not jump between sections, and the launch ends with short tiles.
struct ForwardProblem {
    int T, heads, ctas;
    int missing_rows;               // of each head's first tile: the last tile ends with the last 64 rows of the head
    int paired_heads, pairs, items; // pairs: the first items, those of the paired heads
    int sections;
    Divisor head_pairs; // items of a paired head
    // Heads of a section: as many as keep their K and V in L2. The last section may have fewer.
    Divisor section_heads, last_heads;
    Divisor section_tiles, NH;
    int listed; // with documents: whether CTAs list their items
};

// A tile in a list
struct ListedTile {
    int head, i;
    static constexpr int NONE = -1, I_BITS = 12;
    __host__ __device__ int packed() const { return head << I_BITS | i; }
    __host__ __device__ static ListedTile unpacked(int tile) { return {tile >> I_BITS, tile & ((1 << I_BITS) - 1)}; }
};

// Static persistent tile scheduler: the sequence of query tiles (head, i) of one CTA. Each of its two producers runs a copy;
// consumers read their rows from shared memory. CTAs take the items in serpentine order: from the first CTA to the last in even
// rounds, backwards in odd ones. So every CTA gets nearly the same number of keys. Of several documents in a row, the items are
// tiles, those with the most key blocks first: a CTA has a list of its own (list_tiles).
//
// The second tile of an item needs the last key blocks of the first one. Where all of them fit the ring of stages, they are not
// loaded again: the first tile does not release them, and the second one steps back in the ring.
template <class C> struct TileScheduler {
    const ForwardProblem& p;
    const int cta;
    int n = 0, round = 0; // tiles and items that this CTA has taken before
    int head, i;
    int second;       // the item's tile after this one, or -1
    int resident = 0; // key blocks of this tile that are in the ring: all or none
    int kept;         // key blocks 0 .. kept - 1 stay in the ring for the next tile

    __host__ __device__ TileScheduler(const ForwardProblem& p, int cta, const int* list = nullptr) : p(p), cta(cta) {
        decode(list);
    }
    // list: with documents, the CTA's; read each time, because registers are few
    static __host__ __device__ bool is_listed(const int* list) {
        return C::documents && list && list[0] != ListedTile::NONE;
    }
    __host__ __device__ static int tiles_per_head(int T) { return CEIL_DIV(T, C::Br); }
    static __host__ __device__ int item(const ForwardProblem& p, int cta, int round) {
        return round * p.ctas + (round % 2 == 0 ? cta : p.ctas - 1 - cta);
    }
    __host__ __device__ int item() const { return item(p, cta, round); }
    __host__ __device__ bool valid(const int* list = nullptr) const {
        return is_listed(list) ? list[round] != ListedTile::NONE : item() < p.items;
    }
    __host__ __device__ void advance(const int* list = nullptr) {
        n++;
        resident = kept;
        if (second >= 0) {
            i = second, second = -1, kept = 0;
        } else {
            round++;
            decode(list);
        }
    }
    __host__ __device__ void decode(const int* list) { // the first tile of item()
        const int tiles = tiles_per_head(p.T);
        int index = item();
        second = -1, kept = 0;
        if (is_listed(list)) {
            const ListedTile tile = ListedTile::unpacked(list[round]);
            head = tile.head, i = tile.i;
            return;
        }
        if (index < p.pairs) {
            head = p.head_pairs.quotient(index);
            int pair = index - head * p.head_pairs.d;
            i = tiles - 1 - pair, second = pair - tiles % 2;
            if (!C::documents && second >= 0 && key_blocks_of(second) <= C::stages) { kept = key_blocks_of(second); }
            return;
        }
        index -= p.pairs;
        int section = p.section_tiles.quotient(index);
        const Divisor& heads = section < p.sections - 1 ? p.section_heads : p.last_heads;
        index -= section * p.section_tiles.d;
        head = p.paired_heads + section * p.section_heads.d + heads.remainder(index);
        i = heads.quotient(index);
        bool descending = (p.sections - section) % 2 == 1;
        if (descending) { i = tiles - 1 - i; }
    }
    __host__ __device__ int b() const { return p.NH.quotient(head); }
    __host__ __device__ int h() const { return p.NH.remainder(head); }
    // The first of the 64 rows of warpgroup w; negative: the warpgroup has none. The warpgroups rotate over the tile's rows
    // from tile to tile, because later rows have more keys.
    __host__ __device__ int row(int w) const {
        return i * C::Br - p.missing_rows + (w + n) % C::warpgroups * WARPGROUP_ROWS;
    }
    // The number of key blocks needed by tile i of a head, by this tile, and by the rows of warpgroup w.
    __host__ __device__ int key_blocks_of(int i) const {
        return CEIL_DIV(min((i + 1) * C::Br - p.missing_rows, p.T), C::Bc);
    }
    __host__ __device__ int key_blocks() const { return key_blocks_of(i); }
    __host__ __device__ int key_blocks(int w) const {
        return row(w) >= 0 ? CEIL_DIV(row(w) + WARPGROUP_ROWS, C::Bc) : 0;
    }
    // The tile's first key block. starts (B,T), or nullptr without documents
    __host__ __device__ int first_block(const int* starts) const {
        return C::documents ? starts[(int64_t)b() * p.T + max(i * C::Br - p.missing_rows, 0)] / C::Bc : 0;
    }
};

// What the tiles of all rows of the batch are sorted by, largest first: their key blocks, then their place in the batch,
// `entry` (batch row times tiles, and tile). The heads of a row have the same.
constexpr int SORTED = 4096; // tiles of the batch that K's stages have room for
__host__ __device__ inline int sort_key(int blocks, int entry) { return blocks * SORTED + SORTED - 1 - entry; }

// Item `round` of the CTA, of the tiles in the order of sorted[], each with its heads one after the other; or NONE
template <class C>
__host__ __device__ inline int listed_item(const ForwardProblem& p, int cta, int round, const int* sorted) {
    const int tiles = TileScheduler<C>::tiles_per_head(p.T), item = TileScheduler<C>::item(p, cta, round);
    if (item >= p.heads * tiles) { return ListedTile::NONE; }
    const int rank = p.NH.quotient(item), entry = SORTED - 1 - sorted[rank] % SORTED;
    return ListedTile{entry / tiles * p.NH.d + p.NH.remainder(item), entry % tiles}.packed();
}

// Lists pay where there is a tile of each kind: one that does not begin with its row's first key block, and one with the keys
// of two tiles or more.
__host__ __device__ inline bool is_cut(int first) { return first > 0; }
template <class C> __host__ __device__ inline bool is_long(int blocks) { return blocks >= 2 * C::Br / C::Bc; }

// A bitonic network sorts 2^k numbers, the largest first: for size = 2, 4, ..., 2^k, and in it for apart = size / 2, ..., 2, 1,
// the pairs 0 .. 2^k / 2 - 1, side by side.
__host__ __device__ inline int padded_to_sort(int n) {
    int padded = 1;
    while (padded < n) { padded *= 2; }
    return padded;
}
__host__ __device__ inline void sort_pair(int* x, int pair, int size, int apart) {
    const int i = 2 * pair - (pair & (apart - 1)), low = x[i], high = x[i + apart];
    const bool ascending = (i & size) != 0;
    if ((low < high) != ascending) { x[i] = high, x[i + apart] = low; }
}

// All threads: the CTA's list, or where that does not pay its end alone. K's stages hold the tiles of all rows meanwhile.
template <class C>
__device__ inline void list_tiles(typename C::Shared& s, const ForwardProblem& p, const int* starts) {
    if (!p.listed) {
        if (threadIdx.x == 0) { s.list[0] = ListedTile::NONE; }
        return;
    }
    static_assert(sizeof(s.K) >= SORTED * sizeof(int), "K's stages have no room for the tiles");
    const int tiles = TileScheduler<C>::tiles_per_head(p.T), entries = p.NH.quotient(p.heads) * tiles,
              padded = padded_to_sort(entries);
    int* const sorted = reinterpret_cast<int*>(&s.K);
    bool some_cut = false, some_long = false;
    for (int entry = threadIdx.x; entry < padded; entry += C::threads) {
        sorted[entry] = 0;
        if (entry >= entries) { continue; }
        TileScheduler<C> tile(p, 0);
        tile.head = entry / tiles * p.NH.d, tile.i = entry % tiles;
        const int first = tile.first_block(starts), needed = tile.key_blocks() - first;
        sorted[entry] = sort_key(needed, entry);
        some_cut = some_cut || is_cut(first), some_long = some_long || is_long<C>(needed);
    }
    const bool cut = __syncthreads_or(some_cut), uneven = __syncthreads_or(some_long);
    for (int size = 2; size <= padded && cut && uneven; size *= 2) {
        for (int apart = size / 2; apart > 0; apart /= 2) {
            for (int pair = threadIdx.x; pair < padded / 2; pair += C::threads) {
                sort_pair(sorted, pair, size, apart);
            }
            __syncthreads();
        }
    }
    for (int n = threadIdx.x; n < LISTED; n += C::threads) {
        s.list[n] = cut && uneven ? listed_item<C>(p, blockIdx.x, n, sorted) : ListedTile::NONE;
    }
    fence_proxy_async(); // TMA writes K's stages next
}

// The online softmax of a thread's two rows, lane/4 and lane/4 + 8 of its warp's 16. S is a wgmma accumulator (64, 2N), of
// which the thread has S[N]; element i is in row i / 2 % 2.
struct OnlineSoftmax {
    float scale;           // 1/sqrt(HS), a compile-time constant
    float threshold;       // how much a score may exceed m
    float m[2];            // the maximum in use, of scale * S
    float sum[2] = {0, 0}; // of exp(scale S - m), this thread's columns only
    float factor[2];       // exp(old m - m) of the last update: O and sum are to be multiplied by it

    __device__ OnlineSoftmax(float scale, float threshold) : scale(scale), threshold(threshold) {
        m[0] = m[1] = -INFINITY;
        factor[0] = factor[1] = 1;
    }
    // Adopts the maxima of S; O is to be multiplied by `factor`.
    template <int N> __device__ void adopt(const float (&S)[N]) {
        float four[4] = {S[0], S[1], S[2], S[3]}; // maxima, two for each row: shorter dependency chains
#pragma unroll
        for (int i = 4; i < N; i++) { four[i % 4] = fmaxf(four[i % 4], S[i]); }
#pragma unroll
        for (int h = 0; h < 2; h++) {
            factor[h] = adopt_row_maximum(m[h], sum[h], fmaxf(four[2 * h], four[2 * h + 1]), scale);
        }
    }
    // The same if some row of the warp exceeds the threshold; returns whether. Each thread tests its own columns and a vote
    // decides for the warp: no shuffles in the common case. The test compares the floats' bits as integers, because an integer
    // maximum takes three operands (VIMNMX3). That is the maximum if some score is positive, else some negative score, which
    // exceeds no m + threshold that is not negative. Rows whose m + threshold is negative are adopted untested.
    template <int N> __device__ bool update(const float (&S)[N]) {
        bool exceeds = false;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int x = __float_as_int(S[2 * h]);
#pragma unroll
            for (int i = 2 * h + 1; i < N; i += i % 2 == 0 ? 1 : 3) { x = max(x, __float_as_int(S[i])); }
            exceeds |= scale * __int_as_float(x) - m[h] > threshold || m[h] < -threshold;
        }
        exceeds = __any_sync(0xffffffffu, exceeds);
        if (exceeds) { adopt(S); }
        return exceeds;
    }
    // S <- P = exp(scale S - m); sum += P.
    template <int N> __device__ void exponentiate(float (&S)[N]) {
        float shift[2] = {-__fmul_rn(m[0], LOG2_E), -__fmul_rn(m[1], LOG2_E)};
#pragma unroll
        for (int i = 0; i < N; i++) { S[i] = exp_score(S[i], scale, shift[i / 2 % 2], sum[i / 2 % 2]); }
    }
    // The sum over the row's four threads.
    __device__ float l(int h) const { return row_sum_of_quad(sum[h]); }
};

// S = -inf above the diagonal, for S whose last 64 columns are the 64 x 64 diagonal: row r sees their columns 0 .. r.
template <int N> __device__ inline void mask_causal(float (&S)[N], int warp, int lane) {
    int row = warp * 16 + lane / 4, column = lane % 4 * 2;
#pragma unroll
    for (int i = N - 32; i < N; i++) {
        int n = (i - (N - 32)) / 4;
        if (column + 8 * n + i % 2 > row + i / 2 % 2 * 8) { S[i] = -INFINITY; }
    }
}

// S = -inf in all columns of the thread's row h but from .. from + span, counted from the thread's first column.
template <int N> __host__ __device__ inline void mask_row(float (&S)[N], int h, int from, int span) {
#if defined(__CUDA_ARCH__)
#pragma unroll
#endif
    for (int i = 2 * h; i < N; i += i % 2 == 0 ? 1 : 3) {
        if ((unsigned)(i / 4 * 8 + i % 2 - from) > (unsigned)span) { S[i] = -INFINITY; }
    }
}

// Producer thread of K and V: fills the ring of stages with the key blocks of every tile, from the last to the first.
template <class C> __device__ inline void produce_kv(typename C::Shared& s, const CUtensorMap* qkv,
                                                     const ForwardProblem& p, const int* starts) {
    PipelineState<C::stages> state;
    for (TileScheduler<C> tile(p, blockIdx.x, s.list); tile.valid(s.list); tile.advance(s.list)) {
        if (tile.resident > 0) { continue; }
        int b = tile.b(), h = tile.h();
        const int first = tile.first_block(starts);
        for (int j = tile.key_blocks() - 1; j >= first; j--, state.advance()) { // key blocks, diagonal first
            auto load = [&](floatX(&smem)[C::boxes][C::Bc * C::box_channels], int which, Mbarrier& full,
                            Mbarrier& empty) {
                empty.wait(state.parity ^ 1);
                full.expect_tx(C::boxes * C::Bc * C::box_row);
                for (int x = 0; x < C::boxes; x++) {
                    for (int r = 0; r < C::Bc; r += WARPGROUP_ROWS) {
                        cp_async_bulk_tensor(shared_address(smem[x]) + r * C::box_row, qkv, x * C::box_channels,
                                             which * p.NH.d + h, j * C::Bc + r, b, full);
                    }
                }
            };
            int n = state.stage;
            load(s.K[n], 1, s.K_full[n], s.K_empty[n]);
            load(s.V[n], 2, s.V_full[n], s.V_empty[n]);
        }
    }
}
// Producer thread of Q: loads each consumer's 64 rows of the next tile once the consumer has released those of the last, and
// tells it which they are: consumers do not run the scheduler.
template <class C> __device__ inline void produce_q(typename C::Shared& s, const CUtensorMap* qkv,
                                                    const ForwardProblem& p, const int* starts) {
    TileScheduler<C> tile(p, blockIdx.x, s.list);
    for (; tile.valid(s.list); tile.advance(s.list)) {
        const int head = tile.head, b = tile.b(), h = tile.h(), tile_blocks = tile.key_blocks();
        const int first_tile_block = tile.first_block(starts);
#pragma unroll(C::documents ? 1 : C::warpgroups) // the registers of a producer are few
        for (int w = 0; w < C::warpgroups; w++) {
            const int row = tile.row(w);
            [[maybe_unused]] int first_start, last_start;
            if constexpr (C::documents) { // before the wait: the loads take their time
                const int* start = starts + (int64_t)b * p.T + max(row, 0);
                first_start = start[0], last_start = start[min(WARPGROUP_ROWS, p.T - max(row, 0)) - 1];
            }
            s.Q_empty[w].wait((tile.n + 1) % 2);
            typename C::PostedRows& rows = s.rows[tile.n % C::row_stages][w];
            static_cast<typename C::Rows&>(rows) = {head,          b,        h, row, tile.key_blocks(w), tile_blocks,
                                                    tile.resident, tile.kept};
            if constexpr (C::documents) {
                rows.first_block = first_start / C::Bc, rows.last_start = last_start;
                rows.first_tile_block = first_tile_block;
            }
            s.Q_full[w].expect_tx(C::boxes * C::box_bytes);
            for (int x = 0; x < C::boxes; x++) {
                cp_async_bulk_tensor(shared_address(s.Q[w][x]), qkv, x * C::box_channels, h, row, b, s.Q_full[w]);
            }
        }
    }
    for (int w = 0; w < C::warpgroups; w++) {
        s.Q_empty[w].wait((tile.n + 1) % 2);
        s.rows[tile.n % C::row_stages][w].tile_blocks = 0;
        s.Q_full[w].arrive();
    }
}

// Consumer warpgroup w, which owns 64 rows of every tile.
template <class C> struct ForwardConsumer {
    static constexpr int HS = C::HS, Bc = C::Bc;
    static_assert(C::documents || two_part_rows(1) >= Bc, "other rows have two key blocks or more");
    // From a stage's descriptor to the next: the bytes of its K or V / 16
    static constexpr uint32_t stage_step = Bc * HS * 2 / 16;
    typename C::Shared& s;
    const int w;
    const int* const starts; // (B,T), with documents
    const int T;
    // The tile's rows: a copy or, with documents, where the producer has posted them
    typedef typename std::conditional<C::documents, const typename C::DocumentRows&, const typename C::Rows>::type Rows;
    const uint64_t first_K, first_V; // descriptors of the tiles of stage 0
    uint32_t tile = 0;               // how many this CTA has taken before
    PipelineState<C::stages> state;  // of the key block whose P V is issued next
    int first_released;              // the tile's first key block that this lane releases for its warp
    float O[HS / 2];                 // (64, HS), a wgmma accumulator
    uint32_t P[Bc / 16][4];          // (64, Bc) of the key block at `state`, in 16 bit: operand A of wgmma

    __device__ ForwardConsumer(typename C::Shared& s, int w, const int* starts, int T)
        : s(s), w(w), starts(starts), T(T), first_K(tile_descriptor_k_major<C::box_row>(uniform(shared_address(s.K)))),
          first_V(tile_descriptor_n_major<C::box_row>(uniform(shared_address(s.V)), Bc * C::box_row)) {}

    static __device__ int lane() { return (uint32_t)mma::mov_tid_x() % WARP_SIZE; }
    static __device__ int warp() { return (uint32_t)mma::mov_tid_x() % WARPGROUP_SIZE / WARP_SIZE; }

    // Ping-pong: this consumer issues GEMMs between pingpong_sync() and pingpong_arrive(), while the others compute softmax.
    // Every consumer calls both once for each key block of the tile, whether it needs the block or not, so that all arrive
    // equally often; the last O += P V of a tile is issued after them.
    __device__ void pingpong_sync() {
        if (C::pingpong) { bar_sync(C::BAR_PINGPONG + w, 2 * WARPGROUP_SIZE); }
    }
    __device__ void pingpong_arrive() {
        if (C::pingpong) { bar_arrive(C::BAR_PINGPONG + (w + 1) % C::warpgroups, 2 * WARPGROUP_SIZE); }
    }
    // Releases K or V of key block j, unless the next tile reuses it. No __syncwarp: only wgmma reads them, and all lanes have
    // waited for it together.
    __device__ void release(Mbarrier& empty, int j) {
        if (j >= first_released) { empty.arrive(); }
    }
    // Releases Q and, without documents, s.rows[0][w].
    __device__ void release_q() { s.Q_empty[w].arrive_warp(lane()); }
    __device__ const typename C::PostedRows& posted_rows() const { return s.rows[tile % C::row_stages][w]; }
    // The first key block of the tile's rows
    __device__ int first_block() const {
        if constexpr (C::documents) { return posted_rows().first_block; }
        return 0;
    }
    // S = -inf where a row does not see a key of block j: above the diagonal, where this block holds it, and before the row's
    // document.
    template <int N> __device__ void mask(float (&S)[N], int j, bool diagonal) {
        if constexpr (!C::documents) {
            if (diagonal) { mask_causal(S, warp(), lane()); }
        } else if (diagonal || j * Bc < posted_rows().last_start) {
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const int t = posted_rows().row + warp() * 16 + 8 * h + lane() / 4;
                const int start = starts[(int64_t)posted_rows().b * T + min(t, T - 1)];
                mask_row(S, h, start - j * Bc - lane() % 4 * 2, t - start);
            }
        }
    }

    // Issues S (64, 2N) = Q K^T, with the first 2N keys of the key block at `block`.
    template <int N> __device__ void issue_scores(float (&S)[N], PipelineState<C::stages> block) {
        s.K_full[block.stage].wait(block.parity);
        uint64_t a = tile_descriptor_k_major<C::box_row>(shared_address(s.Q[w]));
        const uint64_t b = first_K + (uint32_t)block.stage * stage_step;
        fence_operand(S);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < HS / 16; i++) { // 16 channels are 32 bytes
            constexpr int n = C::box_channels / 16;
            wgmma_mma_async(S, a + i / n * (C::box_bytes / 16) + i % n * 2,
                            b + i / n * (Bc * C::box_row / 16) + i % n * 2, i > 0);
        }
        wgmma_commit_group();
        fence_operand(S);
    }
    // Issues O += P V for each of the given P, with the first `keys` keys of the key block at `state`.
    template <int keys, class... Operands> __device__ void issue_output(const Operands&... P) {
        s.V_full[state.stage].wait(state.parity);
        const uint64_t b = first_V + (uint32_t)state.stage * stage_step;
        fence_operand(O);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < keys / 16; i++) { (wgmma_mma_async(O, P[i], b + i * C::box_row), ...); }
        wgmma_commit_group();
        fence_operand(O);
    }
    // Waits for O += P V, releases V of key block j and advances to the next key block.
    __device__ void finish_output(int j) {
        wgmma_wait_group<0>();
        fence_operand(O);
        release(s.V_empty[state.stage], j);
        state.advance();
    }
    // P = S in 16 bit: the accumulator of S = Q K^T is, register by register, operand A of O += P V.
    template <int N> __device__ void round_to_p(const float (&S)[N]) {
#pragma unroll
        for (int i = 0; i < N / 2; i++) { P[i / 4][i % 4] = mma::cvt_rn_x2(S[2 * i], S[2 * i + 1]); }
    }

    // O *= exp(old m - m)
    __device__ void rescale(const OnlineSoftmax& softmax) {
#pragma unroll
        for (int i = 0; i < HS / 2; i++) { O[i] *= softmax.factor[i / 2 % 2]; }
    }

    // S <- P in fp32 of the first `keys` keys of key block j, with maxima that include this block.
    template <int keys> __device__ void compute_p(float (&S)[keys / 2], OnlineSoftmax& softmax, int j, bool diagonal) {
        pingpong_sync();
        issue_scores(S, state);
        pingpong_arrive();
        wgmma_wait_group<0>();
        fence_operand(S);
        release(s.K_empty[state.stage], j);
        mask(S, j, diagonal);
        softmax.adopt(S);
        softmax.exponentiate(S);
    }
    // P of the diagonal block j.
    template <int keys> __device__ void first_key_block(OnlineSoftmax& softmax, int j) {
        float S[keys / 2];
        compute_p<keys>(S, softmax, j, true);
        round_to_p(S);
        if constexpr (C::documents) { // S is dead before the branch on whether there is a next key block
#pragma unroll
            for (int i = 0; i < keys / 4; i++) { asm volatile("" : "+r"(P[i / 4][i % 4])); }
            if (j == first_block()) { release_q(); }
        }
    }
    // O += P V + (P in fp32 - P in 16 bit) V of key block j, of a head's first rows.
    template <int keys> __device__ void key_block_in_two_parts(OnlineSoftmax& softmax, int j, bool diagonal) {
        float S[keys / 2];
        compute_p<keys>(S, softmax, j, diagonal);
        if (j == first_block()) { release_q(); }
        uint32_t residual[keys / 16][4];
#pragma unroll
        for (int i = 0; i < keys / 4; i++) {
            uint32_t& p = P[i / 4][i % 4] = mma::cvt_rn_x2(S[2 * i], S[2 * i + 1]);
            float2 rounded = mma::float2_of(p);
            residual[i / 4][i % 4] = mma::cvt_rn_x2(S[2 * i] - rounded.x, S[2 * i + 1] - rounded.y);
        }
        rescale(softmax);
        issue_output<keys>(P, residual);
        finish_output(j);
    }
    // O += P V of the first `keys` keys of the key block at `state`, and P of the next one, j:
    // S = Q K_next^T;  O += P V;  m, P, sum by softmax of S;  O *= exp(old m - m)
    template <int keys> __device__ void key_block(OnlineSoftmax& softmax, int j) {
        float S[Bc / 2];
        pingpong_sync();
        issue_scores(S, state.next());
        issue_output<keys>(P);
        pingpong_arrive();
        wgmma_wait_group<1>(); // S is complete; O += P V is in flight
        fence_operand(S);
        release(s.K_empty[state.next().stage], j);
        if (j == first_block()) { release_q(); }
        mask(S, j, false);
        bool rescale_O = softmax.update(S);
        softmax.exponentiate(S);
        finish_output(j + 1);
        round_to_p(S);
        if (rescale_O) { rescale(softmax); }
    }
    // Releases key block j, which only other consumers of the tile need. It waits for the load first: then the previous phase
    // of `empty` has completed, and the arrival counts for the current one.
    __device__ void skip_key_block(int j) {
        pingpong_sync();
        pingpong_arrive();
        s.K_full[state.stage].wait(state.parity);
        release(s.K_empty[state.stage], j);
        s.V_full[state.stage].wait(state.parity);
        release(s.V_empty[state.stage], j);
        state.advance();
    }

    // Stores l and m; factor = 1 / l. Waits until s.O[w] is free.
    __device__ void store_statistics(float (&factor)[2], const OnlineSoftmax& softmax, float* l, float* m,
                                     const typename C::Rows& rows) {
        const int warp = this->warp(), lane = this->lane();
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int t = rows.row + warp * 16 + 8 * h + lane / 4;
            float sum = softmax.l(h);
            factor[h] = rcp_approx_ftz(sum);
            if (lane % 4 == 0 && t < T) {
                l[(int64_t)rows.head * T + t] = sum;
                m[(int64_t)rows.head * T + t] = softmax.m[h];
            }
        }
        if (warp == 0 && lane == 0) { cp_async_bulk_wait_group_read<0>(); } // the last tile's store has read s.O[w]
        bar_sync(C::BAR_OUTPUT + w, WARPGROUP_SIZE);
    }
    // out = factor O for the consumer's rows, through s.O[w] and a TMA store.
    __device__ void store(const CUtensorMap* out, const float (&factor)[2], const typename C::Rows& rows) {
        const int warp = this->warp(), lane = this->lane();
        uint32_t lane_row = shared_address(s.O[w]) + (warp * 16 + lane % 16) * C::box_row;
#pragma unroll
        for (int n = 0; n < HS / 8; n += 2) { // chunks of 8 channels
            float x[8];
#pragma unroll
            for (int i = 0; i < 8; i++) { x[i] = factor[i / 2 % 2] * O[4 * n + i]; }
            // TMA's swizzle: 16-byte chunk c of row r is at c ^ (r % 8) or, in rows of 64 bytes, at c ^ (r / 2 % 4)
            constexpr int chunks = C::box_channels / 8;
            int chunk = (n % chunks + lane / 16) ^ (chunks == 8 ? lane % 8 : lane / 2 % 4);
            mma::stmatrix_x4(lane_row + n / chunks * C::box_bytes + chunk * 16, mma::cvt_rn_x2(x[0], x[1]),
                             mma::cvt_rn_x2(x[2], x[3]), mma::cvt_rn_x2(x[4], x[5]), mma::cvt_rn_x2(x[6], x[7]));
        }
        fence_proxy_async();
        bar_sync(C::BAR_OUTPUT + w, WARPGROUP_SIZE);
        if (warp == 0 && lane == 0) {
            for (int x = 0; x < C::boxes; x++) {
                cp_async_bulk_tensor(out, x * C::box_channels, rows.h, rows.row, rows.b, shared_address(s.O[w][x]));
            }
            cp_async_bulk_commit_group();
        }
    }

    // The loop over the CTA's tiles. attention/PROTOCOL.md has the timeline of one tile.
    __device__ void run(const CUtensorMap* out, float* l, float* m) {
        if (w == C::warpgroups - 1) { pingpong_arrive(); } // consumer 0 begins
        for (;; tile++) {
            s.Q_full[w].wait(tile % 2);
            Rows rows = posted_rows();
            if (rows.tile_blocks == 0) { break; }
            const int blocks = rows.key_blocks, row = rows.row;
            first_released = lane() == 0 ? rows.kept : INT_MAX;
            state.go_back(rows.resident);
            for (int j = rows.tile_blocks - 1; j >= blocks; j--) { skip_key_block(j); }
            if (blocks == 0) { // no rows
                release_q();
                continue;
            }
            int position = row; // in the document
            bool in_two_parts = row < two_part_rows(T);
            if constexpr (C::documents) {
                position = max(row - rows.last_start, 0);
                in_two_parts = in_two_parts && rows.last_start == 0;
            }
            OnlineSoftmax softmax(C::scale, position < newest_maximum_rows(T) ? 0 : RESCALE_THRESHOLD);
#pragma unroll
            for (int i = 0; i < HS / 2; i++) { O[i] = 0; }
            // Whether the diagonal is in the first 64 of the diagonal block's 128 keys; then there are two blocks or more.
            bool half = blocks * Bc > row + WARPGROUP_ROWS;
            if (C::documents && blocks - 1 == first_block()) { half = false; } // one key block: P is of all its keys
            float factor[2];
            if (in_two_parts) {
                int j = blocks - 1;
                if (Bc > WARPGROUP_ROWS && half) { key_block_in_two_parts<WARPGROUP_ROWS>(softmax, j--, true); }
#pragma unroll 1
                for (; j >= first_block(); j--) { key_block_in_two_parts<Bc>(softmax, j, (j + 1) * Bc > row); }
                store_statistics(factor, softmax, l, m, rows);
            } else {
                if (Bc > WARPGROUP_ROWS && half) {
                    first_key_block<WARPGROUP_ROWS>(softmax, blocks - 1);
                    key_block<WARPGROUP_ROWS>(softmax, blocks - 2);
                } else {
                    first_key_block<Bc>(softmax, blocks - 1);
                    if (!C::documents || blocks - 2 >= first_block()) { key_block<Bc>(softmax, blocks - 2); }
                }
#pragma unroll 1
                for (int j = blocks - 3; j >= first_block(); j--) { key_block<Bc>(softmax, j); }
                issue_output<Bc>(P);
                store_statistics(factor, softmax, l, m, rows); // while O += P V of the last key block runs
                finish_output(first_block());
            }
            if constexpr (C::documents) {
                for (int j = first_block() - 1; j >= rows.first_tile_block; j--) { skip_key_block(j); }
            }
            store(out, factor, rows);
        }
        // Shared memory stays the CTA's until TMA has read the last tile from it.
        if (threadIdx.x % WARPGROUP_SIZE == 0) { cp_async_bulk_wait_group_read<0>(); }
    }
};

// All that a CTA does
template <class C> __device__ inline void forward_cta(void* shared, const CUtensorMap* out, float* l, float* m,
                                                      const CUtensorMap* qkv, const ForwardProblem& p,
                                                      const int* starts) {
    typename C::Shared& s = *reinterpret_cast<typename C::Shared*>(shared);
    if (threadIdx.x == 0) {
        for (int w = 0; w < C::warpgroups; w++) { // of 4 warps
            s.Q_full[w].init(1), s.Q_empty[w].init(4 * WARP_ARRIVALS);
        }
        for (int n = 0; n < C::stages; n++) {
            s.K_full[n].init(1), s.K_empty[n].init(4 * C::warpgroups);
            s.V_full[n].init(1), s.V_empty[n].init(4 * C::warpgroups);
        }
        fence_mbarrier_init();
    }
    if constexpr (C::documents) { list_tiles<C>(s, p, starts); }
    __syncthreads();
    int warpgroup = uniform(threadIdx.x / WARPGROUP_SIZE);
    if (warpgroup == 0) {
        setmaxnreg_dec<C::producer_registers>();
        if (threadIdx.x == 0) { produce_kv<C>(s, qkv, p, starts); }
        if (threadIdx.x == WARP_SIZE) { produce_q<C>(s, qkv, p, starts); }
    } else {
        setmaxnreg_inc<C::consumer_registers>();
        ForwardConsumer<C>(s, warpgroup - 1, starts, p.T).run(out, l, m);
    }
}

// out (B,T,NH,HS) and qkv (B,T,3,NH,HS) as TMA descriptors; l, m (B,NH,T); starts (B,T), with documents. One persistent CTA per
// SM.
template <class C> __global__ void __launch_bounds__(C::threads, 1)
    attention_forward_kernel(const __grid_constant__ CUtensorMap out, float* l, float* m,
                             const __grid_constant__ CUtensorMap qkv, const __grid_constant__ ForwardProblem p,
                             const int* starts) {
#if defined(HOPPER_DEVICE_CODE)
    extern __shared__ __align__(1024) char shared[];
    if constexpr (C::documents) {
        if (!several_documents(starts, p.heads / p.NH.d, p.T)) {
            return forward_cta<typename C::WithoutDocuments>(shared, &out, l, m, &qkv, p, nullptr);
        }
    }
    forward_cta<C>(shared, &out, l, m, &qkv, p, starts);
#endif
}

// The heads of a section of the tile order: as many as have 16 MB of K and V, which then stay in L2 while their tiles run.
inline int heads_per_section(int heads, int T, int HS) {
    const int64_t sections = CEIL_DIV((int64_t)heads * T * HS * 4, (int64_t)16 << 20);
    return CEIL_DIV(heads, (int)min((int64_t)heads, sections));
}

// The number of heads whose tiles are paired: whole rounds of the CTAs, such that at least 5/8 of a round of items, or 13/8
// above 8 tiles a head, remain to balance the load. Above 16 tiles too much would remain, and few of the key blocks fit the
// ring.
inline int heads_in_pairs(int heads, int tiles, int ctas) {
    if (tiles > 16) { return 0; }
    const int64_t head_pairs = CEIL_DIV(tiles, 2), left = tiles <= 8 ? 5 : 13;
    const int64_t rounds = (8 * head_pairs * heads - left * ctas) / (8 * ctas);
    return rounds > 0 ? (int)(rounds * ctas / head_pairs) : 0;
}

template <class C> ForwardProblem forward_problem(int B, int T, int NH, int num_sms) {
    const int heads = B * NH, tiles = TileScheduler<C>::tiles_per_head(T), ctas = min(heads * tiles, num_sms);
    const int paired_heads = heads_in_pairs(heads, tiles, ctas), single_heads = heads - paired_heads;
    const int section_heads = paired_heads > 0 ? single_heads : heads_per_section(heads, T, C::HS);
    const int sections = CEIL_DIV(single_heads, section_heads),
              last_heads = single_heads - (sections - 1) * section_heads;
    const int head_pairs = CEIL_DIV(tiles, 2), pairs = paired_heads * head_pairs, items = pairs + single_heads * tiles;
    const int missing_rows = tiles * C::Br - CEIL_DIV(T, WARPGROUP_ROWS) * WARPGROUP_ROWS;
    // A list has an end, and so has the room for what is sorted. Of short rows no tile is long enough, and neighbours in a list
    // share less of L2.
    const int64_t entries = (int64_t)B * tiles, rounds = CEIL_DIV(entries * NH, (int64_t)ctas);
    const bool listed = C::documents && T >= 2048 && rounds < LISTED && entries <= SORTED;
    return {T,        heads,      ctas,          missing_rows, paired_heads,          pairs, items,
            sections, head_pairs, section_heads, last_heads,   section_heads * tiles, NH,    listed};
}

template <class C> void launch_forward_documents(floatX* out, float* l, float* m, const floatX* qkv, const int* starts,
                                                 int B, int T, int NH, int HS, cudaStream_t stream) {
    int num_sms;
    CUtensorMap qkv_map, out_map;
    if (hopper_num_sms(&num_sms) != STATUS_OK) { return; }
    if (tensor_map_of_heads(&qkv_map, qkv, B, T, 3 * NH, HS, C::box_channels) != STATUS_OK) { return; }
    if (tensor_map_of_heads(&out_map, out, B, T, NH, HS, C::box_channels) != STATUS_OK) { return; }
    const ForwardProblem p = forward_problem<C>(B, T, NH, num_sms);
    attention_launch(attention_forward_kernel<C>, p.ctas, C::threads, C::shared_bytes, stream, out_map, l, m, qkv_map,
                     p, starts);
}
template <class C> void launch_forward(floatX* out, float* l, float* m, const floatX* qkv, int B, int T, int NH, int HS,
                                       cudaStream_t stream) {
    launch_forward_documents<C>(out, l, m, qkv, nullptr, B, T, NH, HS, stream);
}

// A row of the table of configurations; names are rows of a tile x keys of a block.
template <class C> constexpr AttentionForwardConfig forward_config(const char* name) {
    static_assert(C::WithDocuments::shared_bytes <= HOPPER_SHARED_BYTES,
                  "a Hopper has too little shared memory for it");
    return {name,
            C::HS,
            C::WithDocuments::shared_bytes,
            launch_forward<C>,
            nullptr,
            nullptr,
            launch_forward_documents<typename C::WithDocuments>};
}
static constexpr AttentionForwardConfig forward_configs[] = {
    forward_config<ForwardTiles<32, 4, 64, 9, false>>("256x64"),
    forward_config<ForwardTiles<64, 4, 64, 9, false>>("256x64"),
    forward_config<ForwardTiles<64, 3, 128, 5, true>>("192x128"),
    forward_config<ForwardTiles<96, 2, 128, 3, false>>("128x128"),
    forward_config<ForwardTiles<96, 3, 64, 4, false>>("192x64"),
    forward_config<ForwardTiles<128, 3, 64, 4, false>>("192x64"),
};

} // namespace wgmma

#if __INCLUDE_LEVEL__ == 0 // the program, not an include
int main(int argc, char** argv) { return variant_main(argc, argv, wgmma::forward_configs, 90); }
#endif
