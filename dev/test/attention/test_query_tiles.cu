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

// The CTA's list, as list_tiles() makes it, of starts (B,T)
template <class C> static std::vector<int> list_of(const wgmma::ForwardProblem& p, int cta, const int* starts) {
    const int tiles = wgmma::TileScheduler<C>::tiles_per_head(p.T), entries = p.heads / p.NH.d * tiles;
    std::vector<int> list(wgmma::LISTED, (int)wgmma::ListedTile::NONE), sorted;
    bool cut = false, uneven = false;
    for (int entry = 0; entry < entries && p.listed; entry++) {
        wgmma::TileScheduler<C> tile(p, 0);
        tile.head = entry / tiles * p.NH.d, tile.i = entry % tiles;
        const int first = tile.first_block(starts), needed = tile.key_blocks() - first;
        sorted.push_back(wgmma::sort_key(needed, entry));
        cut = cut || wgmma::is_cut(first), uneven = uneven || wgmma::is_long<C>(needed);
    }
    const int padded = p.listed ? wgmma::padded_to_sort(entries) : 0;
    sorted.resize(padded);
    for (int size = 2; size <= padded; size *= 2) {
        for (int apart = size / 2; apart > 0; apart /= 2) {
            for (int pair = 0; pair < padded / 2; pair++) { wgmma::sort_pair(sorted.data(), pair, size, apart); }
        }
    }
    for (int n = 0; n < wgmma::LISTED && cut && uneven; n++) {
        list[n] = wgmma::listed_item<C>(p, cta, n, sorted.data());
    }
    return list;
}

// Whether the CTA's consumers, each at its own pace, find every key block in its stage and the producer never waits for ever.
// With documents, also that a tile has the key blocks of all its rows, and the first of them is needed.
template <class C> static bool ring_holds(const wgmma::ForwardProblem& p, int cta, const int* starts) {
    std::vector<Ring::Block> loads;
    std::vector<Read> reads; // the same for all consumers: who skips a block releases it, too
    hopper::PipelineState<C::stages> state;
    const std::vector<int> own = C::documents ? list_of<C>(p, cta, starts) : std::vector<int>();
    const int* const list = C::documents ? own.data() : nullptr;
    for (wgmma::TileScheduler<C> tile(p, cta, list); tile.valid(list); tile.advance(list)) {
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

// Whether each tile is taken once; of listed ones, those with more key blocks before the others.
template <class C> static bool every_tile_is_taken(const wgmma::ForwardProblem& p, const int* starts = nullptr) {
    const int tiles = wgmma::TileScheduler<C>::tiles_per_head(p.T);
    std::vector<int> taken((size_t)p.heads * tiles);
    for (int cta = 0; cta < p.ctas; cta++) {
        const std::vector<int> own = starts ? list_of<C>(p, cta, starts) : std::vector<int>();
        const int* const list = starts ? own.data() : nullptr;
        int before = INT_MAX;
        for (wgmma::TileScheduler<C> tile(p, cta, list); tile.valid(list); tile.advance(list)) {
            const int blocks = tile.key_blocks() - (starts ? tile.first_block(starts) : 0);
            if (list && list[0] != wgmma::ListedTile::NONE && blocks > before) { return false; }
            before = blocks;
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
        holds = holds && every_tile_is_taken<D>(d, starts.data());
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

// The key blocks of the busiest CTA to those of the average one, of rows of documents
template <class C> static double busiest_of_documents(int B, int T, int NH, int lengths) {
    const wgmma::ForwardProblem p = wgmma::forward_problem<C>(B, T, NH, 132);
    const std::vector<int> starts = document_starts(lengths, B, T);
    int64_t most = 0, all = 0;
    CHECK(p.listed && every_tile_is_taken<C>(p, starts.data()));
    for (int cta = 0; cta < p.ctas; cta++) {
        const std::vector<int> list = list_of<C>(p, cta, starts.data());
        int64_t blocks = 0;
        for (wgmma::TileScheduler<C> tile(p, cta, list.data()); tile.valid(list.data()); tile.advance(list.data())) {
            blocks += tile.key_blocks() - tile.first_block(starts.data());
        }
        most = max(most, blocks), all += blocks;
    }
    return (double)most * p.ctas / all;
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
    // 65536 tokens of documents as long as FineWeb's, with both tiles of heads of 64
    for (int T : {2048, 4096, 8192, 16384}) {
        for (int lengths : {512, 2048, (int)LOG_NORMAL}) {
            if (lengths > T) { continue; }
            const int B = 65536 / T;
            const double wide = busiest_of_documents<ForwardTiles<64, 4, 64, 9, false, true>>(B, T, 12, lengths),
                         narrow = busiest_of_documents<ForwardTiles<64, 3, 128, 5, true, true>>(B, T, 12, lengths);
            if (!CHECK(wide < 1.04 && narrow < 1.03)) {
                printf("    T %d, %d: %.3f, %.3f\n", T, lengths, wide, narrow);
            }
        }
    }
    return unit_end();
}
