/*
The variants of an operation that a program holds, as attention.cuh, matmul.cuh and decode.cuh list them.

Variants are compiled where one of these is included; with -DKERNELS_APART the program is linked with the objects of
attention.cu, matmul.cu and decode.cu instead, which programs of one precision share: their kernels compile once.
*/
#ifndef VARIANTS_CUH
#define VARIANTS_CUH

#include <stddef.h>

template <class Variant> struct Variants {
    const Variant* first;
    size_t count;

    template <size_t N> constexpr Variants(const Variant (&table)[N]) : first(table), count(N) {}
    const Variant* begin() const { return first; }
    const Variant* end() const { return first + count; }
};

// Whether two names are equal; for checks at compile time.
constexpr bool same_text(const char* a, const char* b) {
    while (*a && *a == *b) { a++, b++; }
    return *a == *b;
}

#endif
