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
    constexpr const Variant* begin() const { return first; }
    constexpr const Variant* end() const { return first + count; }
};

// A variant: its name and its table of configurations
template <class Config_> struct Variant : Variants<Config_> {
    typedef Config_ Config;
    const char* name;

    template <size_t N> constexpr Variant(const char* name, const Config (&table)[N])
        : Variants<Config>(table), name(name) {}
};

// A variant's name, which is its file's after `operation`: "flash2" for dev/cuda/attention_forward_flash2.cu and
// "attention_forward_"
static inline std::string variant_of(const char* file, const char* operation) {
    std::string name = file;
    name.erase(0, name.rfind('/') + 1);
    name.erase(name.rfind(".cu"));
    return name.compare(0, strlen(operation), operation) == 0 ? name.substr(strlen(operation)) : name;
}

// The main() of a variant. Each bench.cu defines it for its configurations and is compiled once for each precision, into
// build/<room>_bench_<precision>.o, so that a variant compiles its own kernels alone. compute_capability: the least that the
// variant runs on, such as 80; 0 if any will do. __BASE_FILE__: a copy of a file is another variant.
template <class Config> int variant_main(int argc, char** argv, const Variant<Config>& variant, int compute_capability);
template <class Config, size_t N>
static inline int variant_main(int argc, char** argv, const Config (&table)[N], int compute_capability = 0) {
    const std::string name = variant_of(__BASE_FILE__, Config::operation);
    return variant_main(argc, argv, Variant<Config>(name.c_str(), table), compute_capability);
}

// Whether two names are equal; for checks at compile time.
constexpr bool same_text(const char* a, const char* b) {
    while (*a && *a == *b) { a++, b++; }
    return *a == *b;
}

#endif
