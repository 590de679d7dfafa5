/*
The NVTX range (nvtx.cuh) that this thread began last. Kernels run asynchronously, so their errors are reported by a later,
unrelated call: the range says in which part of the step that call was.
*/
#ifndef LLMC_CUDA_LAST_RANGE_CUH
#define LLMC_CUDA_LAST_RANGE_CUH

#include <stdio.h>

struct LastRange {
    const char* name; // NULL before the first; it must last, as string literals do
    int number;       // such as a layer's; -1 for none
};
inline thread_local LastRange last_range = {NULL, -1};

// "backward layer 3", written to text; "" before the first range. Returns text.
static inline const char* last_range_name(char* text, size_t size) {
    text[0] = '\0';
    if (last_range.name != NULL && last_range.number >= 0) {
        snprintf(text, size, "%s %d", last_range.name, last_range.number);
    } else if (last_range.name != NULL) {
        snprintf(text, size, "%s", last_range.name);
    }
    return text;
}

#endif
