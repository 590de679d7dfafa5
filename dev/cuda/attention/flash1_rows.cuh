/*
The tiles of flash1 in shared memory: rows of HS floats, padded by one, so that the elements of a column are in different banks.
*/
#ifndef FLASH1_ROWS_CUH
#define FLASH1_ROWS_CUH

#include "attention.h"

namespace flash1 {

// Loads `rows` rows of HS numbers, `stride` numbers from row to row, into a tile; rows from `limit` on become zero.
__device__ inline void load_rows(float* tile, const floatX* from, int64_t stride, int rows, int limit, int HS) {
    for (int n = threadIdx.x; n < rows * HS; n += blockDim.x) {
        const int row = n / HS, d = n % HS;
        tile[row * (HS + 1) + d] = row < limit ? (float)from[row * stride + d] : 0.0f;
    }
}
// Stores the rows of a tile below `limit`, times `scale`, to rows that are `stride` numbers apart.
__device__ inline void store_rows(floatX* to, const float* tile, float scale, int64_t stride, int rows, int limit,
                                  int HS) {
    for (int n = threadIdx.x; n < min(rows, limit) * HS; n += blockDim.x) {
        const int row = n / HS, d = n % HS;
        to[row * stride + d] = (floatX)(scale * tile[row * (HS + 1) + d]);
    }
}

} // namespace flash1

#endif
