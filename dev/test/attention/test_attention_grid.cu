// The grids of mma's kernels, run through without a GPU: each block of each head is a thread block's, the first blocks of a
// group's heads come first, and no size that the contract allows exceeds a grid's limits.
#include "dev/cuda/attention/attention.h"
#include "dev/cuda/attention/mma_tiles.cuh"
#include "dev/test/fixtures/unit.h"

#include <vector>

static bool fits(const mma::AttentionGrid& g) { return g.size.x <= INT_MAX && g.size.y <= 65535 && g.size.z == 1; }

static bool every_block_once(int blocks, int heads, int64_t reread_bytes, int l2_bytes) {
    const mma::AttentionGrid g = mma::attention_grid(blocks, heads, reread_bytes, l2_bytes);
    std::vector<int> taken((size_t)heads * blocks);
    for (int y = 0; y < (int)g.size.y; y++) {
        int last = 0;
        for (int x = 0; x < (int)g.size.x; x++) {
            const mma::AttentionTask task(make_int2(x, y), g.group);
            if (task.head < 0 || task.block < last || task.block >= blocks) { return false; }
            last = task.block;
            if (task.head < heads) { taken[(size_t)task.head * blocks + task.block]++; }
        }
    }
    for (int n : taken) {
        if (n != 1) { return false; }
    }
    return fits(g) && (int64_t)g.group.d * (int)g.size.y < heads + g.group.d;
}

int main() {
    const int l2_bytes = 50 << 20;
    for (int blocks : {1, 2, 7, 16, 65, 70000}) {
        for (int heads : {1, 2, 12, 13, 768}) {
            if (heads * blocks > 1 << 22) { continue; }
            for (int64_t reread_bytes : {(int64_t)1 << 10, (int64_t)3 << 20, (int64_t)1 << 33}) {
                if (!CHECK(every_block_once(blocks, heads, reread_bytes, l2_bytes))) {
                    printf("    %d blocks, %d heads\n", blocks, heads);
                }
            }
        }
    }
    // The largest sizes, by blocks of 16 rows: T of 2^30 with one head and with 31, 2^29 - 1 heads of 64 rows
    const int sizes[][3] = {{1, 1 << 30, 1}, {1, 1 << 30, 31}, {(1 << 29) - 1, 64, 1}, {4, 65535 * 16 + 1, 8}};
    for (const int(&s)[3] : sizes) {
        const int B = s[0], T = s[1], NH = s[2], blocks = CEIL_DIV(T, 16);
        if (!CHECK(attention_unsupported(B, T, NH, 64) == nullptr)) { continue; }
        const mma::AttentionGrid g = mma::attention_grid(blocks, B * NH, (int64_t)T * 64 * 4, l2_bytes);
        const mma::AttentionTask last(make_int2((int)g.size.x - 1, (int)g.size.y - 1), g.group);
        CHECK(fits(g) && last.block == blocks - 1 && last.head >= B * NH - 1 && last.head < B * NH + g.group.d);
    }
    return unit_end();
}
