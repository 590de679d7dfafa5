// What wgmma_matmul.cuh computes with integers, run through without a GPU: every element of D is computed once from all of K,
// by one warpgroup; operands and outputs lie in shared memory where TMA, wgmma and stmatrix expect them; and the ring of
// stages, its barriers simulated arrival by arrival in random orders, neither stops nor shows a consumer what is not its own.
#include "dev/cuda/matmul/wgmma_matmul.cuh"
#include "dev/test/fixtures/unit.h"

#include <random>
#include <vector>

using namespace wgmma;

// ----------------------------------------------------------------------------
// Tile order

// D in blocks of 64 rows by a tile's columns: how often each is computed
template <class T> static bool every_element_once(GemmSize s, int num_sms) {
    const int clusters = num_sms / T::cluster;
    const TileOrder o = tile_order(s, T::cluster_rows, T::BN, clusters, T::narrows);
    std::vector<int> D((size_t)CEIL_DIV(s.M, 64) * CEIL_DIV(s.N, T::BN));
    if (o.k_blocks != CEIL_DIV(s.K, 64)) { return false; }
    for (int cluster = 0; cluster < clusters; cluster++) {
        for (int index = cluster; index < o.tiles; index += clusters) {
            const TileIndex tile = tile_at(o, index);
            if (tile.m < 0 || tile.n < 0) { return false; }
            for (int who = 0; who < T::cluster * T::row_blocks; who++) { // CTA, block of rows
                const int rank = who / T::row_blocks, block = who % T::row_blocks * 64;
                const int row = T::row(tile, rank) + block, column = T::column(tile);
                if (row >= s.M || column >= s.N) { continue; } // TMA does not store it
                D[(size_t)row / 64 * CEIL_DIV(s.N, T::BN) + column / T::BN]++;
            }
        }
    }
    for (int count : D) {
        if (count != 1) { return false; }
    }
    return true;
}

template <class T> static void test_order() {
    for (int num_sms : {4, 7, 78, 114, 132}) {
        for (int M : {1, 63, 64, 65, 128, 200, 256, 257, 1000, 5000}) {
            for (int N : {8, 64, 120, 256, 264, 768, 2304}) {
                for (int K : {1, 8, 64, 65, 200, 768}) {
                    if (!CHECK(every_element_once<T>({M, N, K}, num_sms))) { printf("    %d %d %d\n", M, N, K); }
                }
            }
        }
        CHECK(every_element_once<T>({1024, 50304, 768}, num_sms)); // in groups of rows
        CHECK(every_element_once<T>({5000, 4096, 4096}, num_sms));
    }
}

// The tiles that N truncates come last where they are a short round, and only there.
static void test_last_column() {
    const auto order = [](int M, int N) { return tile_order({M, N, 768}, 256, 192, 66, true); };
    CHECK(order(8192, 1280).first_apart() == 32 * 6 && order(8192, 1280).tiles == 32 * 7);
    CHECK(tile_at(order(8192, 1280), 32 * 6 + 5).m == 5 && tile_at(order(8192, 1280), 32 * 6 + 5).n == 6);
    CHECK(order(8192, 1152).first_apart() == 32 * 6);   // no tile is truncated
    CHECK(order(65536, 1280).first_apart() == 256 * 7); // more than a round
    CHECK(order(8192, 64).first_apart() == 32);         // nothing else
    CHECK(tile_order({8192, 1280, 768}, 256, 192, 66, false).first_apart() == 32 * 7);
}

// ----------------------------------------------------------------------------
// Shared memory

// A byte of a tile that is aligned to 1024 bytes, as TMA and wgmma see it with the 128-byte swizzle: bits 4-6 ^= bits 7-9.
static int hardware_swizzle(int offset) { return offset ^ (offset >> 7 & 7) << 4; }

// wgmma's element (row, k) of an operand of 16 along K, by its descriptor (PTX ISA, "Strides"): 8 rows of 128 bytes, then the
// next 8 are 1024 bytes further.
static int wgmma_offset(bool mn_major, int start, int row, int k, int leading_bytes) {
    const int offset = mn_major ? row / 64 * leading_bytes + k / 8 * 1024 + k % 8 * 128 + row % 64 * 2
                                : row / 8 * 1024 + row % 8 * 128 + k * 2;
    return hardware_swizzle(start + offset);
}

// TMA writes each element of the tile once, and wgmma finds it there. wrong_k: what to add to the offset of each 16 of K.
template <class Tile> static bool operand_is_found(int wgmma_rows, int wrong_k = 0) {
    std::vector<int> element(Tile::bytes / 2, -1); // row * 64 + k
    for (int part = 0; part < Tile::parts; part++) {
        for (int i = 0; i < Tile::boxes; i++) {
            for (int y = 0; y < Tile::box_rows; y++) {
                for (int x = 0; x < 64; x++) {
                    const int row = Tile::box_row(part, i) + (Tile::mn_major ? x : y);
                    const int k = Tile::box_k(part) + (Tile::mn_major ? y : x);
                    const int at = Tile::box_offset(part, i) + hardware_swizzle(y * 128 + x * 2);
                    if (element.at(at / 2) != -1 || at != Tile::box_offset(part, i) + swizzled_offset(y, x * 2)) {
                        return false;
                    }
                    element[at / 2] = row * 64 + k;
                }
            }
        }
    }
    for (int first = 0; first < Tile::rows; first += wgmma_rows) {
        for (int i = 0; i < K_BLOCK / 16; i++) {
            const int start = Tile::row_offset(first) + Tile::k_offset(i) + i * wrong_k;
            for (int row = 0; row < wgmma_rows; row++) {
                for (int k = 0; k < 16; k++) {
                    const int at = wgmma_offset(Tile::mn_major, start, row, k, Tile::box_bytes);
                    if (at / 2 >= (int)element.size()) { return false; }
                    if (element[at / 2] != (first + row) * 64 + i * 16 + k) { return false; }
                }
            }
        }
    }
    return true;
}

// The accumulators of a warpgroup are each element of (64, N) once; each chunk's bytes are written once, each where the
// swizzle has its element: by stmatrix in 16 bit, and by pairs of floats.
static void test_fragments() {
    constexpr int N = 256, columns = SWIZZLE_ROW / 2;
    std::vector<int> elements(64 * N), bytes(64 * N * 2);
    bool placed = true;
    for (int t = 0; t < 128; t++) {
        const int warp = t / 32 * 32;
        for (int i = 0; i < N / 2; i++) {
            const int row = fragment_row(t, i), column = fragment_column(t, i);
            elements[row * N + column]++;
            if (i % 2 != 0) { continue; }
            // Register q of the stmatrix of octets 2 j and 2 j + 1 of a chunk is matrix q, whose row t % 32 / 4 is at the
            // address of lane 8 q + t % 32 / 4; the thread's pair is t % 4 of it.
            const int chunk = column / columns, j = column % columns / 16, q = i % 8 / 2, lane = 8 * q + t % 32 / 4;
            const int at = matrix_offset(matrix_base(warp + lane), 2 * j) + t % 4 * 4;
            placed &= at == hardware_swizzle(row * SWIZZLE_ROW + column % columns * 2);
            for (int b = 0; b < 4; b++) { bytes[chunk * 64 * SWIZZLE_ROW + at + b]++; }
        }
    }
    const auto once = [](const std::vector<int>& counts) {
        for (int n : counts) {
            if (n != 1) { return false; }
        }
        return true;
    };
    CHECK(placed);
    CHECK(once(elements) && once(bytes));
}

// sum_columns, of which a shuffle is a look at the other lane's registers: each lane ends with the sums of its kept columns.
static bool columns_are_reduced(int swapped) {
    float v[32][16], next[32][16];
    for (int lane = 0; lane < 32; lane++) {
        for (int n = 0; n < 16; n++) {
            v[lane][n] = (float)((fragment_column(lane, n / 2 * 4) + n % 2) * 100 + lane / 4);
        }
    }
    for (int half = 8; half >= 2; half /= 2) {
        for (int lane = 0; lane < 32; lane++) {
            const int other = lane ^ (2 * half);
            for (int i = 0; i < half; i++) {
                const int keep = kept_index(((lane & (2 * half)) != 0) != (swapped == half), half, i);
                next[lane][i] = v[lane][keep] + v[other][keep];
            }
        }
        memcpy(v, next, sizeof(v));
    }
    for (int lane = 0; lane < 32; lane++) {
        for (int e = 0; e < 2; e++) {
            if (v[lane][e] != 8 * 100 * kept_column(lane, e) + 28) { return false; }
        }
    }
    return true;
}

// ----------------------------------------------------------------------------
// The ring of stages

enum Fault {
    NO_FAULT,
    RELEASES_OWN_CTA,    // a consumer does not tell the other CTA
    RELEASES_BEFORE,     // .. or tells before it has read
    ONE_RELEASE_TOO_FEW, // the barrier is content without one warp
    PRODUCER_PARITY,     // the producer waits as consumers do
    CONSUMER_STAYS,      // a consumer does not skip the other's k-blocks
    BYTES_OF_ONE_CTA,    // full expects the bytes of this CTA's loads only
    NO_TURNS,            // .. or waits for its own while the other has passes over the ring to go
};

// An mbarrier (PTX ISA 9.7.13.15): a phase ends when no arrivals and no bytes are pending.
struct SimulatedBarrier {
    int expected = 0, pending = 0, bytes = 0, phases = 0;
    void init(int arrivals) { expected = pending = arrivals; }
    void end_phase() {
        if (pending == 0 && bytes == 0) { phases++, pending = expected; }
    }
    void arrive() { pending--, end_phase(); }
    void complete(int n) { bytes -= n, end_phase(); }
    void expect_tx(int n) { bytes += n, arrive(); }
    bool ended(uint32_t parity) const { return phases % 2 != (int)parity; }
};

template <class C> struct RingSimulation {
    typedef typename C::T T;
    static constexpr int parts = 1 + T::cluster; // of a stage: A, and those of B
    struct Load {
        int cta, stage, part, tag;
    };
    struct Step { // a k-block of an actor
        PipelineState<C::stages> state;
        int tag, k, k_blocks;
    };
    struct Cta {
        SimulatedBarrier full[C::stages], empty[C::stages];
        int content[C::stages][parts] = {};
        std::vector<Step> program[3]; // producer, consumers
        size_t next[3] = {};          // step
        int phase[3] = {};            // 0: waits for its barrier; 1: has issued the k-block, releases the one before
        bool may_begin[2] = {true, false}; // BAR_ORDER
    } cta[T::cluster];
    std::vector<Load> loads; // under way
    Fault fault;
    bool good = true;

    RingSimulation(const TileOrder& o, int cluster, int clusters, Fault fault) : fault(fault) {
        for (Cta& c : cta) {
            for (int n = 0; n < C::stages; n++) {
                c.full[n].init(1), c.empty[n].init(T::releases - (fault == ONE_RELEASE_TOO_FEW));
            }
            for (int actor = 0; actor < 3; actor++) {
                write_program(c.program[actor], actor - 1, o, cluster, clusters);
            }
        }
    }
    // The loops of produce() and Consumer::run()
    void write_program(std::vector<Step>& program, int w, const TileOrder& o, int cluster, int clusters) {
        PipelineState<C::stages> state;
        const int skipped = w < 0 || fault == CONSUMER_STAYS ? 0 : o.k_blocks;
        if (w == 1) { state.advance(skipped); }
        for (int index = cluster + (w == 1 ? clusters : 0); index < o.tiles; index += (w < 0 ? 1 : 2) * clusters) {
            for (int k = 0; k < o.k_blocks; k++, state.advance()) {
                program.push_back({state, 1 + (index * 1000 + k), k, o.k_blocks});
            }
            state.advance(skipped);
        }
    }
    bool produce(int rank) { // whether the actor could do something
        Cta& c = cta[rank];
        const Step& step = c.program[0][c.next[0]];
        const int stage = step.state.stage;
        if (!c.empty[stage].ended(step.state.parity ^ (fault != PRODUCER_PARITY))) { return false; }
        c.full[stage].expect_tx(fault == BYTES_OF_ONE_CTA ? 2 : parts);
        loads.push_back({rank, stage, 0, tag_of_a(step, rank)});
        for (int to = 0; to < T::cluster; to++) { loads.push_back({to, stage, 1 + rank, tag_of_b(step)}); }
        c.next[0]++;
        return true;
    }
    void deliver(size_t n) {
        const Load load = loads[n];
        loads.erase(loads.begin() + n);
        cta[load.cta].content[load.stage][load.part] = load.tag;
        cta[load.cta].full[load.stage].complete(1);
    }
    // What the stage holds of a k-block: of the rows, or the columns, of the CTA
    static int tag_of_a(const Step& step, int rank) { return step.tag * 16 + rank; }
    static int tag_of_b(const Step& step) { return step.tag * 16 + 8; }
    void read(int rank, const Step& step) {
        for (int part = 0; part < parts; part++) {
            const int tag = part == 0 ? tag_of_a(step, rank) : tag_of_b(step);
            good &= cta[rank].content[step.state.stage][part] == tag;
        }
    }
    void release(int rank, const Step& step) {
        read(rank, step); // still
        for (int to = 0; to < T::cluster; to++) {
            if (fault == RELEASES_OWN_CTA && to != rank) { continue; }
            for (int warp = 0; warp < 4; warp++) { cta[to].empty[step.state.stage].arrive(); }
        }
    }
    bool consume(int rank, int w) {
        Cta& c = cta[rank];
        const size_t n = c.next[1 + w];
        const Step& step = c.program[1 + w][n];
        if (c.phase[1 + w] == 0) {
            const bool ordered = fault != NO_TURNS;
            if (ordered && step.k == 0 && !c.may_begin[w]) { return false; }
            if (!c.full[step.state.stage].ended(step.state.parity)) { return false; }
            read(rank, step);
            if (ordered && step.k == 0) { c.may_begin[w] = false; }
            if (step.k == step.k_blocks - 1) { c.may_begin[1 - w] = true; }
            if (fault == RELEASES_BEFORE) { release(rank, step); }
            c.phase[1 + w] = 1;
            return true;
        }
        if (fault == RELEASES_BEFORE) { // wgmma reads on
            read(rank, step);
        } else {
            if (step.k > 0) { release(rank, c.program[1 + w][n - 1]); }
            if (step.k == step.k_blocks - 1) { release(rank, step); }
        }
        c.phase[1 + w] = 0, c.next[1 + w]++;
        return true;
    }
    // Takes random actors and loads until nothing is left to do, or nobody can do anything.
    bool run(unsigned seed) {
        std::mt19937 random(seed);
        for (;;) {
            bool done = loads.empty(), moved = false;
            for (Cta& c : cta) {
                for (int actor = 0; actor < 3; actor++) { done &= c.next[actor] == c.program[actor].size(); }
            }
            if (done || !good) { return good; }
            const int choices = T::cluster * 3 + 2, first = random() % choices;
            for (int i = 0; i < choices && !moved; i++) {
                const int choice = (first + i) % choices, rank = choice / 3, actor = choice % 3;
                if (choice >= T::cluster * 3) {
                    if (!loads.empty()) { deliver(random() % loads.size()), moved = true; }
                } else if (cta[rank].next[actor] < cta[rank].program[actor].size()) {
                    moved = actor == 0 ? produce(rank) : consume(rank, actor - 1);
                }
            }
            if (!moved) { return false; } // a deadlock
        }
    }
};

template <class C> static bool ring_works(GemmSize size, int clusters, Fault fault) {
    const TileOrder o = tile_order(size, C::T::cluster_rows, C::T::BN, clusters, C::T::narrows);
    for (int cluster = 0; cluster < clusters && cluster < o.tiles; cluster++) {
        for (unsigned seed = 0; seed < 8; seed++) {
            if (!RingSimulation<C>(o, cluster, clusters, fault).run(seed)) { return false; }
        }
    }
    return true;
}

template <class C> static void test_ring() {
    const int rows = C::T::cluster_rows, columns = C::T::BN;
    const GemmSize long_tiles = {5 * rows, 2 * columns, 800};
    CHECK(ring_works<C>(long_tiles, 3, NO_FAULT));
    for (int k_blocks : {1, 2, 3, 5, 12}) { CHECK(ring_works<C>({7 * rows, columns, k_blocks * 64}, 2, NO_FAULT)); }
    for (int fault = NO_FAULT + 1; fault <= NO_TURNS; fault++) { CHECK(!ring_works<C>(long_tiles, 3, (Fault)fault)); }
}

// A configuration: it fits the shared memory, has a ring that is worth its name, and its operands are found.
template <class C> static void test_configuration() {
    CHECK(C::shared_bytes <= 227 * 1024 && C::stages >= 3);
    CHECK(sizeof(typename C::Shared) == C::shared_bytes && offsetof(typename C::Shared, chunks) % 1024 == 0);
    CHECK(operand_is_found<typename C::TileA>(64) && operand_is_found<typename C::TileB>(C::T::BN));
    CHECK(!operand_is_found<typename C::TileA>(64, 16) && !operand_is_found<typename C::TileB>(C::T::BN, 128));
    test_ring<C>();
}

template <class T> static void test_tile() {
    test_order<T>();
    test_configuration<MatmulTiles<T, false, Elementwise<BiasGelu>>>();
    test_configuration<MatmulTiles<T, false, Elementwise<BiasGeluDerivative>>>();
    test_configuration<MatmulTiles<T, true, Elementwise<TimesDerivative>>>();
    test_configuration<MatmulTiles<T, true, Elementwise<GeluBackward<true>>>>();
    test_configuration<MatmulTiles<T, true, Elementwise<GeluBackward<false>>>>();
    test_configuration<MatmulTiles<T, false, Elementwise<AddBiasAndSkip>>>();
    test_configuration<MatmulTiles<T, false, ExponentialSums>>();
}

int main(void) {
    test_tile<PingPong128x128x2>();
    test_tile<PingPong128x192x2>();
    test_last_column();
    test_fragments();
    CHECK(columns_are_reduced(0));
    for (int half : {8, 4, 2}) { CHECK(!columns_are_reduced(half)); }
    return unit_end();
}
