// llmc/model/parameter_layout.h: where each parameter lies, whose shard it is in, and where weight decay acts.
#include "llmc/model/parameter_layout.h"

#include "dev/test/fixtures/unit.h"

GPT2_DECLARE_PARAMETERS(Parameters, char);

static GPT2Config sizes(int maxT, int V, int L, int NH, int C) {
    GPT2Config c = {maxT, V, gpt2_pad_vocab(V), L, NH, C, 0};
    return c;
}

static const int process_counts[] = {1, 2, 3, 4, 8, 7};
enum { COUNTS = sizeof(process_counts) / sizeof(process_counts[0]) };

// ----------------------------------------------------------------------------
// Element by element, of models that are small

typedef struct {
    ParameterLayout layout;
    unsigned char *seen, *decays, *in_shard; // (elements), (elements), (size, shard_elements)
    int ok;
} Cover;

// The tensor, and layer, of an element of the table's order
static int tensor_of(const ParameterLayout* l, size_t element, size_t* layer, size_t* index) {
    int i = 0;
    while (element >= l->table[i].count) { element -= l->table[i++].count; }
    size_t slice = l->table[i].rows * l->table[i].cols;
    *layer = element / slice, *index = element % slice;
    return i;
}

// One run: its elements are where the offsets say, nowhere else, and in one place of one shard.
static void cover_run(Cover* c, size_t first, LayoutRun run) {
    const ParameterLayout* l = &c->layout;
    for (size_t k = 0; k < run.count; k++) {
        size_t layer, index, offset = run.offset + k;
        int i = tensor_of(l, first + k, &layer, &index);
        c->ok = c->ok && offset < l->elements && offset == layout_offset(l, i, layer) + index;
        c->ok = c->ok && run.rank >= 0 && run.rank < l->size && run.shard_offset + k < l->shard_elements;
        if (!c->ok) { return; }
        c->ok = c->ok && !c->seen[offset] && (c->decays[offset] == 1) == (l->table[i].decay == 1);
        c->seen[offset] = 1;
        unsigned char* shard = &c->in_shard[(size_t)run.rank * l->shard_elements + run.shard_offset + k];
        c->ok = c->ok && !*shard;
        *shard = 1;
    }
}

// All parameters, by runs of at most `most` elements
static void cover_table(Cover* c, size_t most) {
    const ParameterLayout* l = &c->layout;
    size_t end = gpt2_parameters(c->layout.table, l->config);
    memset(c->seen, 0, l->elements);
    memset(c->in_shard, 0, (size_t)l->size * l->shard_elements);
    for (size_t i = 0; i < end && c->ok;) {
        LayoutRun run = layout_run(l, 0, i, end - i < most ? end - i : most);
        c->ok = c->ok && run.count > 0 && run.count <= most;
        if (c->ok) { cover_run(c, i, run); }
        i += run.count;
    }
}

// Buckets and shards cover the memory, each element once; decays[] becomes where weight decay acts.
static void cover_buckets(Cover* c) {
    const ParameterLayout* l = &c->layout;
    size_t begin, count, covered = 0;
    memset(c->decays, 0, l->elements);
    for (int i = 0; i < l->num_buckets; i++) {
        const LayoutBucket* b = &l->buckets[i];
        memset(c->decays + b->begin, 1, b->decay_end);
        size_t end = b->begin;
        for (int r = 0; r < l->size; r++) {
            layout_shard_part(l, i, r, &begin, &count);
            c->ok = c->ok && (count == 0 || begin == end) && count % LAYOUT_BLOCK == 0 && count <= b->per_rank;
            end += count;
            LayoutRun run = count > 0 ? layout_run_at(l, begin, count) : layout_run_at(l, b->begin, 1);
            c->ok =
                c->ok && (count == 0 || (run.rank == r && run.count == count && run.shard_offset == b->shard_begin));
        }
        c->ok = c->ok && end == b->begin + b->count;
        covered += b->count;
    }
    c->ok = c->ok && covered == l->elements;
}

// Second moments: those of all tensors but Muon's, in table order, each in one place of the whole memory and of one shard
static void cover_second(Cover* c) {
    const ParameterLayout* l = &c->layout;
    GPT2Parameter table[NUM_PARAMETER_TENSORS];
    size_t end = layout_second_moments(table, l->config, l->muon), first = 0;
    memset(c->seen, 0, l->elements);
    memset(c->in_shard, 0, (size_t)l->size * l->shard_elements);
    for (int t = 0; t < NUM_PARAMETER_TENSORS; t++) {
        for (size_t i = 0; i < table[t].count && c->ok;) {
            LayoutRun run = layout_run(l, 1, first + i, table[t].count - i < 777 ? table[t].count - i : 777);
            size_t slice = table[t].rows * table[t].cols;
            c->ok = c->ok && run.offset == layout_offset(l, t, i / slice) + i % slice && run.count <= 777;
            c->ok = c->ok && run.second + run.count <= l->second_elements &&
                    run.shard_offset + run.count <= l->shard_second_elements;
            for (size_t k = 0; k < run.count && c->ok; k++) {
                unsigned char* shard = &c->in_shard[(size_t)run.rank * l->shard_elements + run.shard_offset + k];
                c->ok = !c->seen[run.second + k] && !*shard;
                c->seen[run.second + k] = *shard = 1;
            }
            i += run.count;
        }
        first += table[t].count;
    }
    c->ok = c->ok && first == end;
}

static int every_element_has_one_place(GPT2Config config, int size, int muon) {
    Cover c = {.ok = 1};
    check(layout_create(&c.layout, config, size, muon));
    c.seen = (unsigned char*)malloc_check(c.layout.elements);
    c.decays = (unsigned char*)malloc_check(c.layout.elements);
    c.in_shard = (unsigned char*)malloc_check((size_t)size * c.layout.shard_elements);
    cover_buckets(&c);
    cover_table(&c, SIZE_MAX);
    cover_table(&c, 1000);
    cover_second(&c);
    free(c.seen);
    free(c.decays);
    free(c.in_shard);
    layout_free(&c.layout);
    return c.ok;
}

static void small_models_have_every_element_once(void) {
    const GPT2Config configs[] = {sizes(8, 100, 1, 1, 32), sizes(7, 300, 2, 3, 96), sizes(40, 1000, 5, 2, 64),
                                  sizes(64, 20000, 1, 2, 256)};
    for (int c = 0; c < 4; c++) {
        for (int i = 0; i < COUNTS; i++) {
            CHECK(every_element_has_one_place(configs[c], process_counts[i], 0));
            CHECK(every_element_has_one_place(configs[c], process_counts[i], 1));
        }
    }
}

// ----------------------------------------------------------------------------
// Sizes, also of models that no test can hold

// Buckets follow one another in the order of the forward pass, none too large; tensors are aligned, and lie in their layer.
static int buckets_are_in_order(const ParameterLayout* l) {
    int ok = l->num_buckets > 0 && l->elements % LAYOUT_BLOCK == 0 && l->shard_elements % LAYOUT_BLOCK == 0;
    int before = LAYOUT_WTE, first, count;
    size_t end = 0, shard = 0, largest = 0;
    for (int i = 0; i < l->num_buckets; i++) {
        const LayoutBucket* b = &l->buckets[i];
        ok = ok && b->begin == end && b->count > 0 && b->count % LAYOUT_BLOCK == 0 && b->count <= (size_t)1 << 25;
        ok = ok && b->decay_end <= b->count && b->per_rank % LAYOUT_BLOCK == 0 && b->shard_begin == shard;
        ok = ok && b->per_rank * (size_t)l->size >= b->count;
        int same = b->layer == before;
        ok = ok && (same || (before == LAYOUT_WTE && b->layer == LAYOUT_REST) ||
                    (before == LAYOUT_REST && b->layer == 0) || (before >= 0 && b->layer == before + 1));
        first = layout_buckets_of(l, b->layer, &count);
        ok = ok && first <= i && i < first + count && l->buckets[first].layer == b->layer;
        ok = ok && layout_bucket_of(l, b->begin) == i && layout_bucket_of(l, b->begin + b->count - 1) == i;
        // cut into equal ones, but for a block
        size_t one = l->buckets[first].count;
        ok = ok && b->count <= one + LAYOUT_BLOCK && one <= b->count + LAYOUT_BLOCK;
        before = b->layer, end += b->count, shard += b->per_rank;
        largest = b->count > largest ? b->count : largest;
    }
    return ok && before == l->config.num_layers - 1 && end == l->elements && shard == l->shard_elements;
}

static int tensors_are_aligned(const ParameterLayout* l) {
    int ok = 1, first, count;
    for (int i = 0; i < NUM_PARAMETER_TENSORS; i++) {
        const GPT2Parameter* t = &l->table[i];
        for (size_t layer = 0; layer < t->layers; layer++) {
            size_t at = layout_offset(l, i, layer), end = at + t->rows * t->cols;
            int group = strcmp(t->name, "wte") == 0                        ? LAYOUT_WTE
                        : strcmp(t->name, "wpe") == 0 || t->name[2] == 'f' ? LAYOUT_REST
                                                                           : (int)layer;
            first = layout_buckets_of(l, group, &count);
            const LayoutBucket *b = &l->buckets[first], *last = &l->buckets[first + count - 1];
            ok = ok && at % 64 == 0 && at >= b->begin && end <= last->begin + last->count;
        }
    }
    return ok;
}

// Decayed elements of the table, and of the buckets less the gaps between matrices, which end at a multiple of 64
static int decay_ends_with_the_matrices(const ParameterLayout* l) {
    size_t matrices = 0, gaps = 0, decayed = 0;
    for (int i = 0; i < NUM_PARAMETER_TENSORS; i++) {
        if (!l->table[i].decay) { continue; }
        matrices += l->table[i].count;
        gaps += l->table[i].layers * LAYOUT_ALIGNMENT;
    }
    for (int i = 0; i < l->num_buckets; i++) { decayed += l->buckets[i].decay_end; }
    return decayed >= matrices && decayed <= matrices + gaps;
}

static void models_of_all_sizes_have_a_layout(void) {
    const GPT2Config configs[] = {
        gpt2_config_from_descriptor("d12", 50257), gpt2_config_from_descriptor("d48", 50257),
        gpt2_config_from_descriptor("gpt2:l40c5120h40t4096", 50257), // 12.9 billion parameters
        sizes(8, 100, 1, 1, 32), gpt2_config_from_descriptor("gpt3:c12288", 50257)};
    for (int c = 0; c < 5; c++) {
        for (int i = 0; i < COUNTS; i++) {
            ParameterLayout l;
            check(layout_create(&l, configs[c], process_counts[i], 0));
            size_t n = gpt2_parameters(l.table, configs[c]), N = (size_t)l.size, buckets = (size_t)l.num_buckets;
            CHECK(buckets_are_in_order(&l));
            CHECK(tensors_are_aligned(&l));
            CHECK(decay_ends_with_the_matrices(&l));
            CHECK(l.elements >= n && l.elements - n <= (size_t)(configs[c].num_layers + 2) * (LAYOUT_BLOCK + 12 * 64));
            CHECK(l.shard_elements * N - l.elements < buckets * N * LAYOUT_BLOCK); // shards are equal, but for blocks
            layout_free(&l);
        }
    }
}

// 124M, by hand: 38,633,472 of wte are 4716 blocks in five buckets; a layer of 7,087,872 is 866 blocks.
static void the_layout_of_124M(void) {
    ParameterLayout l;
    int count;
    check(layout_create(&l, gpt2_config_from_descriptor("d12", 50257), 4, 0));
    CHECK(l.num_buckets == 5 + 1 + 12 && l.wte_buckets == 5 && l.rest_buckets == 1 && l.layer_buckets == 1);
    CHECK(l.layer_stride == 866 * 8192 && l.elements == (4716 + 97 + 12 * 866) * 8192u);
    CHECK(l.offset[PARAMETER_wpe] == 4716 * 8192 && l.offset[PARAMETER_lnfw] == 4716 * 8192 + 1024 * 768);
    size_t layers = (4716 + 97) * 8192u;
    CHECK(l.offset[PARAMETER_qkvw] == layers && l.offset[PARAMETER_attprojw] == layers + 3 * 768 * 768);
    CHECK(l.offset[PARAMETER_ln1w] == layers + 12 * 768 * 768 &&
          l.offset[PARAMETER_ln1b] == l.offset[PARAMETER_ln1w] + 768);
    const LayoutBucket* b = &l.buckets[layout_buckets_of(&l, 11, &count)];
    CHECK(count == 1 && b->begin == layers + 11 * 866 * 8192u && b->decay_end == 12 * 768 * 768);
    CHECK(b->per_rank == 217 * 8192); // 866 / 4, rounded up: the last process has 215
    size_t begin, part;
    layout_shard_part(&l, 17, 3, &begin, &part);
    CHECK(begin == b->begin + 3 * 217 * 8192 && part == 215 * 8192);
    b = &l.buckets[5];
    CHECK(b->layer == LAYOUT_REST && b->count == 97 * 8192 && b->decay_end == 1024 * 768);
    layout_free(&l);
}

// With Muon each matrix of a layer has one owner, and no process has more to compute than another by more than a matrix.
static int matrices_have_owners(const ParameterLayout* l) {
    double cost[8] = {0}, largest = 0.0, least, most;
    int ok = 1, matrices = 0;
    for (int i = 0; i < l->num_buckets; i++) {
        const LayoutBucket* b = &l->buckets[i];
        size_t begin, count;
        if (b->tensor < 0) { continue; }
        const GPT2Parameter* p = &l->table[b->tensor];
        size_t n = p->rows * p->cols;
        layout_shard_part(l, i, b->owner, &begin, &count);
        ok = ok && count == b->count && b->count - n < LAYOUT_BLOCK && b->decay_end == n && b->layer >= 0;
        ok = ok && begin == layout_offset(l, b->tensor, (size_t)b->layer) && begin % LAYOUT_BLOCK == 0;
        ok = ok && b->shard_begin >= l->shard_second_elements && b->shard_begin + count <= l->shard_elements;
        // in units of C^3 multiplications: 3 C x C; C x C; 4C x C: 2 * 4 + 1
        double units = b->tensor == (int)PARAMETER_qkvw ? 9.0 : b->tensor == (int)PARAMETER_attprojw ? 3.0 : 9.0;
        cost[b->owner] += units;
        largest = units > largest ? units : largest;
        matrices++;
    }
    least = most = cost[0];
    for (int r = 1; r < l->size; r++) {
        least = cost[r] < least ? cost[r] : least;
        most = cost[r] > most ? cost[r] : most;
    }
    return ok && matrices == 4 * l->config.num_layers && most - least <= largest;
}

static void matrices_are_whole_with_muon(void) {
    const GPT2Config configs[] = {gpt2_config_from_descriptor("d12", 50257), sizes(8, 100, 3, 1, 32),
                                  gpt2_config_from_descriptor("gpt2:l40c5120h40t4096", 50257)};
    for (int c = 0; c < 3; c++) {
        for (int i = 0; i < COUNTS; i++) {
            ParameterLayout l, adamw;
            check(layout_create(&l, configs[c], process_counts[i], 1));
            check(layout_create(&adamw, configs[c], process_counts[i], 0));
            CHECK(matrices_have_owners(&l));
            CHECK(tensors_are_aligned(&l));
            CHECK(adamw.second_elements == adamw.elements && adamw.shard_second_elements == adamw.shard_elements);
            for (int b = 0; b < adamw.num_buckets; b++) { CHECK(adamw.buckets[b].tensor < 0); }
            layout_free(&l);
            layout_free(&adamw);
        }
    }
    ParameterLayout
        l; // 124M: 12 layers of 72 + 3 * 72 + 2 * 288 blocks of matrices, and 2 of vectors, on two processes
    check(layout_create(&l, configs[0], 2, 1));
    CHECK(l.elements == (4716 + 97 + 12 * 866) * 8192u && l.second_elements == (4716 + 97 + 12 * 2) * 8192u);
    CHECK(l.layer_buckets == 5);
    layout_free(&l);
}

// The places do not depend on the number of processes.
static void places_are_the_same_for_all_numbers_of_processes(void) {
    GPT2Config config = gpt2_config_from_descriptor("gpt2:l6c384h6", 50257);
    ParameterLayout one;
    check(layout_create(&one, config, 1, 0));
    for (int i = 0; i < COUNTS; i++) {
        ParameterLayout l;
        check(layout_create(&l, config, process_counts[i], 0));
        CHECK(l.elements == one.elements && l.num_buckets == one.num_buckets && l.layer_stride == one.layer_stride);
        CHECK(memcmp(l.offset, one.offset, sizeof(one.offset)) == 0);
        for (int b = 0; b < one.num_buckets; b++) {
            CHECK(l.buckets[b].begin == one.buckets[b].begin && l.buckets[b].decay_end == one.buckets[b].decay_end);
        }
        layout_free(&l);
    }
    CHECK(one.shard_elements == one.elements); // and a process alone has all, in its place
    LayoutRun run = layout_run(&one, 0, 123456, 7);
    CHECK(run.count == 7 && run.rank == 0 && run.offset == 123456 && run.shard_offset == run.offset);
    layout_free(&one);
}

static void pointers_lead_to_the_tensors(void) {
    ParameterLayout l;
    Parameters p;
    check(layout_create(&l, sizes(7, 300, 2, 3, 96), 2, 0));
    char* memory = (char*)malloc_check(l.elements * 2);
    layout_point(&p, &l, memory, 2, 1);
    CHECK(p.wte == memory && p.wpe == memory + 2 * l.offset[PARAMETER_wpe]);
    CHECK(p.qkvw == memory + 2 * (l.offset[PARAMETER_qkvw] + l.layer_stride));
    CHECK(p.fcprojb == memory + 2 * (l.offset[PARAMETER_fcprojb] + l.layer_stride));
    CHECK(p.lnfb == memory + 2 * l.offset[PARAMETER_lnfb]);
    free(memory);
    layout_free(&l);
}

static void what_has_no_layout_is_refused(void) {
    ParameterLayout l;
    status_clear();
    CHECK(layout_create(&l, sizes(8, 100, 1, 1, 32), 0, 0) != STATUS_OK && l.buckets == NULL);
    status_clear();
    CHECK(layout_create(&l, sizes(8, 100, INT_MAX, 1, INT_MAX), 1, 0) != STATUS_OK && l.buckets == NULL);
    status_clear();
}

int main(void) {
    small_models_have_every_element_once();
    models_of_all_sizes_have_a_layout();
    the_layout_of_124M();
    matrices_are_whole_with_muon();
    places_are_the_same_for_all_numbers_of_processes();
    pointers_lead_to_the_tensors();
    what_has_no_layout_is_refused();
    return unit_end();
}
