/*
The linear layer of decoding with many columns, the classifier: out (M,OC) = inp (M,768) W^T for 4 to 64 rows, in 16 bit on
Hopper. The sums of decode_matmul.cuh in the same order, so the same bits. In decode_batch_matmul.cuh a warp multiplies one
segment of C, and the segments' sums meet in shared memory, at a barrier a round. Here a warp has all rows of NT tiles of 8
columns, a unit, for all of C: a segment's sum is added to the total in registers, and nothing waits for another warp.

- inp is copied into shared memory once a CTA, in the order of MMA operands: 16 bytes of a lane are one operand.
- Each warp has a ring of its own for W, filled by cp.async in lines of 128 bytes, two chunks of C, of each of its columns. The
  first ones are asked for before the wait for the kernel that computes inp.
- The grid is one CTA per SM. Units are dealt to the CTAs in turn: their numbers of units differ by one at most.

M = 64, OC = 50257, 132 CTAs: 77 MB of W are 16.4 us at 4.7 TB/s. A CTA's 48 tiles are 9,216 MMAs, and 2.2 MB of reads from
shared memory, of which 3/4 are operands of inp, fewer with a larger NT.
*/
#ifndef LLMC_DECODE_HEAD_MATMUL_CUH
#define LLMC_DECODE_HEAD_MATMUL_CUH

#include "decode_matmul.cuh"
#include "logit_key.cuh"

constexpr int HEAD_MIN_ROWS = 4, HEAD_MAX_ROWS = 64;
constexpr size_t HEAD_SHARED = 227 * 1024; // bytes of a CTA on Hopper

// How a CTA is cut: of 16 MT rows, warps with units of NT column tiles: two units a warp of OC = 50257 on 132 SMs
template <int MT_> struct HeadTile {
    static constexpr int MT = MT_, NT = 3, WARPS = 8, threads = WARP_SIZE * WARPS;
    static constexpr int rows = 16 * MT, columns = 8 * NT;
    static constexpr int segment = 3; // chunks
    static constexpr int chunks = segment * DECODE_WARPS, C = chunks * DECODE_CHUNK;
    static constexpr int lines = chunks / 2, line = 2 * DECODE_CHUNK; // of a row; elements

    // Shared memory: the rows (chunks, MT, 2 MMAs, lanes), and of each warp a ring of lines of W (2 chunks, NT, lanes), 16
    // bytes each. In odd chunks lane l has place l ^ 4: the 8 lanes that copy a line of one row write to all banks.
    static constexpr int operand_bytes = WARP_SIZE * 16;
    static constexpr int rows_bytes = chunks * MT * 2 * operand_bytes, line_bytes = 2 * NT * operand_bytes;
    static constexpr int ring_at_most = ((int)HEAD_SHARED - rows_bytes) / (WARPS * line_bytes);
    static constexpr int ring = ring_at_most < lines ? ring_at_most : lines,
                         shared = rows_bytes + WARPS * ring * line_bytes;
    __host__ __device__ static constexpr int place(int chunk, int lane) { return (lane ^ chunk % 2 * 4) * 16; }
    __host__ __device__ static constexpr int row_operand(int chunk, int i, int k) { // row tile i, MMA k of a chunk
        return ((chunk * MT + i) * 2 + k) * operand_bytes;
    }
    __host__ __device__ static constexpr int weights(int chunk, int n) { return (chunk % 2 * NT + n) * operand_bytes; }

    // A warp copies a line of four rows at once: lane l copies 16 bytes, number l % 8 of them, of row l / 8
    __host__ __device__ static constexpr int chunk_of(int lane) { return lane % 8 / 4; } // of the line's two
    __host__ __device__ static constexpr int place_of(int four, int lane) { // of row 4 four + l / 8 of a tile
        return place(chunk_of(lane), (4 * four + lane / 8) * 4 + lane % 4);
    }
    // What a warp copies of inp at once: item = (line, row tile, four), a line of eight rows, for both MMAs of its chunks
    static constexpr int items = lines * MT * 2 / WARPS;

    __host__ __device__ static int units(int OC) { return CEIL_DIV(OC, columns); }
    // Units first, first + step, ... are a warp's
    __host__ __device__ static int first_unit(int cta, int warp, int ctas) { return cta + warp * ctas; }
    __host__ __device__ static int unit_step(int ctas) { return WARPS * ctas; }
    static_assert(ring >= 3 && lines * MT * 2 % WARPS == 0 && threads >= rows, "");
    static_assert(WARPS * rows * 8 <= rows_bytes, "keys of the rows take the place of inp");
};

#if !defined(PRECISION_FP32)

// The lines of a warp's units, one after the other
template <class T> struct HeadLines {
    int unit, line = 0;
    __device__ explicit HeadLines(int unit) : unit(unit) {}
    __device__ void advance(int step) {
        line++;
        if (line == T::lines) { line = 0, unit += step; }
    }
    __device__ const floatX* row(const DecodeLinear& p, int i) const { // i: of the unit
        return p.weight + (size_t)min(unit * T::columns + i, p.OC - 1) * T::C + line * T::line;
    }
    // To `to`, the warp's place in its ring
    __device__ void copy(const DecodeLinear& p, char* to, int units, int lane) const {
        if (unit < units) {
            const uint32_t place = (uint32_t)__cvta_generic_to_shared(to) + T::weights(T::chunk_of(lane), 0);
#pragma unroll
            for (int j = 0; j < 2 * T::NT; j++) {
                mma::cp_async_16(place + T::weights(0, j / 2) + T::place_of(j % 2, lane),
                                 row(p, 4 * j + lane / 8) + lane % 8 * 8, 16);
            }
        }
        mma::cp_async_commit_group();
    }
};

// inp to shared memory, as MMA operands: all of a lane's loads come before its first store. The last row stands for those
// behind it, whose outputs are not stored.
template <class T> __device__ inline void head_load_rows(const DecodeLinear& p, char* rows, int warp, int lane) {
    uint4 x[T::items][2];
#pragma unroll
    for (int e = 0; e < T::items; e++) {
        const int item = e * T::WARPS + warp, four = item % 2, i = item / 2 % T::MT, line = item / 2 / T::MT;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int row = min(16 * i + 8 * h + 4 * four + lane / 8, p.M - 1);
            x[e][h] = __ldcg(reinterpret_cast<const uint4*>(p.inp + row * T::C + line * T::line + lane % 8 * 8));
        }
    }
#pragma unroll
    for (int e = 0; e < T::items; e++) {
        const int item = e * T::WARPS + warp, four = item % 2, i = item / 2 % T::MT, line = item / 2 / T::MT;
        const uint4 low = x[e][0], high = x[e][1];
        char* to = rows + T::row_operand(2 * line + T::chunk_of(lane), i, 0) + T::place_of(four, lane);
        *reinterpret_cast<uint4*>(to) = make_uint4(low.x, high.x, low.y, high.y);
        *reinterpret_cast<uint4*>(to + T::operand_bytes) = make_uint4(low.z, high.z, low.w, high.w);
    }
}

// d += a chunk of the rows times one of W; rows and w point to the lane's place in them
template <class T> __device__ inline void head_multiply(float (&d)[T::MT][T::NT][4], const char* rows, const char* w) {
    uint4 b[T::NT], a[T::MT][2];
#pragma unroll
    for (int n = 0; n < T::NT; n++) { b[n] = *reinterpret_cast<const uint4*>(w + T::weights(0, n)); }
#pragma unroll
    for (int i = 0; i < 2 * T::MT; i++) {
        a[i / 2][i % 2] = *reinterpret_cast<const uint4*>(rows + T::row_operand(0, i / 2, i % 2));
    }
#pragma unroll
    for (int i = 0; i < T::MT; i++) {
        const uint32_t k0[4] = {a[i][0].x, a[i][0].y, a[i][0].z, a[i][0].w};
#pragma unroll
        for (int n = 0; n < T::NT; n++) { mma::mma_m16n8k16(d[i][n], k0, b[n].x, b[n].y); }
    }
#pragma unroll
    for (int i = 0; i < T::MT; i++) {
        const uint32_t k16[4] = {a[i][1].x, a[i][1].y, a[i][1].z, a[i][1].w};
#pragma unroll
        for (int n = 0; n < T::NT; n++) { mma::mma_m16n8k16(d[i][n], k16, b[n].z, b[n].w); }
    }
}

// A lane's outputs: rows 16 i + 8 h + lane / 4, columns 2 (lane % 4) and the next of each tile
template <class T> struct HeadOutput {
    uint32_t valid = 0;        // bit 2 i + h: the row is written
    float largest[T::MT][2];   // of the row's outputs so far
    int token[T::MT][2], r, q; // its column; lane 4 r + q

    __device__ explicit HeadOutput(int lane) : r(lane / 4), q(lane % 4) {
#pragma unroll
        for (int i = 0; i < 2 * T::MT; i++) { largest[i / 2][i % 2] = NAN, token[i / 2][i % 2] = 0; }
    }
    // The rows' positions, which an earlier kernel writes; and what follows from them
    __device__ void load(const DecodeLinear& p, uint32_t (&positions)[2 * T::MT]) const {
#pragma unroll
        for (int i = 0; i < 2 * T::MT; i++) {
            positions[i] = ld_global_cg_if(p.positions != NULL && 8 * i + r < p.M, p.positions + 8 * i + r);
        }
    }
    __device__ void set_valid(const DecodeLinear& p, const uint32_t (&positions)[2 * T::MT]) {
#pragma unroll
        for (int i = 0; i < 2 * T::MT; i++) { valid |= (uint32_t)(8 * i + r < p.M && (int)positions[i] >= 0) << i; }
    }
    __device__ void store(const DecodeLinear& p, const float (&total)[T::MT][T::NT][4], int unit) {
        const int o0 = unit * T::columns + 2 * q;
#pragma unroll
        for (int i = 0; i < 2 * T::MT; i++) {
            if ((valid >> i & 1) == 0) { continue; }
            floatX* to = p.out + (size_t)(8 * i + r) * p.stride + o0;
            float& most = largest[i / 2][i % 2];
#pragma unroll
            for (int n = 0; n < T::NT; n++) {
                const int o = o0 + 8 * n;
                if (o >= p.OC) { continue; }
                const float(&sum)[4] = total[i / 2][n];
                const uint32_t z = mma::cvt_rn_x2(sum[i % 2 * 2], sum[i % 2 * 2 + 1]);
                const float2 y = mma::float2_of(z);
                const bool both = o + 1 < p.OC;
                if (both) {
                    *reinterpret_cast<uint32_t*>(to + 8 * n) = z;
                } else {
                    to[8 * n] = (floatX)y.x;
                }
                if (y.x > most || most != most) { most = y.x, token[i / 2][i % 2] = o; }
                if (both && (y.y > most || most != most)) { most = y.y, token[i / 2][i % 2] = o + 1; }
            }
        }
    }
    // The rows' largest ones of this CTA, to memory; shared: keys (warps, rows). NaN of column 0, of a lane without outputs, is
    // below all numbers; 0 is below all keys.
    __device__ void store_keys(const DecodeLinear& p, unsigned long long* shared) const {
        const int thread = threadIdx.x, warp = thread / WARP_SIZE;
        __syncthreads(); // inp has been read
#pragma unroll
        for (int i = 0; i < 2 * T::MT; i++) {
            unsigned long long key = logit_key(largest[i / 2][i % 2], token[i / 2][i % 2]);
            for (int offset = 2; offset > 0; offset /= 2) { key = max(key, __shfl_xor_sync(0xffffffffu, key, offset)); }
            if (q == 0) { shared[warp * T::rows + 8 * i + r] = valid >> i & 1 ? key : 0; }
        }
        __syncthreads();
        if (thread >= T::rows) { return; }
        unsigned long long key = 0;
#pragma unroll
        for (int w = 0; w < T::WARPS; w++) { key = max(key, shared[w * T::rows + thread]); }
        if (key != 0) { atomicMax(&p.row_keys[thread], key); }
    }
};

template <class T> __global__ void __launch_bounds__(T::threads, 1) decode_head_kernel(DecodeLinear p) {
#ifdef DEPENDENT_LAUNCH_CODE
    extern __shared__ int4 decode_shared[];
    const int warp = threadIdx.x / WARP_SIZE, lane = threadIdx.x % WARP_SIZE;
    const int units = T::units(p.OC), step = T::unit_step(gridDim.x),
              first = T::first_unit(blockIdx.x, warp, gridDim.x);
    char* rows = reinterpret_cast<char*>(decode_shared);
    char *ring = rows + T::rows_bytes + warp * T::ring * T::line_bytes, *last = ring + (T::ring - 1) * T::line_bytes;
    if (!p.next_reads_early) { launch_dependents(); }

    HeadLines<T> next(first); // to copy
    for (char* to = ring; to < last; to += T::line_bytes) {
        next.copy(p, to, units, lane);
        next.advance(step);
    }

    wait_for_previous();
    if (p.next_reads_early) { launch_dependents(); }
    HeadOutput<T> output(lane);
    uint32_t positions[2 * T::MT];
    output.load(p, positions);
    head_load_rows<T>(p, rows, warp, lane);
    output.set_valid(p, positions);
    __syncthreads();
    char *w = ring, *free = last; // the line to multiply, and the place of the one before
#pragma unroll 1
    for (int unit = first; unit < units; unit += step) {
        float total[T::MT][T::NT][4] = {};
#pragma unroll 1
        for (int chunk = 0; chunk < T::chunks; chunk += 2 * T::segment) { // two segments, whole lines
            float d[T::MT][T::NT][4];
#pragma unroll
            for (int u = 0; u < 2 * T::segment; u++) {
                if (u % 2 == 0) {
                    mma::cp_async_wait_group<T::ring - 2>();
                    __syncwarp(); // the line is there, and the one before has been read
                    next.copy(p, free, units, lane);
                    next.advance(step);
                }
#pragma unroll
                for (int e = 0; u % T::segment == 0 && e < T::MT * T::NT * 4; e++) {
                    d[e / 4 / T::NT][e / 4 % T::NT][e % 4] = 0.0f;
                }
                head_multiply<T>(d, rows + T::row_operand(chunk + u, 0, 0) + T::place(u, lane),
                                 w + T::weights(u, 0) + T::place(u, lane));
#pragma unroll
                for (int e = 0; u % T::segment == T::segment - 1 && e < T::MT * T::NT * 4; e++) {
                    total[e / 4 / T::NT][e / 4 % T::NT][e % 4] += d[e / 4 / T::NT][e / 4 % T::NT][e % 4];
                }
                if (u % 2 == 1) { free = w, w = w == last ? ring : w + T::line_bytes; }
            }
        }
        output.store(p, total, unit);
    }
    if (p.row_keys != NULL) { output.store_keys(p, reinterpret_cast<unsigned long long*>(decode_shared)); }
#endif
}

// ----------------------------------------------------------------------------
// The launcher

typedef void (*DecodeHeadKernel)(DecodeLinear p);
struct HeadTiling {
    DecodeHeadKernel kernel; // NULL: others serve the layer
    int rows, threads;
    size_t shared; // bytes
    unsigned blocks;
};

template <int MT> static inline HeadTiling head_tiling_of(LaunchGpu gpu, const DecodeLinear& p) {
    typedef HeadTile<MT> T;
    const bool served = T::units(p.OC) >= T::WARPS * gpu.sms && p.C == T::C && T::shared <= gpu.shared_limit;
    return served ? HeadTiling{decode_head_kernel<T>, T::rows, T::threads, T::shared, (unsigned)gpu.sms} : HeadTiling{};
}
// A CTA for each SM, if that leaves no warp without a unit; or a kernel of NULL
static inline HeadTiling head_tiling(LaunchGpu gpu, const DecodeLinear& p) {
    if (!gpu.hopper || p.M < HEAD_MIN_ROWS || p.M > HEAD_MAX_ROWS || p.epilogue != DECODE_STORE) { return {}; }
    if (p.bias != NULL || p.norm_sums != NULL || p.stride % 2 != 0) { return {}; }
    const int MT = CEIL_DIV(p.M, 16);
    return MT == 1   ? head_tiling_of<1>(gpu, p)
           : MT == 2 ? head_tiling_of<2>(gpu, p)
           : MT == 3 ? head_tiling_of<3>(gpu, p)
                     : head_tiling_of<4>(gpu, p);
}
#endif

#endif
