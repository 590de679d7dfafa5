// The order in which wgmma's backward takes key blocks, adds dQ and computes D, without a GPU:
// BackwardProblem, KeyBlock, DqChain. Blocks are worked off one by one in the order of the work counter, which is the hardest
// case: then a block finds only what earlier ones have left.
#include "dev/cuda/attention/documents.h"
#include "dev/cuda/attention_backward_wgmma.cu"
#include "dev/test/fixtures/unit.h"

#include <algorithm>
#include <vector>

// dQ of a step is the set of the key blocks that are in it, as bits; adding a block twice carries into another bit. starts (T):
// all heads are of one row, or empty without documents.
template <class C>
static bool every_dq_is_complete(int heads, int T, int num_sms, const std::vector<int>& starts = {}) {
    const wgmma::BackwardProblem p = wgmma::backward_problem<C>(1, T, heads, num_sms);
    std::vector<int> steps(p.key_blocks);
    for (int t = 0; C::documents && t < T; t++) {
        wgmma::store_document_steps<C>(steps.data(), t, starts[t], starts[std::min(t + 1, T - 1)], p);
    }
    auto first_block = [&](int query_block) { return C::documents ? starts[query_block * C::Br] / C::Bc : 0; };
    struct DqTile {
        uint64_t accumulator[2] = {}, dQ = 0;
        int added[2] = {}, results = 0;
    };
    std::vector<DqTile> dq_tiles((size_t)heads * p.query_blocks);
    std::vector<int> taken(p.work_items);
    std::vector<bool> D(p.work_items); // of each head's 128 queries of a key block: stored in scratch
    for (int n = 0; n < p.work_items; n++) { D[n] = !C::computes_D || n / p.key_blocks >= p.first_reversed_head; }
    for (int work_item = 0; work_item < p.work_items; work_item++) {
        wgmma::KeyBlock block(wgmma::KeyBlock(work_item, p).packed()); // as the roles of a CTA exchange it
        if (block.head < 0 || block.head >= heads || block.j < 0 || block.j >= p.key_blocks) { return false; }
        taken[block.head * p.key_blocks + block.j]++;
        block.document_steps = steps[block.j];
        if (block.steps<C>(p) < 1 || block.j * C::steps_per_block + block.steps<C>(p) > p.query_blocks) {
            return false;
        }
        for (int i = 0; i < block.steps<C>(p); i++) {
            const int offset = block.query_offset<C>(i, p);
            const int queries = block.head * p.key_blocks + block.j + offset / C::steps_per_block;
            if (C::computes_D && !block.reversed && i == 0) {
                if (offset != 0 || D[queries]) { return false; }
                D[queries] = true;
            }
            if (!D[queries]) { return false; }
            const wgmma::DqChain chain(block.j, block.reversed, offset / C::steps_per_block,
                                       first_block(block.j * C::steps_per_block + offset));
            DqTile& dq_tile = dq_tiles[(size_t)block.head * p.query_blocks + block.j * C::steps_per_block + offset];
            uint64_t dQ = 1ull << block.j;
            if (chain.reads()) {
                if (dq_tile.added[chain.read_accumulator()] != chain.read_count()) { return false; }
                dQ += dq_tile.accumulator[chain.read_accumulator()];
            }
            if (chain.last()) {
                dq_tile.dQ = dQ;
                dq_tile.results++;
                continue;
            }
            const int into = chain.accumulator();
            if (dq_tile.added[into] != chain.accumulator_count()) { return false; }
            dq_tile.accumulator[into] = (chain.accumulator_count() > 0 ? dq_tile.accumulator[into] : 0) + dQ;
            dq_tile.added[into]++;
        }
    }
    for (int n : taken) {
        if (n != 1) { return false; }
    }
    if (!wgmma::KeyBlock(wgmma::KeyBlock(p.work_items, p).packed()).none()) { return false; }
    for (size_t n = 0; n < dq_tiles.size(); n++) {
        const int query_block = (int)(n % p.query_blocks), first = first_block(query_block);
        const int key_blocks = query_block / C::steps_per_block + 1; // up to the diagonal
        const uint64_t seen = (2ull << (key_blocks - 1)) - (1ull << first);
        if (dq_tiles[n].results != 1 || dq_tiles[n].dQ != seen) { return false; }
    }
    return true;
}

// By how many percent the last CTA ends later than a CTA on average, where each takes the next key block when it is done with
// one, and a key block takes as long as its steps and a quarter of one more.
template <class C> static double imbalance(int heads, int T, int num_sms) {
    const wgmma::BackwardProblem p = wgmma::backward_problem<C>(1, T, heads, num_sms);
    std::vector<double> done(num_sms);
    double sum = 0;
    for (int work_item = 0; work_item < p.work_items; work_item++) {
        const double time = wgmma::KeyBlock(work_item, p).steps<C>(p) + 0.25;
        *std::min_element(done.begin(), done.end()) += time;
        sum += time;
    }
    return 100 * (*std::max_element(done.begin(), done.end()) * num_sms / sum - 1);
}

int main(void) {
    for (int heads : {1, 2, 3, 12, 47, 156, 300}) {
        for (int T : {1, 64, 65, 128, 129, 333, 512, 1000, 1024, 1025, 2048, 4096, 5000, 8064}) {
            for (int num_sms : {1, 2, 78, 114, 132, 200}) {
                bool complete = every_dq_is_complete<wgmma::BackwardTiles<64, 2>>(heads, T, num_sms) &&
                                every_dq_is_complete<wgmma::BackwardTiles<64, 3>>(heads, T, num_sms) &&
                                every_dq_is_complete<wgmma::BackwardTiles<128, 2>>(heads, T, num_sms);
                for (int lengths : {(int)ONE_DOCUMENT, (int)SHORT_DOCUMENTS, (int)LOG_NORMAL, 63, 64, 200}) {
                    const std::vector<int> starts = document_starts(lengths, 1, T);
                    complete = complete &&
                               every_dq_is_complete<wgmma::BackwardTiles<64, 2, true>>(heads, T, num_sms, starts) &&
                               every_dq_is_complete<wgmma::BackwardTiles<64, 3, true>>(heads, T, num_sms, starts) &&
                               every_dq_is_complete<wgmma::BackwardTiles<128, 2, true>>(heads, T, num_sms, starts);
                }
                if (!CHECK(complete)) { printf("    heads %d, T %d, SMs %d\n", heads, T, num_sms); }
            }
        }
    }
    // CTAs end together where key blocks of whole heads fill 129 or all of 132 SMs: with all heads in pairs of waves, or not.
    for (int heads : {12, 24, 72, 192}) {
        for (int T : {4096, 8192}) {
            const double found = imbalance<wgmma::BackwardTiles<64, 3>>(heads, T, 132);
            if (!CHECK(found < 1)) { printf("    heads %d, T %d: the last CTA ends %.2f%% late\n", heads, T, found); }
        }
    }
    CHECK(imbalance<wgmma::BackwardTiles<64, 3>>(20, 8192, 132) < 1.5);
    // statistics_row is a permutation of each sixteen rows: no row's statistics overwrite another's.
    unsigned rows = 0;
    for (int row = 0; row < 16; row++) { rows |= 1u << wgmma::statistics_row(row); }
    CHECK(rows == 0xffff);
    return unit_end();
}
