/*
The linear layer of decoding with many columns, the classifier: logits (M,OC), fp32, = layernorm(inp) (M,768) W^T for 4 to 64
rows, in 16 bit on Hopper. The sums of decode/matmul.cuh in the same order by wgmma, as in decode/warpgroup_matmul.cuh: the
same bits.

Here W is operand A, in registers, and the rows are operand B, in shared memory: D is logits^T. A warpgroup has all rows of 64
columns, a unit, for all of C: a segment's sum is added to the total in registers, and nothing waits for another warp.

- A kernel of its own normalises the rows and writes them as wgmma reads them, and each CTA copies them line by line.
- A producer warp loads W by TMA, in lines of 128 bytes of a unit's columns, into a ring of each warpgroup. The first ones are
  asked for before the wait for the kernel that computes the rows. In registers a warp has two segments' operands.
- The grid is one CTA per SM. Units are dealt to the warpgroups in turn: three each at OC = 50257 on 132 SMs.

M = 64, OC = 50257: 77 MB of W are 16.4 us at 4.7 TB/s. A CTA's six units take 7.8 us of shared memory, 5.2 of the tensor cores.
*/
#ifndef LLMC_DECODE_HEAD_MATMUL_CUH
#define LLMC_DECODE_HEAD_MATMUL_CUH

#include "logit_key.cuh"
#include "matmul.cuh"
#if !defined(PRECISION_FP32)
#include "llmc/cuda/hopper.cuh"
#endif

constexpr int HEAD_MIN_ROWS = 4, HEAD_MAX_ROWS = 64;
constexpr size_t HEAD_SHARED = 227 * 1024; // bytes of a CTA on Hopper

// How a CTA is cut: 16 MT rows, which are N of wgmma
template <int MT_> struct HeadTile {
    static constexpr int MT = MT_, GROUPS = 2, WARPS = 4 * GROUPS;
    static constexpr int threads = WARP_SIZE * (WARPS + 4); // a third warpgroup has the producer
    static constexpr int consumer_registers = 232, producer_registers = 40;
    static constexpr int rows = 16 * MT, columns = 64; // of a unit: 16 of each warp
    static constexpr int segment = 3;                  // chunks
    static constexpr int chunks = segment * DECODE_WARPS, C = chunks * DECODE_CHUNK;
    static constexpr int lines = chunks / 2, line = 2 * DECODE_CHUNK; // of a row; elements

    // Shared memory: the rows (lines, rows, 128 bytes), each warpgroup's ring of lines of W (columns, 128 bytes), the front.
    // Rows and columns are swizzled as TMA does.
    static constexpr int rows_line_bytes = rows * 128, rows_bytes = lines * rows_line_bytes, line_bytes = columns * 128;
    static constexpr int front_bytes = 512;
    static constexpr int ring_at_most = ((int)HEAD_SHARED - rows_bytes - front_bytes) / (GROUPS * line_bytes);
    static constexpr int ring = ring_at_most < lines ? ring_at_most : lines;
    static constexpr int front_at = rows_bytes + GROUPS * ring * line_bytes, shared = front_at + front_bytes;
    // Of a row's line: word j of the 16 bytes that lane 4 r + q has of chunk u. An MMA takes j = 0, 1, the next one 2, 3.
    __host__ __device__ static constexpr int row_word(int row, int u, int q, int j) {
        return row * 128 + ((u % 2 * 4 + j) ^ row % 8) * 16 + q * 4;
    }
    // The warp's column that is row r of operand A, or with h = 1 row r + 8. Any order will do; in this one 8 lanes read from
    // all banks, and a lane of D has columns c and c + 1 of logits, c = column(0, r).
    __host__ __device__ static constexpr int column(int h, int r) { return r / 2 % 2 * 2 + r / 4 * 8 + r % 2 * 4 + h; }
    // Where a lane's 16 bytes of chunk u are in the warp's part of a line of W
    __host__ __device__ static constexpr int operand(int h, int u, int r, int q) {
        return column(h, r) * 128 + ((u % 2 * 4 + q) ^ column(h, r) % 8) * 16;
    }

    __host__ __device__ static int units(int OC) { return CEIL_DIV(OC, columns); }
    // Units first, first + step, ... are a warpgroup's
    __host__ __device__ static int first_unit(int cta, int group, int ctas) { return cta + group * ctas; }
    __host__ __device__ static int unit_step(int ctas) { return GROUPS * ctas; }
    static_assert(ring >= 3 && lines <= WARP_SIZE && rows <= 2 * WARP_SIZE, "");
    static_assert(WARPS * rows * 8 <= rows_bytes, "keys of the rows take the place of inp");
};

#if !defined(PRECISION_FP32)

// out (lines, M, 128 bytes) = layernorm(inp) of M rows as HeadTile has them, one after the other; a warp per row
static __global__ void __launch_bounds__(WARP_SIZE)
    decode_head_layernorm_kernel(floatX* out, const floatX* inp, const floatX* weight, const floatX* bias, int M) {
    typedef HeadTile<1> T; // a row's words lie alike in all of them
    constexpr int VECTORS = T::C / (WARP_SIZE * x128::size);
    const int lane = threadIdx.x, row = blockIdx.x;
    launch_dependents();
    DecodeNormRow<VECTORS> x(T::C, lane);
    x.load_weights(weight, bias);
    wait_for_previous();
    x.load(inp + (size_t)row * T::C);
    x.reduce();
#pragma unroll
    for (int i = 0; i < VECTORS; i++) {
        const int chunk = x.column(i) / DECODE_CHUNK;
        const x128 y = x.normalised(i);
        const uint4 words = reinterpret_cast<const uint4&>(y);
        const uint32_t of[4] = {words.x, words.y, words.z, words.w};
        char* line = reinterpret_cast<char*>(out) + (size_t)(chunk / 2) * M * 128;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            *reinterpret_cast<uint32_t*>(line + T::row_word(row, chunk, lane % 4, j)) = of[j];
        }
    }
}

// Behind the rows and rings
template <class T> struct HeadFront {
    hopper::Mbarrier line_full[T::lines], full[T::GROUPS][T::ring], empty[T::GROUPS][T::ring], valid_full;
    unsigned long long valid; // bit i: row i is written

    __device__ void init(int row_line_bytes) {
        for (hopper::Mbarrier& x : line_full) { x.init(1); }
        for (int i = 0; i < T::GROUPS * T::ring; i++) {
            full[i / T::ring][i % T::ring].init(1);
            empty[i / T::ring][i % T::ring].init(T::WARPS / T::GROUPS * hopper::WARP_ARRIVALS);
        }
        valid_full.init(1);
        hopper::fence_mbarrier_init();
        for (hopper::Mbarrier& x : line_full) { x.expect_tx(row_line_bytes); }
    }
};

// A place in a warpgroup's ring
template <class T> struct HeadPlace {
    int slot = 0;
    uint32_t parity = 0;
    __device__ void advance() {
        if (++slot == T::ring) { slot = 0, parity ^= 1; }
    }
};

// What brings W to both rings, by one thread: line after line of all units
template <class T> struct HeadProducer {
    const CUtensorMap* weight_map;
    HeadFront<T>& front;
    uint32_t rings;
    int unit, units, step, line = 0; // unit: of group 0
    HeadPlace<T> place;

    __device__ bool more() const { return unit < units; }
    __device__ void bring(bool wait) {
#pragma unroll
        for (int group = 0; group < T::GROUPS; group++) {
            const int mine = unit + T::first_unit(0, group, step / T::GROUPS);
            if (mine >= units) { continue; }
            if (wait) { front.empty[group][place.slot].wait(place.parity ^ 1); }
            hopper::Mbarrier& full = front.full[group][place.slot];
            full.expect_tx(T::line_bytes);
            hopper::cp_async_bulk_tensor(rings + (group * T::ring + place.slot) * T::line_bytes, weight_map,
                                         line * T::line, mine * T::columns, full, hopper::createpolicy_evict_first());
        }
        place.advance();
        if (++line == T::lines) { line = 0, unit += step; }
    }
};

// The rows, in shared memory, and which of them are written, by a warp
template <class T>
__device__ inline void head_bring_rows(const DecodeLinear& p, char* rows, HeadFront<T>& front, int lane) {
    const int bytes = p.M * 128;
    if (lane < T::lines) {
        hopper::cp_async_bulk(hopper::shared_address(rows + lane * T::rows_line_bytes),
                              reinterpret_cast<const char*>(p.inp) + (size_t)lane * bytes, bytes,
                              front.line_full[lane]);
    }
    uint32_t valid[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int row = h * WARP_SIZE + lane;
        const int position = (int)ld_global_cg_if(p.positions != NULL && row < p.M, p.positions + row);
        valid[h] = __ballot_sync(0xffffffffu, row < p.M && position >= 0);
    }
    if (lane == 0) {
        front.valid = (unsigned long long)valid[1] << 32 | valid[0];
        front.valid_full.arrive();
    }
}

// A warp's part of its warpgroup's ring
template <class T> struct HeadRing {
    uint32_t low, high; // where the lane's 16 bytes of rows r and r + 8 of operand A are in the first place
    HeadFront<T>& front;
    int group;
    HeadPlace<T> place;

    __device__ HeadRing(uint32_t rings, HeadFront<T>& front, int warp, int lane) : front(front), group(warp / 4) {
        const uint32_t part = rings + group * T::ring * T::line_bytes + warp % 4 * 16 * 128;
        low = part + T::operand(0, 0, lane / 4, lane % 4), high = part + T::operand(1, 0, lane / 4, lane % 4);
    }
    __device__ void wait() { front.full[group][place.slot].wait(place.parity); }
    __device__ void release(int lane) { // all lanes have loaded from the line
        front.empty[group][place.slot].release_warp(lane);
        place.advance();
    }
    // Operand A of both MMAs of a chunk
    __device__ void load(uint32_t (&a)[2][4], int chunk) const {
        const uint32_t at = place.slot * T::line_bytes;
        // operand(h, 1, r, q) is operand(h, 0, r, q) ^ 64, in lines that are aligned to 128 bytes
        const uint4 x = ld_shared_v4((low + at) ^ chunk % 2 * 64), y = ld_shared_v4((high + at) ^ chunk % 2 * 64);
        a[0][0] = x.x, a[0][1] = y.x, a[0][2] = x.y, a[0][3] = y.y;
        a[1][0] = x.z, a[1][1] = y.z, a[1][2] = x.w, a[1][3] = y.w;
    }
};

// total: the unit's sums, of D's columns 8 i ... in total[4 i] to total[4 i + 3]
template <class T>
__device__ inline void head_multiply(float (&total)[8 * T::MT], HeadRing<T>& ring, uint64_t rows, int lane) {
    constexpr int N = 8 * T::MT;
    float d[2][N];
    uint32_t a[2][T::segment][2][4];
#pragma unroll
    for (int i = 0; i < N; i++) { total[i] = 0.0f, d[1][i] = 0.0f; }
#pragma unroll
    for (int chunk = 0; chunk < T::chunks; chunk += 2 * T::segment) { // two segments, whole lines
#pragma unroll
        for (int s = 0; s < 2; s++) {
#pragma unroll
            for (int i = 0; i < T::segment; i++) {
                const int u = s * T::segment + i;
                if (u % 2 == 0) { ring.wait(), ring.front.line_full[(chunk + u) / 2].wait(0); }
                ring.load(a[s][i], u);
                if (u % 2 == 1) { ring.release(lane); }
            }
            hopper::fence_operand(d[s]);
            hopper::wgmma_fence();
            const uint64_t line = rows + chunk / 2 * (T::rows_line_bytes / 16);
#pragma unroll
            for (int k = 0; k < 2 * T::segment; k++) {
                const int at = 2 * T::segment * s + k; // of 16 channels: 32 bytes
                hopper::wgmma_mma_async(d[s], a[s][k / 2][k % 2],
                                        line + (at / 4 * T::rows_line_bytes + at % 4 * 32) / 16, k > 0);
            }
            hopper::wgmma_commit_group();
            hopper::wgmma_wait_group<1>(); // the segment before; its operands are free
            hopper::fence_operand(d[1 - s]);
#pragma unroll
            for (int i = 0; i < N; i++) { total[i] += d[1 - s][i]; }
        }
    }
    hopper::wgmma_wait_group<0>();
    hopper::fence_operand(d[1]);
#pragma unroll
    for (int i = 0; i < N; i++) { total[i] += d[1][i]; }
}

// A lane's outputs: of row(i) columns c and c + 1 of its warp's
template <class T> struct HeadOutput {
    static constexpr int ROWS = 4 * T::MT;
    int q, c;            // lane 4 r + q; c = column(0, r)
    uint32_t valid = 0;  // bit i: row(i) is written
    float largest[ROWS]; // of the row's outputs so far, and its column
    int column[ROWS];

    __device__ HeadOutput(int lane, unsigned long long rows) : q(lane % 4), c(T::column(0, lane / 4)) {
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            valid |= (uint32_t)(rows >> row(i) & 1) << i;
            largest[i] = NAN, column[i] = 0;
        }
    }
    __device__ int row(int i) const { return 8 * (i / 2) + 2 * q + i % 2; }
    __device__ void keep_largest(int i, float y, int o) {
        if (y > largest[i] || largest[i] != largest[i]) { largest[i] = y, column[i] = o; }
    }
    // o: the warp's first column. INSIDE: all of its columns are there
    template <bool INSIDE> __device__ void store(const DecodeLinear& p, const float (&total)[8 * T::MT], int o) {
        o += c;
        const int left = p.OC - o;
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            const float low = total[4 * (i / 2) + i % 2], high = total[4 * (i / 2) + i % 2 + 2];
            float* to = p.logits + (size_t)row(i) * p.stride + o;
            const bool write = valid >> i & 1, both = INSIDE || left > 1;
            if (write && both) { *reinterpret_cast<float2*>(to) = make_float2(low, high); }
            if (write && !both && left == 1) { to[0] = low; }
            if (INSIDE || left > 0) { keep_largest(i, low, o); }
            if (both) { keep_largest(i, high, o + 1); }
        }
    }
    // The rows' largest ones of this CTA, to memory; shared: keys (warps, rows). NaN, of a lane without outputs, is below all
    // numbers; 0 is below all keys. Named barriers 1 and 2
    __device__ void store_keys(const DecodeLinear& p, unsigned long long* shared) const {
        const int thread = threadIdx.x, warp = thread / WARP_SIZE;
        hopper::bar_sync(1, T::WARPS * WARP_SIZE); // the rows have been read
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            unsigned long long most = logit_key(largest[i], column[i]);
            for (int offset = 16; offset >= 4; offset /= 2) { // over r
                most = max(most, __shfl_xor_sync(0xffffffffu, most, offset));
            }
            if (thread % WARP_SIZE < 4) { shared[warp * T::rows + row(i)] = valid >> i & 1 ? most : 0; }
        }
        hopper::bar_sync(2, T::WARPS * WARP_SIZE);
        if (thread >= T::rows) { return; }
        unsigned long long most = 0;
#pragma unroll
        for (int w = 0; w < T::WARPS; w++) { most = max(most, shared[w * T::rows + thread]); }
        if (most != 0) { atomicMax(&p.row_keys[thread], most); }
    }
};

template <class T> __global__ void __launch_bounds__(T::threads, 1)
    decode_head_kernel(DecodeLinear p, const __grid_constant__ CUtensorMap weight_map) {
#if defined(HOPPER_DEVICE_CODE)
    extern __shared__ __align__(1024) int4 decode_aligned_shared[];
    char* shared = reinterpret_cast<char*>(decode_aligned_shared);
    const uint32_t rings = hopper::shared_address(shared + T::rows_bytes);
    HeadFront<T>& front = *reinterpret_cast<HeadFront<T>*>(shared + T::front_at);
    static_assert(sizeof(HeadFront<T>) <= T::front_bytes, "");
    const int thread = threadIdx.x, lane = thread % WARP_SIZE;
    const int warp = __shfl_sync(0xffffffffu, thread / WARP_SIZE, 0);
    const int units = T::units(p.OC), step = T::unit_step(gridDim.x);
    if (!p.next_reads_early) { launch_dependents(); }

    HeadProducer<T> producer = {&weight_map, front, rings, (int)blockIdx.x, units, step};
    if (thread == T::WARPS * WARP_SIZE) {
        front.init(p.M * 128);
        for (int i = 0; i < T::ring; i++) { producer.bring(false); }
    }
    __syncthreads();
    wait_for_previous();
    if (p.next_reads_early) { launch_dependents(); }
    if (warp >= T::WARPS) {
        hopper::setmaxnreg_dec<T::producer_registers>();
        if (warp > T::WARPS) { return; }
        head_bring_rows<T>(p, shared, front, lane);
        while (lane == 0 && producer.more()) { producer.bring(true); }
        return;
    }
    hopper::setmaxnreg_inc<T::consumer_registers>();
    const uint64_t rows = hopper::tile_descriptor_k_major(hopper::shared_address(shared));
    HeadRing<T> ring(rings, front, warp, lane);
    front.valid_full.wait(0);
    HeadOutput<T> output(lane, front.valid);
#pragma unroll 1
    for (int unit = T::first_unit(blockIdx.x, ring.group, gridDim.x); unit < units; unit += step) {
        float total[8 * T::MT];
        head_multiply<T>(total, ring, rows, lane);
        const int o = unit * T::columns + warp % 4 * 16;
        if (o + 16 <= p.OC) {
            output.template store<true>(p, total, o);
        } else {
            output.template store<false>(p, total, o);
        }
    }
    if (p.row_keys != NULL) { output.store_keys(p, reinterpret_cast<unsigned long long*>(shared)); }
#endif
}

// ----------------------------------------------------------------------------
// The launcher

typedef void (*DecodeHeadKernel)(DecodeLinear p, const CUtensorMap weight_map);
struct HeadTiling {
    DecodeHeadKernel kernel; // NULL: others serve the layer
    int rows, threads;
    size_t shared; // bytes
    unsigned blocks;
};

template <int MT> static inline HeadTiling head_tiling_of(LaunchGpu gpu, const DecodeLinear& p) {
    typedef HeadTile<MT> T;
    const bool served = T::units(p.OC) >= T::GROUPS * gpu.sms && p.C == T::C && T::shared <= gpu.shared_limit;
    return served ? HeadTiling{decode_head_kernel<T>, T::rows, T::threads, T::shared, (unsigned)gpu.sms} : HeadTiling{};
}
// A CTA for each SM, if that leaves no warpgroup without a unit; or a kernel of NULL
static inline HeadTiling head_tiling(LaunchGpu gpu, const DecodeLinear& p) {
    if (!gpu.hopper || p.M < HEAD_MIN_ROWS || p.M > HEAD_MAX_ROWS || p.logits == NULL) { return {}; }
    if (p.bias != NULL || p.norm_weight == NULL || p.norm_sums != NULL || p.stride % 2 != 0) { return {}; }
    const int MT = CEIL_DIV(p.M, 16);
    return MT == 1   ? head_tiling_of<1>(gpu, p)
           : MT == 2 ? head_tiling_of<2>(gpu, p)
           : MT == 3 ? head_tiling_of<3>(gpu, p)
                     : head_tiling_of<4>(gpu, p);
}
// normed (M,768): scratch
static inline void head_launch(LaunchGpu gpu, const HeadTiling& t, DecodeLinear p, floatX* normed,
                               cudaStream_t stream) {
    launch_dependent(gpu, decode_head_layernorm_kernel, (unsigned)p.M, WARP_SIZE, 0, 1, stream, normed, p.inp,
                     p.norm_weight, p.norm_bias, p.M);
    p.inp = normed;
    CUtensorMap weight_map;
    if (hopper::tensor_map_of_matrix(&weight_map, p.weight, p.OC, p.C, 64) != STATUS_OK) { return; }
    launch_dependent(gpu, t.kernel, t.blocks, t.threads, t.shared, 1, stream, p, weight_map);
}
#endif

#endif
