// How decode is cut up, run through without a GPU: the contract's sizes and addresses (attention_decode.h), which lane of split
// has which keys and channels, where chunks leave their results, and in which order they are merged.
#define DECODE_KERNELS
#include "dev/cuda/decode/attention_decode_naive.cu"
#include "dev/cuda/decode/decode.cuh"
#include "dev/test/fixtures/unit.h"

#include <string>
#include <vector>

// Every channel of every key before `length` is loaded by one lane, in one chunk of the head, and no other key is. A warp's
// load of a step covers keys that follow each other, without a gap.
template <class C> static bool every_key_once(int length) {
    std::vector<int> loads((size_t)(length + 1) * C::HS);
    for (int c = 0; c < C::num_chunks(length + 1); c++) {
        for (int warp = 0; warp < C::warps; warp++) {
            for (int step = 0; step < C::steps; step++) {
                for (int lane = 0; lane < 32; lane++) {
                    const int j = C::key(c, warp, lane, step);
                    if (C::key(c, warp, lane, 0) * C::HS + C::step_offset(step) != j * C::HS) { return false; }
                    if (j != C::key(c, warp, 0, step) + lane / C::lanes) { return false; }
                    if (j / C::chunk != c) { return false; }
                    if (j >= length) { continue; }
                    for (int n = 0; n < C::vectors; n++) {
                        if (C::channel(lane, n) != C::channel(lane, 0) + C::vector_offset(n)) { return false; }
                        for (int e = 0; e < x128::size; e++) { loads[j * C::HS + C::channel(lane, n) + e]++; }
                    }
                }
            }
        }
    }
    for (int n = 0; n < (length + 1) * C::HS; n++) {
        if (loads[n] != (n < length * C::HS)) { return false; }
    }
    return true;
}

// Each 16 bytes of a warp's keys, and of its values, has a place of its own in their tile.
template <class C> static bool every_piece_has_a_place() {
    typedef split::Tile<C> Tile;
    std::vector<int> keys((size_t)Tile::bytes / 16), values((size_t)Tile::bytes / 16);
    for (int k = 0; k < C::warp_keys; k++) {
        for (int p = 0; p < Tile::pieces; p++) {
            const int places[] = {Tile::key_place(k, p), Tile::value_place(k, p)};
            for (int place : places) {
                if (place < 0 || place >= Tile::bytes || place % 16 != 0) { return false; }
            }
            keys[places[0] / 16]++, values[places[1] / 16]++;
        }
    }
    for (size_t n = 0; n < keys.size(); n++) {
        if (keys[n] != 1 || values[n] != 1) { return false; }
    }
    return true;
}

// Of the chunks of a head that has more than one, each channel is read by one thread, its part's chunks in rising order; all
// parts are rows of the shared memory; and the new token's chunk is the last, so that every chunk before it is there.
template <class C> static bool every_chunk_once(int length) {
    const int chunks = C::num_chunks(length + 1);
    if (length / C::chunk != chunks - 1) { return false; }
    std::vector<int> reads((size_t)chunks * C::HS);
    for (int thread = 0; thread < C::threads; thread++) {
        if (C::part(thread) >= C::parts) { continue; }
        if (C::part(thread) >= split::Shared<C>::rows || C::part_channel(thread) % 4 != 0) { return false; }
        for (int c = C::part(thread); c < chunks; c += C::parts) {
            for (int e = 0; e < 4; e++) { reads[c * C::HS + C::part_channel(thread) + e]++; }
        }
    }
    for (int n : reads) {
        if (n != 1) { return false; }
    }
    return C::warps + 1 <= split::Shared<C>::rows;
}

// Counters, statistics and O lie one behind the other, aligned as they are read, and end with the scratch.
template <class C> static bool scratch_is_whole(int B, int T, int NH) {
    char* const base = (char*)1024;
    const split::Partials p = split::partials<C>(base, B, T, NH);
    const int64_t chunks = (int64_t)B * NH * C::num_chunks(T);
    const char* end = (char*)(p.O + chunks * C::HS);
    return (char*)p.counters == base && (char*)(p.counters + (int64_t)B * NH) <= (char*)p.statistics &&
           (char*)(p.statistics + chunks) <= (char*)p.O && (size_t)p.statistics % 256 == 0 && (size_t)p.O % 256 == 0 &&
           end == base + split::decode_scratch_bytes<C>(B, T, NH, C::HS);
}

template <class C> static void test_configuration() {
    for (int length : {0, 1, C::chunk - 1, C::chunk, C::chunk + 1, 3 * C::chunk - 1, 5 * C::chunk, 17 * C::chunk + 3}) {
        if (!CHECK(every_key_once<C>(length)) || !CHECK(every_chunk_once<C>(length))) {
            printf("    HS %d, chunk %d, length %d\n", C::HS, C::chunk, length);
        }
    }
    CHECK(every_piece_has_a_place<C>());
    for (int T : {1, C::chunk, C::chunk + 1, 16384}) {
        CHECK(scratch_is_whole<C>(1, T, 1) && scratch_is_whole<C>(3, T, 5) && scratch_is_whole<C>(256, T, 25));
    }
    const double most = 65535.0 * 65535 * C::num_chunks(1 << 30) * (C::HS * 4 + 8); // of the contract
    const size_t bytes = split::decode_scratch_bytes<C>(65535, 1 << 30, 65535, C::HS);
    CHECK(most > 0x1p63 ? bytes == SIZE_MAX : (double)bytes >= most * (1 - 1e-9));
    CHECK(split::shared_bytes<C>() <= 99 << 10); // of every GPU from sm_80 on
}

static void test_contract() {
    CHECK(attention_decode_unsupported(1, 1, 1, 32, 1) == nullptr);
    CHECK(attention_decode_unsupported(256, 16384, 25, 64, 1000) == nullptr);
    for (int bad : {0, -1, INT_MIN}) {
        CHECK(attention_decode_unsupported(bad, 1, 1, 64, 1) && attention_decode_unsupported(1, bad, 1, 64, 1));
        CHECK(attention_decode_unsupported(1, 1, bad, 64, 1) && attention_decode_unsupported(1, 1, 1, 64, bad));
        CHECK(attention_decode_unsupported(1, 1, 1, bad, 1));
    }
    CHECK(attention_decode_unsupported(65536, 1, 1, 64, 1) && attention_decode_unsupported(1, 1, 65536, 64, 1));
    CHECK(attention_decode_unsupported(1, INT_MAX, 1, 64, 1) &&
          attention_decode_unsupported(INT_MAX, INT_MAX, INT_MAX, 64, 1));
    CHECK(attention_decode_unsupported(1, 8, 1, 64, 9) && attention_decode_unsupported(1, 8, 1, 65, 8));

    // (B,NH,T,HS) and (B,3,NH,HS), past 2^31
    CHECK(cache_offset(255, 24, 16384, 25, 64) == (((int64_t)255 * 25 + 24) * 16384) * 64);
    CHECK(cache_offset(0, 1, 7, 3, 32) == 7 * 32 && cache_offset(1, 0, 7, 3, 32) == 3 * 7 * 32);
    CHECK(new_token_offset(0, 1, 0, 3, 32) == 3 * 32 && new_token_offset(0, 2, 1, 3, 32) == (2 * 3 + 1) * 32);
    CHECK(new_token_offset(60000, 0, 0, 60000, 128) == (int64_t)60000 * 3 * 60000 * 128);
    CHECK(decode_counter_bytes(1, 1) == 256 && decode_counter_bytes(64, 1) == 256 &&
          decode_counter_bytes(13, 5) == 512);
}

// decode.cuh serves every head size, with one configuration whatever B and T are, and refuses with a message.
static void test_choice() {
    for (int HS : {32, 64, 96, 128}) {
        const AttentionDecodeConfig* config = attention_decode_choice(1, 1, 1, HS);
        CHECK(config && config->HS == HS && config == attention_decode_choice(256, 16384, 25, HS));
        CHECK(attention_decode_scratch_bytes(64, 1024, 12, HS) == config->scratch_bytes(64, 1024, 12, HS));
        CHECK(naive::decode_configs[HS / 32 - 1].HS == HS);
        CHECK(naive::decode_configs[0].scratch_bytes(64, 1024, 12, HS) == decode_counter_bytes(64, 12));
    }
    CHECK(status_now() == STATUS_OK);
    CHECK(attention_decode_scratch_bytes(1, 1, 1, 48) == 0 && strstr(status_message(), "head size") != nullptr);
    status_clear();

    floatX* const aligned = (floatX*)256;
    attention_decode(aligned, aligned, aligned, aligned, nullptr, aligned, 2, 8, 3, 64, 9, 0);
    CHECK(strstr(status_message(), "max_length 9") != nullptr);
    status_clear();
    attention_decode(aligned, aligned, aligned, (floatX*)264, nullptr, aligned, 2, 8, 3, 64, 8, 0);
    CHECK(strstr(status_message(), "aligned") != nullptr);
    status_clear();
    attention_decode(aligned, aligned, aligned, aligned, nullptr, (void*)128, 2, 8, 3, 64, 8, 0);
    CHECK(strstr(status_message(), "aligned") != nullptr);
    status_clear();
}

int main(void) {
    test_contract();
    test_choice();
    test_configuration<split::Serving<32>::Tiles>();
    test_configuration<split::Serving<64>::Tiles>();
    test_configuration<split::Serving<96>::Tiles>();
    test_configuration<split::Serving<128>::Tiles>();
    test_configuration<split::DecodeTiles<64, 2, 4>>();
    test_configuration<split::DecodeTiles<32, 4, 4>>();
    return unit_end();
}
