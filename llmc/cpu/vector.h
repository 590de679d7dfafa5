/*
What the CPU kernels are built from: a vector of floats as wide as the machine's registers, its exponential, the register tile,
a small GEMM whose result is held in registers, and scratch memory. GCC and clang vector extensions only: the same source
compiles to AVX-512, AVX, SSE and NEON.

The code relies on NaN staying NaN and on sums being added in the order written; it refuses to be compiled with
-ffast-math. -ffp-contract=fast (fused multiply-add) is wanted: -std=c11 switches it off in GCC.
*/
#ifndef LLMC_CPU_VECTOR_H
#define LLMC_CPU_VECTOR_H

#include <math.h>
#include <pthread.h>

#ifdef _OPENMP
#include <omp.h>
#endif

#include "llmc/base/utils.h"

#ifdef __FAST_MATH__
#error "compile without -ffast-math: NaN must stay NaN, and vec_exp() rounds by adding and subtracting a constant"
#endif

// LANES: floats of a vector. TILE_ROWS x TILE_VECTORS: accumulators of the register tile; with a row of TILE_VECTORS and a
// scalar they fill the registers.
#if defined(__AVX512F__)
#define LANES 16
#define TILE_ROWS 8 // of 32 registers
#elif defined(__AVX__)
#define LANES 8
#define TILE_ROWS 4 // of 16
#elif defined(__aarch64__)
#define LANES 4
#define TILE_ROWS 8 // of 32
#else
#define LANES 4
#define TILE_ROWS 4 // of 16
#endif
#define TILE_VECTORS 3

typedef float vec __attribute__((vector_size(LANES * 4), may_alias));
typedef uint32_t vec_bits __attribute__((vector_size(LANES * 4), may_alias));
typedef float vec_unaligned __attribute__((vector_size(LANES * 4), aligned(4), may_alias));

#define ALWAYS_INLINE static inline __attribute__((always_inline))
#define ALIGNED __attribute__((aligned(64)))

static inline int cpu_threads(void) {
#ifdef _OPENMP
    return omp_get_max_threads();
#else
    return 1;
#endif
}

// ----------------------------------------------------------------------------
// Loads, stores, selection

ALWAYS_INLINE vec vec_load(const float* p) { return *(const vec_unaligned*)p; }
ALWAYS_INLINE void vec_store(float* p, vec x) { *(vec_unaligned*)p = x; }
ALWAYS_INLINE vec vec_set(float x) { return x - (vec){0}; } // x in every lane

// The first n floats of p, and `fill` in the other lanes, if there are any.
ALWAYS_INLINE vec vec_load_first(const float* p, size_t n, float fill) {
    if (n >= LANES) { return vec_load(p); }
    vec x = vec_set(fill);
    memcpy(&x, p, n * sizeof(float));
    return x;
}
ALWAYS_INLINE void vec_store_first(float* p, vec x, size_t n) {
    if (n >= LANES) {
        vec_store(p, x);
    } else {
        memcpy(p, &x, n * sizeof(float));
    }
}

// a in the lanes where the mask is all ones, b where it is zero. Comparisons of vectors give such masks.
ALWAYS_INLINE vec vec_select(vec_bits mask, vec a, vec b) {
    return (vec)((mask & (vec_bits)a) | (~mask & (vec_bits)b));
}
ALWAYS_INLINE vec vec_max(vec a, vec b) { return vec_select((vec_bits)(a > b), a, b); }

// Sum and maximum of the lanes, in a fixed order.
static inline float vec_sum(vec x) {
    float sum = 0.0f;
    for (int i = 0; i < LANES; i++) { sum += x[i]; }
    return sum;
}
static inline float vec_largest(vec x) {
    float largest = x[0];
    for (int i = 1; i < LANES; i++) { largest = x[i] > largest ? x[i] : largest; }
    return largest;
}

// Transposes a square of LANES x LANES: for w = LANES/2 .. 1, rows i and i + w swap the blocks of w lanes that are
// off the diagonal. In a pair (upper, lower) lane j of upper is numbered j, of lower LANES + j.
#define TO_UPPER_(w, j) (((j) & (w)) ? LANES + (j) - (w) : (j))
#define TO_LOWER_(w, j) (((j) & (w)) ? LANES + (j) : (j) + (w))
#define FOUR_LANES_(f, w, j) f(w, j), f(w, j + 1), f(w, j + 2), f(w, j + 3)
#if LANES == 16
#define ALL_LANES_(f, w) FOUR_LANES_(f, w, 0), FOUR_LANES_(f, w, 4), FOUR_LANES_(f, w, 8), FOUR_LANES_(f, w, 12)
#elif LANES == 8
#define ALL_LANES_(f, w) FOUR_LANES_(f, w, 0), FOUR_LANES_(f, w, 4)
#else
#define ALL_LANES_(f, w) FOUR_LANES_(f, w, 0)
#endif
#ifdef __clang__
#define SHUFFLE_(upper, lower, ...) __builtin_shufflevector(upper, lower, __VA_ARGS__)
#else
#define SHUFFLE_(upper, lower, ...) __builtin_shuffle(upper, lower, (vec_bits){__VA_ARGS__})
#endif
#define SWAP_BLOCKS_(row, w)                                                                                           \
    for (int i = 0; i < LANES; i++) {                                                                                  \
        if (i & (w)) { continue; }                                                                                     \
        vec upper = row[i], lower = row[i + (w)];                                                                      \
        row[i] = SHUFFLE_(upper, lower, ALL_LANES_(TO_UPPER_, w));                                                     \
        row[i + (w)] = SHUFFLE_(upper, lower, ALL_LANES_(TO_LOWER_, w));                                               \
    }
ALWAYS_INLINE void vec_transpose(vec row[LANES]) {
#if LANES > 8
#pragma GCC unroll 16
    SWAP_BLOCKS_(row, 8)
#endif
#if LANES > 4
#pragma GCC unroll 16
    SWAP_BLOCKS_(row, 4)
#endif
#pragma GCC unroll 16
    SWAP_BLOCKS_(row, 2)
#pragma GCC unroll 16
    SWAP_BLOCKS_(row, 1)
}

// The sum of the lanes, by halves: lanes i and i + LANES/2 first, so that a few shuffles do it.
#define ROTATED_(w, j) (((j) + (w)) % LANES)
ALWAYS_INLINE float vec_sum_halves(vec x) {
#if LANES > 8
    x += SHUFFLE_(x, x, ALL_LANES_(ROTATED_, 8));
#endif
#if LANES > 4
    x += SHUFFLE_(x, x, ALL_LANES_(ROTATED_, 4));
#endif
    x += SHUFFLE_(x, x, ALL_LANES_(ROTATED_, 2));
    return x[0] + x[1];
}

// ----------------------------------------------------------------------------
// exp(x) to about one unit in the last place; 0 below -87, exp(88) above 88; NaN for NaN.
//
//     exp(x) = 2^n exp(r),   n = round(x / ln 2),   |r| <= ln(2)/2
//
// exp(r) is its Taylor series up to r^7: the next term is below .3466^8/8! = 5e-9, a tenth of the rounding error 2^-24.
ALWAYS_INLINE vec vec_exp(vec x) {
    const float log2_e = 1.44269504f, ln2_high = 0.693359375f, ln2_low = -2.12194440e-4f;
    const float round_magic = 12582912.0f; // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
    vec_bits underflow = (vec_bits)(x < -87.0f);
    x = vec_select((vec_bits)(x > 88.0f), vec_set(88.0f), x);
    vec shifted = x * log2_e + round_magic;
    vec n = shifted - round_magic;
    vec r = x - n * ln2_high;
    r = r - n * ln2_low;
    vec p = r * (1.0f / 5040) + 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    vec_bits y = (vec_bits)p + ((vec_bits)shifted << 23); // times 2^n: n is added to the exponent
    return (vec)(y & ~underflow);
}

// ----------------------------------------------------------------------------
// The register tile
//
//     c(r,:) = base(r,:) + bias(:) + sum_k a(r,k) b(k,:)       r < rows <= TILE_ROWS, `vectors` vectors wide
//
// a(r,k) = a[r * a_row + k * a_k], so that either order of a serves; b has its rows ldb apart, c and base ldc. base and
// bias may be NULL, and base may be c. The sums stay in registers over the whole of k: each step loads one row of b and
// a scalar per row of a for TILE_ROWS * vectors multiply-adds.
ALWAYS_INLINE void register_tile_(float* c, const float* base, size_t ldc, const float* bias, const float* a,
                                  size_t a_row, size_t a_k, const float* b, size_t ldb, size_t K, const int rows,
                                  const int vectors) {
    vec sum[TILE_ROWS][TILE_VECTORS];
    const float* a_of[TILE_ROWS];
#pragma GCC unroll 8
    for (int r = 0; r < TILE_ROWS; r++) {
        a_of[r] = a + (size_t)(r < rows ? r : rows - 1) * a_row; // rows past the end repeat the last one
#pragma GCC unroll 3
        for (int v = 0; v < vectors; v++) { sum[r][v] = (vec){0}; }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) { // c is loaded into the cache while the sums are computed
#pragma GCC unroll 3
        for (int v = 0; v < vectors; v++) { __builtin_prefetch(c + (size_t)r * ldc + v * LANES, 1); }
    }
    for (size_t k = 0; k < K; k++) {
        vec b_k[TILE_VECTORS];
#pragma GCC unroll 3
        for (int v = 0; v < vectors; v++) { b_k[v] = vec_load(b + k * ldb + (size_t)v * LANES); }
#pragma GCC unroll 8
        for (int r = 0; r < TILE_ROWS; r++) {
            float a_rk = a_of[r][k * a_k];
#pragma GCC unroll 3
            for (int v = 0; v < vectors; v++) { sum[r][v] += a_rk * b_k[v]; }
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < TILE_ROWS; r++) {
        if (r >= rows) { break; }
#pragma GCC unroll 3
        for (int v = 0; v < vectors; v++) {
            size_t column = (size_t)v * LANES, at = (size_t)r * ldc + column;
            if (base != NULL) { sum[r][v] += vec_load(base + at); }
            if (bias != NULL) { sum[r][v] += vec_load(bias + column); }
            vec_store(c + at, sum[r][v]);
        }
    }
}

// The same; a full tile takes the path on which `rows` is a constant.
ALWAYS_INLINE void register_tile(float* c, const float* base, size_t ldc, const float* bias, const float* a,
                                 size_t a_row, size_t a_k, const float* b, size_t ldb, size_t K, int rows,
                                 const int vectors) {
    if (rows >= TILE_ROWS) {
        register_tile_(c, base, ldc, bias, a, a_row, a_k, b, ldb, K, TILE_ROWS, vectors);
    } else {
        register_tile_(c, base, ldc, bias, a, a_row, a_k, b, ldb, K, rows, vectors);
    }
}

// ----------------------------------------------------------------------------
// Scratch memory of the kernels: one block a thread, from the heap. Large arrays on the stack, or in static thread-local
// memory, which is taken from the stack, overflow where stacks are small (ulimit -s, OMP_STACKSIZE), and a frame that is larger
// than the guard page may then write to other memory without a crash.
//
// A kernel's scratch holds nothing from one call to the next, and kernels that use it do not call each other.

enum { CPU_SCRATCH_FLOATS = 1 << 18 }; // 1 MiB, of which only what a kernel touches takes memory

static _Thread_local float* cpu_scratch_;
static pthread_key_t cpu_scratch_key_; // frees a thread's block when the thread ends
static pthread_once_t cpu_scratch_once_ = PTHREAD_ONCE_INIT;

static inline void cpu_scratch_create_key_(void) {
    if (pthread_key_create(&cpu_scratch_key_, free) != 0) { fatal("no key for thread-local memory"); }
}

// This thread's block, aligned to 64 bytes; NULL if there is no memory.
static inline float* cpu_scratch_get_(void) {
    if (cpu_scratch_ == NULL) {
        pthread_once(&cpu_scratch_once_, cpu_scratch_create_key_);
        cpu_scratch_ = (float*)aligned_alloc(64, CPU_SCRATCH_FLOATS * sizeof(float));
        pthread_setspecific(cpu_scratch_key_, cpu_scratch_);
    }
    return cpu_scratch_;
}

// The same, for kernels: ends the program where cpu_threads_prepare was not called and there is no memory.
static inline float* cpu_scratch(void) {
    float* scratch = cpu_scratch_get_();
    if (scratch == NULL) { fatal("no memory for a thread's scratch, %zu bytes", CPU_SCRATCH_FLOATS * sizeof(float)); }
    return scratch;
}

// Allocates the scratch of all threads that will run kernels. An error if there is no memory.
static inline Status cpu_threads_prepare(void) {
    int missing = 0;
#pragma omp parallel reduction(| : missing)
    missing = cpu_scratch_get_() == NULL;
    return missing ? status_fail("no memory for scratch of %d KiB a thread", CPU_SCRATCH_FLOATS / 256) : STATUS_OK;
}

#endif
