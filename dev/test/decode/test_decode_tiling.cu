// How linear layers of decoding are cut (dev/cuda/decode/matmul.cuh and its _batch_, _cluster_, _warpgroup_, _head_
// companions): every chunk of every sum belongs to one segment, whose warp and CTA depend on the tiling, but whose place in the
// sum does not; and tiles cover the output and fit the shared memory. Needs no GPU.
#define DECODE_KERNELS
#include "dev/cuda/decode/prompt_matmul.cuh"
#include "dev/cuda/decode/linear.cuh"
#include "dev/cuda/decode/sampler.cuh"

#include "dev/test/fixtures/unit.h"

#include <vector>

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
static void tiles_cover(LaunchGpu gpu, int M, int C, int OC, int norm) {
    DecodeTiling t = decode_tiling(gpu, M, C, OC, norm);
    int splits = decode_splits(C);
    size_t blocks = (size_t)CEIL_DIV(M, t.rows) * CEIL_DIV(OC, 8 * t.NT) * (t.clustered ? splits : 1);
    bool ok = t.blocks == blocks && t.rows >= 1 && t.rows <= 16 * t.MT && t.shared <= gpu.shared_limit;
    ok = ok && (!t.clustered || (gpu.dependent && splits > 1));
    ok = ok && (t.MT == 1 || splits == 1 || t.clustered); // wide tiles: one segment a warp
    ok = ok && (!norm || (t.MT == 1 && !t.clustered));
    ok = ok && (t.MT == 4   ? t.NT == 3
                : t.MT == 2 ? t.NT == 2
                            : t.NT == 1 || t.NT == 2 || t.NT == 4); // what is compiled
    if (t.clustered) {                                              // the longest split fits
        for (int rank = 0; rank < splits; rank++) {
            int chunks =
                decode_segment(C, splits, DECODE_WARPS * (rank + 1)) - decode_segment(C, splits, DECODE_WARPS * rank);
            size_t bytes = (size_t)chunks * DECODE_CHUNK * decode_input_rows(t.MT, t.rows) * sizeof(floatX);
            ok = ok && bytes <= decode_shared_input(C, splits, 1, decode_input_rows(t.MT, t.rows));
        }
    }
    if (!unit_check(ok, "a tiling covers the layer and fits", __FILE__, __LINE__)) {
        printf("    M=%d C=%d OC=%d norm %d: MT %d NT %d rows %d clustered %d, %zu bytes, %u blocks\n", M, C, OC, norm,
               t.MT, t.NT, t.rows, t.clustered, t.shared, t.blocks);
    }
}

// The same of the kernels for more rows, whose warps have one segment of at most BATCH_MAX_CHUNKS each
static void batch_tiles_cover(LaunchGpu gpu, int M, int C, int OC) {
    DecodeLinear p = {};
    p.M = M, p.C = C, p.OC = OC, p.stride = OC;
    if (!decode_batch_serves(gpu, p)) {
        bool fits = gpu.shared_limit >= HOPPER_SHARED || batch_tiling(gpu, p).shared <= gpu.shared_limit;
        CHECK(!gpu.dependent || M < BATCH_MIN_ROWS || OC % 2 != 0 || C > 8 * 800 || !fits);
        return;
    }
    BatchTiling t = batch_tiling(gpu, p);
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
// The same of clusters that share rows: their CTAs have all tiles of all rows, at most a round each, and bring all rows.
static void cluster_tiles_cover(LaunchGpu gpu, int M, int C, int OC) {
    DecodeLinear p = {};
    p.M = M, p.C = C, p.OC = OC, p.stride = OC;
    if (!decode_cluster_serves(gpu, p)) { return; }
    BatchTiling t = cluster_tiling(gpu, p);
    int row_tiles = CEIL_DIV(M, BatchTile<2>::rows), groups = (int)t.blocks / row_tiles;
    bool ok = gpu.hopper && M >= BATCH_MIN_ROWS && decode_splits(C) == 1 && batch_chunks(C) <= BATCH_MAX_CHUNKS;
    ok = ok && (int)t.blocks == groups * row_tiles && groups % CLUSTER_CTAS == 0 &&
         BatchTile<2>::rows % CLUSTER_CTAS == 0;
    ok = ok && t.tiles >= 1 && t.tiles <= BatchTile<2>::G && groups * t.tiles >= CEIL_DIV(OC, 8);
    ok = ok && t.blocks <= (unsigned)gpu.sms && t.shared <= gpu.shared_limit;
    p.epilogue = DECODE_RESIDUAL; // attproj: an SM does not have room for two CTAs
    if (decode_cluster_serves(gpu, p)) {
        const size_t shared = cluster_tiling(gpu, p).shared;
        ok = ok && 2 * (shared + 1024) > gpu.shared_limit + 1024 && shared <= gpu.shared_limit;
    }
    if (!unit_check(ok, "a tiling of clusters covers the layer and fits", __FILE__, __LINE__)) {
        printf("    M=%d C=%d OC=%d: %d tiles, %zu bytes, %u blocks\n", M, C, OC, t.tiles, t.shared, t.blocks);
    }
}
// The same of decode/warpgroup_matmul.cuh: all rows are in each CTA, columns in one cluster.
static void warpgroup_tiles_cover(LaunchGpu gpu, int M, int C, int OC, DecodeEpilogue epilogue) {
    static float2 norm[1];
    DecodeLinear p = {};
    p.M = M, p.C = C, p.OC = OC, p.stride = OC, p.epilogue = epilogue;
    CHECK(epilogue == DECODE_RESIDUAL || warpgroup_tiling(gpu, p).kernel == NULL);
    if (epilogue != DECODE_RESIDUAL) { p.norm_sums = p.moments = norm; }
    const WarpgroupTiling t = warpgroup_tiling(gpu, p);
    if (t.kernel == NULL) { return; }
    const int splits = C / 768, clusters = (int)t.blocks / t.cluster, columns = t.columns * t.cluster / splits;
    bool ok = gpu.hopper && M >= 4 && M <= 64 && t.box_rows % 8 == 0 && t.box_rows >= M && (C == 768 || C == 3072) &&
              OC % 8 == 0 && t.threads == 384;
    ok = ok && (int)t.blocks == clusters * t.cluster && clusters * columns >= OC && (clusters - 1) * columns < OC;
    ok = ok && (int)t.blocks <= gpu.sms && t.shared <= gpu.shared_limit;
    ok = ok && (t.cluster == 2 || (int)t.blocks <= gpu.sms - gpu.sms % 16);
    ok = ok && t.early % t.cluster == 0 && t.early <= gpu.sms; // or negative: all CTAs start late
    if (!unit_check(ok, "a tiling of warpgroups covers the layer and fits", __FILE__, __LINE__)) {
        printf("    M=%d C=%d OC=%d: %d columns, %zu bytes, %u blocks\n", M, C, OC, t.columns, t.shared, t.blocks);
    }
}
// 16 bytes of shared memory at these addresses by eight lanes are in all banks: one access
static bool on_all_banks(const int* address) {
    int banks = 0;
    for (int l = 0; l < 8; l++) { banks |= address[l] % 16 == 0 ? 1 << address[l] / 16 % 8 : 0; }
    return banks == 255;
}
// W lies in shared memory as wgmma reads it: rows of 128 bytes with TMA's swizzle. MMA k of a chunk has the words 2k and 2k + 1
// of the four 16 bytes, as the lanes' operands of the rows do. Warps store and load on all banks.
template <int NT, int SPLITS> static void warpgroup_operands_have_places(void) {
    typedef WarpgroupTile<NT, SPLITS> T;
    std::vector<int> uses(T::rows_at / 4);
    bool once = true, right = true, banks = true;
    for (int u = 0; u < T::chunks; u++) {
        for (int n = 0; n < NT; n++) {
            for (int j = 0; j < 4; j++) {
                unsigned bank = 0;
                for (int l = 0; l < WARP_SIZE; l++) {
                    const int r = l / 4, q = l % 4, at = T::weights(u, n) + T::word(u, r, q, j), in_line = at % 1024;
                    once = once && at >= 0 && at < T::rows_at && uses[(size_t)at / 4]++ == 0;
                    bank |= 1u << at / 4 % 32;
                    const int piece = (in_line / 16 ^ in_line / 128) % 8; // of the row, without the swizzle
                    right = right && at / T::line_bytes == u / 2 && at % T::line_bytes / 1024 == n;
                    right = right && in_line / 128 == r && piece == u % 2 * 4 + j && at / 4 % 4 == q;
                }
                banks = banks && bank == ~0u;
            }
        }
        unsigned rows = 0; // of eight, that lanes have; what eight lanes read at once
        for (int l = 0; l < WARP_SIZE; l += 8) {
            int from[8];
            for (int i = 0; i < 8; i++) {
                const int r = (l + i) / 4, q = i % 4;
                from[i] = T::operand(u, r, q), rows |= 1u << T::row(r);
                right = right && from[i] / 128 == T::row(r) && (from[i] / 16 ^ from[i] / 128) % 8 == u % 2 * 4 + q;
            }
            banks = banks && on_all_banks(from);
        }
        once = once && rows == 255;
    }
    CHECK(once && right && banks);
    CHECK(T::rows_at % 1024 == 0 && T::totals_at % 1024 == 0 && T::front_at % 16 == 0);
    CHECK(T::partial(2, 0) <= T::rows_at && T::partial(1, 0) == T::partial(0, NT));
    CHECK(T::C == 768 && T::lines * T::line == T::C);
}
// The same of decode/head_matmul.cuh: each row is in the CTAs' one tile of rows, each unit of columns one warpgroup's, and CTAs
// have as many units, or one more.
template <int MT> static bool head_units_cover(const HeadTiling& t, int OC) {
    typedef HeadTile<MT> T;
    const int ctas = (int)t.blocks, units = T::units(OC);
    std::vector<int> uses((size_t)units), of_cta((size_t)ctas);
    bool ok = t.threads == WARP_SIZE * (T::WARPS + 4) && t.rows == T::rows && t.shared == T::shared;
    for (int cta = 0; cta < ctas; cta++) {
        for (int group = 0; group < T::GROUPS; group++) {
            for (int u = T::first_unit(cta, group, ctas); u < units; u += T::unit_step(ctas)) {
                uses[(size_t)u]++, of_cta[(size_t)cta]++;
            }
            ok = ok && T::first_unit(cta, group, ctas) < units; // no warpgroup is idle
        }
        ok = ok && of_cta[(size_t)cta] >= units / ctas && of_cta[(size_t)cta] <= CEIL_DIV(units, ctas);
    }
    for (int n : uses) { ok = ok && n == 1; }
    return ok && units * T::columns >= OC && (units - 1) * T::columns < OC;
}
static void head_tiles_cover(LaunchGpu gpu, int M, int C, int OC) {
    static const floatX norm[1] = {};
    DecodeLinear p = {};
    p.M = M, p.C = C, p.OC = OC, p.stride = OC + OC % 2, p.norm_weight = p.norm_bias = norm;
    const HeadTiling t = head_tiling(gpu, p);
    if (t.kernel == NULL) { return; }
    bool ok = gpu.hopper && C == 768 && M <= t.rows && t.shared <= gpu.shared_limit && (int)t.blocks == gpu.sms;
    ok = ok && (t.rows == 16   ? head_units_cover<1>(t, OC)
                : t.rows == 32 ? head_units_cover<2>(t, OC)
                : t.rows == 48 ? head_units_cover<3>(t, OC)
                               : t.rows == 64 && head_units_cover<4>(t, OC));
    if (!unit_check(ok, "the head's tiling covers the layer and fits", __FILE__, __LINE__)) {
        printf("    M=%d C=%d OC=%d: %d rows, %zu bytes, %u blocks\n", M, C, OC, t.rows, t.shared, t.blocks);
    }
}
// Lanes read W, as TMA brings it, on all banks, each column once. Rows lie as wgmma reads them: MMA k of a chunk has the words
// 2k and 2k + 1 of the 16 bytes that lanes have of W. What a lane stores of two eights of columns are neighbours in out.
template <int MT> static void head_operands_have_places(void) {
    typedef HeadTile<MT> T;
    CHECK(T::shared <= (int)HOPPER_SHARED && T::C == 768 && T::C == T::lines * T::line && T::rows_bytes % 1024 == 0);
    bool once = true, right = true, banks = true;
    for (int u = 0; u < 2; u++) {
        unsigned columns = 0;
        for (int h = 0; h < 2; h++) {
            for (int l = 0; l < WARP_SIZE; l += 8) {
                int from[8];
                for (int i = 0; i < 8; i++) {
                    const int r = (l + i) / 4, q = i % 4, column = T::column(h, r);
                    from[i] = T::operand(h, u, r, q), columns |= 1u << column;
                    right = right && from[i] / 128 == column;
                    right = right && (from[i] / 16 ^ column) % 8 == u * 4 + q &&
                            from[i] == (T::operand(h, 0, r, q) ^ u * 64);
                }
                banks = banks && on_all_banks(from);
            }
        }
        once = once && columns == 0xffff;
    }
    for (int q = 0; q < 4; q++) {
        const int c = T::column(0, 2 * q);
        right = right && c % 2 == 0 && T::column(1, 2 * q) == c + 1;
        right = right && T::column(0, 2 * q + 1) == c + 4 && T::column(1, 2 * q + 1) == c + 5;
    }
    std::vector<int> uses(T::rows_line_bytes / 4);
    for (int i = 0; i < T::rows * 32; i++) { // a line's words
        const int row = i / 32, u = i / 16 % 2, q = i / 4 % 4, j = i % 4, at = T::row_word(row, u, q, j);
        once = once && at >= 0 && at < T::rows_line_bytes && uses[(size_t)at / 4]++ == 0;
        right = right && at / 128 == row && (at / 16 ^ row) % 8 == u * 4 + j && at / 4 % 4 == q;
    }
    CHECK(once && right && banks);
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
static void prompt_tiles_fill_rounds(LaunchGpu gpu) {
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
    const LaunchGpu gpus[] = {{1, HOPPER_SHARED, 132, 1}, {1, HOPPER_SHARED, 16, 1}, {1, 99 * 1024, 170, 0},
                              {0, 163 * 1024, 108, 0},    {0, 99 * 1024, 84, 0},     {1, HOPPER_SHARED, 132, 0}};
    for (int C = 32; C <= 4 * 12288; C += C < 4096 ? 32 : 2048) { segments_cover(C); }
    for (LaunchGpu gpu : gpus) {
        for (int M : {1, 2, 3, 4, 15, 16, 17, 32, 33, 63, 64, 65, 256, 8192}) {
            for (int C : {32, 96, 768, 832, 1600, 2880, 3072, 6400, 12288, 49152}) {
                for (int OC : {1, 8, 97, 768, 2304, 6400, 50257}) {
                    tiles_cover(gpu, M, C, OC, 0);
                    batch_tiles_cover(gpu, M, C, OC);
                    cluster_tiles_cover(gpu, M, C, OC);
                    for (DecodeEpilogue epilogue : {DECODE_STORE, DECODE_GELU, DECODE_RESIDUAL}) {
                        warpgroup_tiles_cover(gpu, M, C, OC, epilogue);
                    }
                    head_tiles_cover(gpu, M, C, OC);
                    if (M <= DECODE_NORM_ROWS && C <= 12288) { tiles_cover(gpu, M, C, OC, 1); }
                }
            }
        }
    }
    DecodeLinear step = {}; // the layers of a step of 124M at batch 64, which clusters can serve
    step.M = 64, step.C = 768;
    for (int OC : {768, 2304, 3072}) {
        step.OC = step.stride = OC;
        CHECK(decode_cluster_serves(gpus[0], step) && !decode_cluster_serves(gpus[2], step));
        CHECK(decode_batch_serves(gpus[5], step) && !decode_cluster_serves(gpus[5], step));
    }
    step.C = 3072, step.OC = step.stride = 768;
    step.epilogue = DECODE_RESIDUAL; // fcproj, attproj
    for (int C : {3072, 768}) {
        for (int M : {3, 4, 16, 17, 32, 33, 64, 65}) {
            step.C = C, step.M = M;
            CHECK((warpgroup_tiling(gpus[0], step).kernel != NULL) == (M >= 4 && M <= 64));
            for (int n : {1, 2, 5}) { CHECK(warpgroup_tiling(gpus[n], step).kernel == NULL); }
        }
    }
    float2 norm[1];
    DecodeLinear folded = step;
    folded.M = 64, folded.norm_sums = folded.moments = norm;
    for (int OC : {2304, 3072}) { // qkv, fc
        folded.OC = folded.stride = OC, folded.epilogue = OC == 2304 ? DECODE_STORE : DECODE_GELU;
        CHECK(warpgroup_tiling(gpus[0], folded).kernel != NULL);
    }
    warpgroup_operands_have_places<5, 1>(), warpgroup_operands_have_places<2, 1>();
    warpgroup_operands_have_places<4, 4>();
    step.epilogue = DECODE_STORE;
    const floatX norm_weight[1] = {};
    step.C = 768, step.OC = 50257, step.stride = 50304, step.norm_weight = norm_weight; // the classifier
    float logits[1];
    step.logits = logits;
    for (int M : {4, 16, 17, 48, 64}) {
        step.M = M;
        CHECK(head_tiling(gpus[0], step).kernel != NULL);
        for (int n : {2, 5}) { CHECK(head_tiling(gpus[n], step).kernel == NULL); }
    }
    const int few_sms[2][2] = {{8, 1601}, {3, 2999}}; // SMs and OC in test_gpu_generate
    for (const int(&few)[2] : few_sms) {
        DecodeLinear small = step;
        small.OC = few[1], small.stride = few[1] + 3;
        const LaunchGpu gpu = {1, HOPPER_SHARED, few[0], 1};
        CHECK(head_tiling(gpu, small).kernel != NULL);
        head_tiles_cover(gpu, 64, 768, few[1]);
    }
    step.M = 65;
    CHECK(head_tiling(gpus[0], step).kernel == NULL);
    head_operands_have_places<1>(), head_operands_have_places<2>();
    head_operands_have_places<3>(), head_operands_have_places<4>();
    sums_have_places<2, 3>(), sums_have_places<2, 4>(), sums_have_places<4, 3>(), sums_have_places<4, 4>();
    prompt_tiles_fill_rounds(gpus[0]);
    keys_are_ordered();
    return unit_end();
}
