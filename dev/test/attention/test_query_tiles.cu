// The order in which attention_forward_wgmma.cu takes query tiles, and which key blocks stay in the ring of stages from one
// tile to the next, run through without a GPU: ForwardProblem, TileScheduler, PipelineState. And the ids of its barriers.
#include "dev/cuda/attention/documents.h"
#include "dev/cuda/attention_forward_wgmma.cu"
#include "dev/test/fixtures/unit.h"

#include <vector>

// The ring of a CTA: which key block of which head is in each stage, and how many consumers have released it.
struct Ring {
    struct Block {
        int head = -1, j = -1;
        bool operator==(const Block& other) const { return head == other.head && j == other.j; }
    };
    std::vector<Block> block;
    std::vector<int> released, passes; // passes: how often the stage was loaded
};

// What the producer and the consumers of a CTA do, one key block after the other: loads, reads and releases.
struct Read {
    Ring::Block block;
    int stage;
    uint32_t parity;
    bool release;
};

// Whether the CTA's consumers, each at its own pace, find every key block in its stage and the producer never waits for ever.
// With documents, also that a tile has the key blocks of all its rows, and the first of them is needed.
template <class C> static bool ring_holds(const wgmma::ForwardProblem& p, int cta, const int* starts) {
    std::vector<Ring::Block> loads;
    std::vector<Read> reads; // the same for all consumers: who skips a block releases it, too
    hopper::PipelineState<C::stages> state;
    for (wgmma::TileScheduler<C> tile(p, cta); tile.valid(); tile.advance()) {
        const int first = tile.first_block(starts);
        if (tile.kept > C::stages || (C::documents && tile.kept + tile.resident != 0)) { return false; }
        int first_key = p.T; // of the tile's rows
        for (int t = max(tile.i * C::Br - p.missing_rows, 0); C::documents && t < min((tile.i + 1) * C::Br, p.T); t++) {
            first_key = min(first_key, starts[tile.b() * p.T + t]);
        }
        if (first != (C::documents ? first_key / C::Bc : 0)) { return false; }
        if (tile.resident == 0) {
            for (int j = tile.key_blocks() - 1; j >= first; j--) { loads.push_back({tile.head, j}); }
        }
        state.go_back(tile.resident);
        for (int j = tile.key_blocks() - 1; j >= first; j--, state.advance()) {
            reads.push_back({{tile.head, j}, state.stage, state.parity, j >= tile.kept});
        }
    }
    Ring ring;
    ring.block.resize(C::stages), ring.released.assign(C::stages, C::warpgroups), ring.passes.assign(C::stages, 0);
    std::vector<size_t> at(C::warpgroups);
    size_t loaded = 0;
    for (bool progress = true; progress;) {
        progress = false;
        for (; loaded < loads.size(); loaded++, progress = true) {
            const size_t stage = loaded % C::stages;
            if (ring.released[stage] != C::warpgroups) { break; }
            ring.block[stage] = loads[loaded], ring.released[stage] = 0, ring.passes[stage]++;
        }
        for (int w = 0; w < C::warpgroups; w++) { // consumer w takes w + 1 blocks at a time: some run ahead
            for (int n = 0; n <= w && at[w] < reads.size(); n++, at[w]++, progress = true) {
                const Read& read = reads[at[w]];
                if (ring.passes[read.stage] % 2 == (int)read.parity) { break; } // K_full.wait
                if (!(ring.block[read.stage] == read.block)) { return false; }
                ring.released[read.stage] += read.release;
            }
        }
    }
    for (size_t n : at) {
        if (n != reads.size()) { return false; }
    }
    for (int released : ring.released) {
        if (released != C::warpgroups) { return false; }
    }
    return loaded == loads.size();
}

// Whether each tile is taken once.
template <class C> static bool every_tile_is_taken(const wgmma::ForwardProblem& p) {
    const int tiles = wgmma::TileScheduler<C>::tiles_per_head(p.T);
    std::vector<int> taken((size_t)p.heads * tiles);
    for (int cta = 0; cta < p.ctas; cta++) {
        for (wgmma::TileScheduler<C> tile(p, cta); tile.valid(); tile.advance()) {
            if (tile.head < 0 || tile.head >= p.heads || tile.i < 0 || tile.i >= tiles) { return false; }
            taken[(size_t)tile.head * tiles + tile.i]++;
        }
    }
    for (int n : taken) {
        if (n != 1) { return false; }
    }
    return true;
}

template <class C> static bool check_configuration(int heads, int T, int num_sms) {
    const wgmma::ForwardProblem p = wgmma::forward_problem<C>(1, T, heads, num_sms);
    bool holds = every_tile_is_taken<C>(p);
    for (int cta = 0; cta < p.ctas && holds; cta += 1 + p.ctas / 3) { holds = ring_holds<C>(p, cta, nullptr); }
    for (int lengths : {(int)ONE_DOCUMENT, (int)SHORT_DOCUMENTS, (int)LOG_NORMAL, 63, 64, 200}) {
        typedef typename C::WithDocuments D;
        const wgmma::ForwardProblem d = wgmma::forward_problem<D>(1, T, heads, num_sms);
        const std::vector<int> starts = document_starts(lengths, 1, T);
        for (int cta = 0; cta < d.ctas && holds; cta += 1 + d.ctas / 3) {
            holds = ring_holds<D>(d, cta, starts.data());
        }
    }
    return holds;
}

// The key blocks of the busiest CTA to those of the average one, and the loads of K and V to those without kept blocks.
template <class C> static void shares(const wgmma::ForwardProblem& p, double* busiest, double* loads) {
    int64_t most = 0, all = 0, loaded = 0;
    for (int cta = 0; cta < p.ctas; cta++) {
        int64_t blocks = 0;
        for (wgmma::TileScheduler<C> tile(p, cta); tile.valid(); tile.advance()) {
            blocks += tile.key_blocks();
            if (tile.resident == 0) { loaded += tile.key_blocks(); }
        }
        most = max(most, blocks), all += blocks;
    }
    *busiest = (double)most * p.ctas / all, *loads = (double)loaded / all;
}

// Whether each thread's rows of a (64, 128) tile of scores see their document up to the diagonal, and nothing else. Rows begin
// at `row`, keys at `key`; the documents of rows row + 0 .. row + 63 at starts[0 .. 63].
static bool masks_hold(int row, int key, const std::vector<int>& starts) {
    for (int thread = 0; thread < 128; thread++) {
        const int lane = thread % 32, column = lane % 4 * 2;
        float S[64] = {};
        for (int h = 0; h < 2; h++) {
            const int r = thread / 32 * 16 + 8 * h + lane / 4;
            wgmma::mask_row(S, h, starts[r] - key - column, row + r - starts[r]);
        }
        for (int i = 0; i < 64; i++) { // as wgmma places an accumulator
            const int r = thread / 32 * 16 + lane / 4 + i / 2 % 2 * 8, j = key + column + i / 4 * 8 + i % 2;
            if ((S[i] == 0) != (j >= starts[r] && j <= row + r)) { return false; }
        }
    }
    return true;
}

// Named barriers of a thread block: two for each consumer, each another of ids 1 to 15; 0 is __syncthreads().
template <class C> static bool barriers_are_apart() {
    unsigned used = 1;
    for (int w = 0; w < C::warpgroups; w++) {
        for (int id : {C::BAR_OUTPUT + w, C::BAR_PINGPONG + w}) {
            if (id < 0 || id > 15 || (used >> id & 1) != 0) { return false; }
            used |= 1u << id;
        }
    }
    return true;
}

int main(void) {
    using wgmma::ForwardTiles;
    CHECK(barriers_are_apart<ForwardTiles<64, 4, 64, 9, false>>());
    CHECK(barriers_are_apart<ForwardTiles<64, 3, 128, 5, true>>());
    CHECK(barriers_are_apart<ForwardTiles<96, 2, 128, 3, false>>());
    for (int heads : {1, 3, 12, 96, 156, 256, 300, 768}) {
        for (int T : {1, 64, 65, 129, 333, 512, 600, 1000, 1024, 1025, 2048, 2049, 5000}) {
            for (int num_sms : {1, 2, 78, 114, 132, 200}) {
                bool holds = check_configuration<ForwardTiles<64, 4, 64, 9, false>>(heads, T, num_sms) &&
                             check_configuration<ForwardTiles<64, 3, 128, 5, true>>(heads, T, num_sms) &&
                             check_configuration<ForwardTiles<96, 3, 64, 4, false>>(heads, T, num_sms) &&
                             check_configuration<ForwardTiles<96, 2, 128, 3, false>>(heads, T, num_sms) &&
                             check_configuration<ForwardTiles<128, 3, 64, 4, false>>(heads, T, num_sms);
                if (!CHECK(holds)) { printf("    heads %d, T %d, SMs %d\n", heads, T, num_sms); }
            }
        }
    }
    std::vector<int> starts(64);
    for (int begin = 0; begin <= 64; begin++) { // rows 0 .. begin - 1 are of a document from key 150 on
        for (int r = 0; r < 64; r++) { starts[r] = r < begin ? 150 : 256 + begin; }
        CHECK(masks_hold(256, 256, starts) && masks_hold(256, 128, starts) && masks_hold(256, 0, starts));
        CHECK(masks_hold(256, 192, starts)); // the diagonal in the second half
    }
    // As many heads as fit the memory of a GPU: all but the last rounds are paired, in counts beyond 32 bits.
    for (int heads : {1 << 28, (1 << 29) - 1}) {
        const wgmma::ForwardProblem p = wgmma::forward_problem<ForwardTiles<64, 4, 64, 9, false>>(heads, 1, 1, 132);
        CHECK(p.paired_heads > heads - 2 * 132 && p.paired_heads <= heads && p.ctas == 132 && p.items == heads);
    }
    // 64,1024,12,64 and 16,1024,16,128 on an H200
    double busiest, loads;
    shares<ForwardTiles<64, 4, 64, 9, false>>(
        wgmma::forward_problem<ForwardTiles<64, 4, 64, 9, false>>(64, 1024, 12, 132), &busiest, &loads);
    CHECK(busiest < 1.015 && loads < .72);
    shares<ForwardTiles<128, 3, 64, 4, false>>(
        wgmma::forward_problem<ForwardTiles<128, 3, 64, 4, false>>(16, 1024, 16, 132), &busiest, &loads);
    CHECK(busiest < 1.025 && loads < .92);
    return unit_end();
}
