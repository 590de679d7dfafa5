/*
The variants of an operation that a program holds: the Makefile lists them, by their files and the rules of *_choice.h.

Their kernels are compiled once for all programs of a precision, which are linked with the objects of attention.cu, matmul.cu
and decode.cu.
*/
#ifndef VARIANTS_CUH
#define VARIANTS_CUH

#include <stddef.h>
#include <string.h>

#include <string>

template <class Variant> struct Variants {
    const Variant* first;
    size_t count;

    template <size_t N> constexpr Variants(const Variant (&table)[N]) : first(table), count(N) {}
    const Variant* begin() const { return first; }
    const Variant* end() const { return first + count; }
};

// A variant's name, which is its file's after `operation`: "flash2" for dev/cuda/attention_forward_flash2.cu and
// "attention_forward_". The mains give it __BASE_FILE__, so that a copy of a file is another variant.
static inline std::string variant_of(const char* file, const char* operation) {
    std::string name = file;
    name.erase(0, name.rfind('/') + 1);
    name.erase(name.rfind(".cu"));
    return name.compare(0, strlen(operation), operation) == 0 ? name.substr(strlen(operation)) : name;
}

// Whether two names are equal; for checks at compile time.
constexpr bool same_text(const char* a, const char* b) {
    while (*a && *a == *b) { a++, b++; }
    return *a == *b;
}

#endif
