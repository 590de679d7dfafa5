/*
Random numbers: the Mersenne Twister MT19937 (Matsumoto and Nishimura, ACM TOMACS 8(1), 1998) and the distributions that
GPT-2 needs, drawn as PyTorch's CPU generator draws them. torch.manual_seed(s) and manual_seed(&rng, s) then give the
same integers and the same uniform floats, and the same normals up to the rounding of log, sin and cos:

    mt19937_state rng;
    manual_seed(&rng, 137);              torch.manual_seed(137)
    normal_(w, n, 0.0f, 0.02f, &rng);    w.normal_(0.0, 0.02)

The struct is written as it is into loader states of training runs (dataloader.h): its layout is part of that format.
*/
#ifndef LLMC_BASE_RAND_H
#define LLMC_BASE_RAND_H

#include <math.h>
#include <stddef.h>

enum { MT_WORDS = 624, MT_SHIFT = 397 }; // degree of the recurrence; distance of its middle word
#define MT_MATRIX_A 0x9908b0dfu

typedef struct {
    unsigned long long seed_;
    int left_;          // words left in state_ until it is renewed, plus one
    unsigned int next_; // index of the next word
    unsigned int state_[MT_WORDS];
    unsigned int MATRIX_A[2]; // {0, MT_MATRIX_A}; kept for the layout
} mt19937_state;

static inline void manual_seed(mt19937_state* s, unsigned int seed) {
    s->seed_ = seed;
    s->left_ = 1; // the first draw renews the state
    s->next_ = 0;
    s->state_[0] = seed;
    for (unsigned int j = 1; j < MT_WORDS; j++) {
        unsigned int before = s->state_[j - 1];
        s->state_[j] = 1812433253u * (before ^ (before >> 30)) + j;
    }
    s->MATRIX_A[0] = 0;
    s->MATRIX_A[1] = MT_MATRIX_A;
}

// 1 if the counters are ones that manual_seed and draws can produce: a state from a file must not index past its end.
static inline int mt19937_valid(const mt19937_state* s) {
    if (s->left_ == 1 && s->next_ == 0) { return 1; }
    return s->next_ >= 1 && s->next_ <= MT_WORDS && s->left_ == MT_WORDS + 1 - (int)s->next_;
}

// x[j] <- x[j+397] ^ A (upper bit of x[j] | lower 31 bits of x[j+1]), indices modulo 624
static inline void mt19937_renew(mt19937_state* s) {
    unsigned int* x = s->state_; // (624)
    for (int j = 0; j < MT_WORDS; j++) {
        unsigned int y = (x[j] & 0x80000000u) | (x[(j + 1) % MT_WORDS] & 0x7fffffffu);
        x[j] = x[(j + MT_SHIFT) % MT_WORDS] ^ (y >> 1) ^ ((y & 1u) ? MT_MATRIX_A : 0u);
    }
    s->left_ = MT_WORDS;
    s->next_ = 0;
}

static inline unsigned int randint32(mt19937_state* s) {
    if (--s->left_ <= 0) { mt19937_renew(s); }
    unsigned int y = s->state_[s->next_++];
    y ^= y >> 11; // tempering
    y ^= (y << 7) & 0x9d2c5680u;
    y ^= (y << 15) & 0xefc60000u;
    y ^= y >> 18;
    return y;
}

// Uniform in [0, 1): as many random bits as the type has digits, from the low end of the word
static inline float randfloat32(mt19937_state* s) {
    return (float)(randint32(s) & 0xffffffu) * (1.0f / 16777216.0f); // 2^-24
}

// data (n) <- uniform in [from, to)
static inline void uniform_(float* data, size_t n, float from, float to, mt19937_state* s) {
    for (size_t i = 0; i < n; i++) { data[i] = randfloat32(s) * (to - from) + from; }
}

// 16 uniforms -> 16 normals in place (Box and Muller 1958): x[i] gives the radius, x[i+8] the angle.
// The 1e-12 is for log's argument; at 2^-24, the smallest argument there is, it still changes the rounding.
static inline void box_muller_16(float* x, float mean, float std) {
    for (int i = 0; i < 8; i++) {
        float radius = sqrtf(-2.0f * logf((1.0f - x[i]) + 1e-12f));
        float angle = (float)(6.283185307179586476925286766559 * (double)x[i + 8]);
        x[i] = radius * cosf(angle) * std + mean;
        x[i + 8] = radius * sinf(angle) * std + mean;
    }
}

// data (n >= 16) <- normal with the given mean and standard deviation. A float each, transformed in sixteens; where 16 does not
// divide n, the last 16 elements are drawn anew. (PyTorch draws fewer than 16 in another way: no tensor is as small.)
static inline void normal_(float* data, size_t n, float mean, float std, mt19937_state* s) {
    uniform_(data, n, 0.0f, 1.0f, s);
    for (size_t i = 0; i + 16 <= n; i += 16) { box_muller_16(data + i, mean, std); }
    if (n % 16 != 0) {
        uniform_(data + n - 16, 16, 0.0f, 1.0f, s);
        box_muller_16(data + n - 16, mean, std);
    }
}

// data (n) <- 0, 1, ..., n-1
static inline void init_identity_permutation(int* data, int n) {
    for (int i = 0; i < n; i++) { data[i] = i; }
}

// Shuffles data (n) in place (Fisher and Yates, from the end)
static inline void random_permutation(int* data, int n, mt19937_state* s) {
    for (int i = n - 1; i > 0; i--) {
        int j = (int)(randint32(s) % (unsigned int)(i + 1));
        int swapped = data[i];
        data[i] = data[j];
        data[j] = swapped;
    }
}

#endif
