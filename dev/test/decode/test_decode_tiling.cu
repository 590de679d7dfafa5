// How linear layers of decoding are cut (dev/cuda/decode/matmul.cuh, batch_matmul.cuh): every chunk of every sum belongs to
// one segment, whose warp and CTA depend on the tiling, but whose place in the sum does not; and tiles cover the output and fit
// the shared memory. Needs no GPU.
#define DECODE_KERNELS
#include "dev/cuda/decode/linear.cuh"
#include "dev/cuda/decode/sampler.cuh"

#include "dev/test/fixtures/unit.h"

constexpr size_t HOPPER_SHARED = 227 * 1024; // bytes of a thread block: every tiling of decode/batch_matmul.cuh fits

// Segments follow each other, cover all chunks, and none is empty where there are several splits.
static void segments_cover(int C) {
    int splits = decode_splits(C), segments = DECODE_WARPS * splits, whole = 1;
    CHECK(splits >= 1 && splits <= DECODE_MAX_SPLITS && (splits & (splits - 1)) == 0);
    CHECK(decode_segment(C, splits, 0) == 0 && decode_segment(C, splits, segments) == C / DECODE_CHUNK);
    for (int s = 0; s < segments; s++) {
        int count = decode_segment(C, splits, s + 1) - decode_segment(C, splits, s);
        whole = whole && count >= (splits > 1);
    }
    CHECK(whole);
}

// Thread blocks cover rows and columns, with warps that have whole numbers of segments, and fit.
static void tiles_cover(DeviceCode gpu, int M, int C, int OC) {
    DecodeTiling t = decode_tiling(gpu, M, C, OC);
    const size_t blocks = (size_t)CEIL_DIV(M, t.rows) * CEIL_DIV(OC, 8 * t.NT);
    bool ok = t.blocks == blocks && t.rows >= 1 && t.rows <= 16 && t.shared <= gpu.shared_limit;
    ok = ok && (t.NT == 1 || t.NT == 2 || t.NT == 4); // what is compiled
    if (!unit_check(ok, "a tiling covers the layer and fits", __FILE__, __LINE__)) {
        printf("    M=%d C=%d OC=%d: NT %d rows %d, %zu bytes, %u blocks\n", M, C, OC, t.NT, t.rows, t.shared,
               t.blocks);
    }
}

// The same of the kernels for more rows, whose warps have one segment of at most BATCH_MAX_CHUNKS each
static void batch_tiles_cover(DeviceCode gpu, int M, int C, int OC) {
    DecodeLinear p = {};
    p.M = M, p.C = C, p.OC = OC, p.stride = OC;
    const BatchTiling t = batch_tiling(gpu, p);
    if (!decode_batch_serves(gpu, p)) {
        bool fits = gpu.shared_limit >= HOPPER_SHARED || t.shared <= gpu.shared_limit;
        CHECK(!gpu.sm_90 || M < BATCH_MIN_ROWS || OC % 2 != 0 || C > 8192 || !fits);
        return;
    }
    int splits = decode_splits(C), rows = 16 * t.MT, most = 0, least = C;
    for (int s = 0; s < DECODE_WARPS * splits; s++) {
        int count = decode_segment(C, splits, s + 1) - decode_segment(C, splits, s);
        most = count > most ? count : most, least = count < least ? count : least;
    }
    CHECK(batch_exact(C) == (least == 3 && most == 3));
    bool ok = t.blocks == (unsigned)(CEIL_DIV(M, rows) * CEIL_DIV(CEIL_DIV(OC, 8), t.tiles) * splits);
    ok = ok && t.splits == splits && most <= batch_chunks_of_kernel(C) && t.shared <= gpu.shared_limit;
    ok = ok && t.tiles >= 1 && (t.MT == 4 || (t.MT == 2 && t.tiles <= BatchTile<2>::G));
    if (!unit_check(ok, "a tiling of a batch covers the layer and fits", __FILE__, __LINE__)) {
        printf("    M=%d C=%d OC=%d: MT %d tiles %d splits %d, %zu bytes, %u blocks, %d chunks\n", M, C, OC, t.MT,
               t.tiles, t.splits, t.shared, t.blocks, most);
    }
}
// A warp's sums of a tile stay inside of its W, whose place they take, and do not overlap; or lie one behind the other.
template <int MT, int CHUNKS> static void sums_have_places(void) {
    typedef BatchTile<MT> Tile;
    for (int n = 0; n < Tile::G; n++) {
        int begin = Tile::template sums_of<CHUNKS>(n), end = begin + Tile::rows * 8 * (int)sizeof(float);
        CHECK(begin % 16 == 0 && end <= Tile::template sums_of<CHUNKS>(n + 1));
        CHECK(MT == 4 || (begin >= n * Tile::tile_bytes(CHUNKS) &&
                          end <= n * Tile::tile_bytes(CHUNKS) + Tile::segment_bytes(CHUNKS)));
        CHECK(MT == 2 || end <= Tile::G * Tile::tile_sums);
    }
}

// The GEMMs of 124M's prompts on 132 SMs. 64 prompts of 64 tokens are 4096 rows: qkv has 576 tiles of 128 columns or 384 of
// 192, five rounds or three; attproj and fcproj 192 or 128.
static void prompt_tiles_fill_rounds(DeviceCode gpu) {
    CHECK(prompt_tiles_are_wide(gpu, 4096, 2304) && prompt_tiles_are_wide(gpu, 4096, 768));
    for (int OC : {768, 2304, 3072}) { CHECK(prompt_tiles_are_wide(gpu, 8192, OC)); } // as long in both
    for (int OC : {2304, 3072}) { CHECK(prompt_tiles_are_wide(gpu, 1024, OC)); }      // one round, not two
    CHECK(!prompt_tiles_are_wide(gpu, 1024, 768) && !prompt_tiles_are_wide(gpu, 17, 2304));
    for (int OC : {2304, 768, 288, 1664}) { // OC and SMs in test_gpu_generate
        gpu.sms = CEIL_DIV(OC, 192) * 2;
        CHECK(prompt_tiles_are_wide(gpu, 256, OC));
    }
}

static void keys_are_ordered(void) {
    const float x[] = {-INFINITY, -3e38f, -1.0f, -1e-40f, 0.0f, 1e-40f, 1.0f, 3e38f, INFINITY};
    for (int i = 1; i < 9; i++) { CHECK(sample_key(x[i - 1]) < sample_key(x[i])); }
    CHECK(sample_key(NAN) == sample_key(-INFINITY));
    CHECK(sampled_word(7, -1) == 0x7ffffffffull && (int)(unsigned)sampled_word(7, -1) == -1);
    for (float y = -86.9f; y <= 0.0f; y += 0.0137f) {
        CHECK(fabs((double)sampler_exp(y) - exp((double)y)) <= ldexp(exp((double)y), -22));
    }
    CHECK(sampler_exp(0.0f) == 1.0f && sampler_exp(-100.0f) == 0.0f && sampler_exp(-INFINITY) == 0.0f);
}

int main(void) {
    // sm_90a, a part of it, sm_120, sm_80, sm_86, sm_90 without sm_90a's instructions
    const DeviceCode gpus[] = {{90, 1, 1, 132, HOPPER_SHARED}, {90, 1, 1, 16, HOPPER_SHARED},
                               {120, 1, 0, 170, 99 * 1024},    {80, 0, 0, 108, 163 * 1024},
                               {86, 0, 0, 84, 99 * 1024},      {89, 1, 0, 132, HOPPER_SHARED}};
    for (int C = 32; C <= 4 * 12288; C += C < 4096 ? 32 : 2048) { segments_cover(C); }
    for (DeviceCode gpu : gpus) {
        for (int M : {1, 2, 3, 4, 15, 16, 17, 32, 33, 63, 64, 65, 256, 8192}) {
            for (int C : {32, 96, 768, 832, 1024, 1600, 2880, 3072, 6400, 12288, 49152}) {
                for (int OC : {1, 8, 97, 768, 2304, 6400, 50257}) {
                    tiles_cover(gpu, M, C, OC);
                    batch_tiles_cover(gpu, M, C, OC);
                }
            }
        }
    }
    sums_have_places<2, 3>(), sums_have_places<2, 4>(), sums_have_places<4, 3>(), sums_have_places<4, 4>();
    prompt_tiles_fill_rounds(gpus[0]);
    keys_are_ordered();
    return unit_end();
}
