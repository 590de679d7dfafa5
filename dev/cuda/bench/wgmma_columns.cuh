/*
Column sums of a wgmma accumulator over the 16 rows of a warp: a butterfly in which each step halves the columns that a lane
keeps, 14 shuffles for 64 columns.
*/
#ifndef WGMMA_COLUMNS_CUH
#define WGMMA_COLUMNS_CUH

namespace wgmma {

// Column sums over the 8 lanes with the same t % 4: in a step, a lane whose bit is `high` keeps the upper half of its octets,
// the other lane the lower one. After three steps it has octet t % 32 / 4, columns:
__host__ __device__ constexpr int kept_index(bool high, int half, int i) { return high ? i + half : i; }
__host__ __device__ constexpr int kept_column(int t, int e) { return t % 32 / 4 * 8 + t % 4 * 2 + e; }

// A step: of its 2 * half column sums, a lane keeps `half` and sends the others to the lane at `distance`.
template <int half> __device__ inline void halve_columns(float (&v)[16], int thread) {
    constexpr int distance = 2 * half; // lanes: 16, 8, 4
    const bool high = thread & distance;
#pragma unroll
    for (int i = 0; i < half; i++) {
        const float keep = high ? v[kept_index(true, half, i)] : v[kept_index(false, half, i)];
        const float give = high ? v[kept_index(false, half, i)] : v[kept_index(true, half, i)];
        v[i] = keep + __shfl_xor_sync(0xffffffffu, give, distance);
    }
}
// v: the sums over a lane's rows, of columns 8 n + t % 4 * 2 + e in v[2 n + e]. Returns those over the warp's 16 rows of
// kept_column(t, 0) and kept_column(t, 1).
__device__ inline float2 sum_columns(float (&v)[16], int thread) {
    halve_columns<8>(v, thread);
    halve_columns<4>(v, thread);
    halve_columns<2>(v, thread);
    return {v[0], v[1]};
}

} // namespace wgmma

#endif
