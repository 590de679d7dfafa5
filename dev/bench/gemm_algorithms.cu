// Searches cuBLASLt's algorithms for the GEMMs of a training step: gemm_algorithms R,C [--fp8] [GEMM ...], R rows of tokens in
// a model of C channels, all of them or those named; by count 8 s each. --fp8: of e4m3 operands, as the variant cublaslt_fp8,
// 25 s each. The candidates are the library's first choice and the same with all tiles that it knows, clusters and custom
// options, those of its other choices among them. Three rounds, of which each keeps the first choice and the fastest: all for
// 2 ms, at the clock of the moment; 32 for .08 s after .06 s of running, at the power limit; 4 for .25 s after .2 s. Outputs
// of the last round are compared with the first choice's, and each is a line of CSV. llmc/cuda/matmul_algorithms.h has the
// winners of 16-bit operands; those of e4m3 operands gained nothing in the step (LOG, 2026-11-28).
#include "dev/cuda/matmul/choice.h"
#include "llmc/cuda/e4m3.cuh"
#include "llmc/cuda/matmul.cuh"

#include <algorithm>
#include <cmath>
#include <set>
#include <tuple>
#include <vector>

constexpr int PADDED_VOCABULARY = 50304, LIBRARY_CHOICES = 64, SEMIFINALISTS = 32, FINALISTS = 4;

struct StepGemm {
    const char* name;
    MatmulShape shape;
    bool adds; // D = C + A B
};

// Those of llmc/cuda/matmul.cuh in a layer, and of the classifier; in fp8 both operands are K-major
static std::vector<StepGemm> gemms_of_step(int R, int C, bool fp8) {
    const cudaDataType_t x = CudaType<floatX>::value, f = CUDA_R_32F;
    const cublasLtEpilogue_t bias = CUBLASLT_EPILOGUE_BIAS, none = CUBLASLT_EPILOGUE_DEFAULT;
    const int Vp = PADDED_VOCABULARY;
    std::vector<StepGemm> gemms = {{"qkv", matmul_shape(3 * C, R, C, 1, 0, bias, x), false},
                                   {"attproj", matmul_shape(C, R, C, 1, 0, bias, x), true},
                                   {"fc", matmul_shape(4 * C, R, C, 1, 0, bias, x), false},
                                   {"fcproj", matmul_shape(C, R, 4 * C, 1, 0, bias, x), true},
                                   {"logits", matmul_shape(Vp, R, C, 1, 0, none, x), false},
                                   {"input of logits", matmul_shape(C, R, Vp, 0, 0, none, x), false},
                                   {"input of fcproj", matmul_shape(4 * C, R, C, 0, 0, none, x), false},
                                   {"input of fc", matmul_shape(C, R, 4 * C, 0, 0, none, x), false},
                                   {"input of attproj", matmul_shape(C, R, C, 0, 0, none, x), false},
                                   {"input of qkv", matmul_shape(C, R, 3 * C, 0, 0, none, x), false},
                                   {"weight of qkv", matmul_shape(C, 3 * C, R, 0, 1, none, f), false},
                                   {"weight of attproj", matmul_shape(C, C, R, 0, 1, none, f), false},
                                   {"weight of fc", matmul_shape(C, 4 * C, R, 0, 1, none, f), false},
                                   {"weight of fcproj", matmul_shape(4 * C, C, R, 0, 1, none, f), false},
                                   {"weight of wte", matmul_shape(C, Vp, R, 0, 1, none, f), false}};
    for (StepGemm& g : gemms) {
        if (fp8) { g.shape.transpose_a = 1, g.shape.transpose_b = 0; }
    }
    return gemms;
}

__device__ void set(floatX& to, float x) { to = (floatX)x; }
__device__ void set(uint8_t& to, float x) { to = e4m3_of(64 * x); }

template <class T> __global__ void fill_kernel(T* x, size_t n, unsigned seed) { // about normal
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) {
        float sum = -2.0f;
        for (unsigned k = 0; k < 4; k++) {
            unsigned h = ((unsigned)i * 4 + k + seed) * 2654435761u;
            h = (h ^ h >> 15) * 2246822519u;
            sum += (float)((h ^ h >> 13) >> 8) * 0x1p-24f;
        }
        set(x[i], 1.7f * sum);
    }
}

struct Candidate {
    cublasLtMatmulAlgo_t algorithm;
    int tile, cluster, custom;
    bool first; // the library's
    float ms;
    double difference; // from the first one's output, relative
};

struct Search {
    Matmul* mm;
    MatmulPlan plan;
    StepGemm gemm;
    floatX *a, *b;
    char* d;
    cudaEvent_t begin, end;
    std::vector<Candidate> candidates;
    std::set<std::tuple<int, int, int, int>> seen;

    void add(const cublasLtMatmulAlgo_t& algorithm) {
        const int tile = matmul_algorithm_setting(&algorithm, CUBLASLT_ALGO_CONFIG_TILE_ID);
        const int cluster = matmul_algorithm_cluster(&algorithm);
        const int custom = matmul_algorithm_setting(&algorithm, CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION);
        const int splits = matmul_algorithm_setting(&algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM);
        if (!seen.insert({tile, cluster, custom, splits}).second) { return; }
        candidates.push_back({algorithm, tile, cluster, custom, candidates.empty(), 0, 0});
    }

    // The library's first choice, and with other tiles, clusters and custom options as far as it can run them
    void collect() {
        cublasLtMatmulPreference_t preference;
        std::vector<cublasLtMatmulHeuristicResult_t> results(LIBRARY_CHOICES);
        int found = 0, most_custom = 0;
        size_t written;
        cublas_check(cublasLtMatmulPreferenceCreate(&preference));
        matmul_prefer(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, MATMUL_WORKSPACE);
        matmul_prefer(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                      (uint32_t)CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
        add(plan.algorithm);
        cublas_check(cublasLtMatmulAlgoGetHeuristic(mm->handle, plan.desc, plan.a, plan.b, plan.d, plan.d, preference,
                                                    LIBRARY_CHOICES, results.data(), &found));
        cublas_check(cublasLtMatmulPreferenceDestroy(preference));
        for (int i = 0; i < found; i++) { // what the table of llmc/cuda/matmul_algorithms.h can say of them
            const cublasLtMatmulAlgo_t* a = &results[i].algo;
            vary(matmul_algorithm_setting(a, CUBLASLT_ALGO_CONFIG_TILE_ID), matmul_algorithm_cluster(a),
                 matmul_algorithm_setting(a, CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION));
        }
        cublas_check(cublasLtMatmulAlgoCapGetAttribute(&plan.algorithm, CUBLASLT_ALGO_CAP_TILE_IDS, NULL, 0, &written));
        std::vector<uint32_t> tiles(written / sizeof(uint32_t));
        cublas_check(cublasLtMatmulAlgoCapGetAttribute(&plan.algorithm, CUBLASLT_ALGO_CAP_TILE_IDS, tiles.data(),
                                                       written, &written));
        cublasLtMatmulAlgoCapGetAttribute(&plan.algorithm, CUBLASLT_ALGO_CAP_CUSTOM_OPTION_MAX, &most_custom,
                                          sizeof(most_custom), &written);
        for (uint32_t tile : tiles) {
            for (int cluster :
                 {CUBLASLT_CLUSTER_SHAPE_1x1x1, CUBLASLT_CLUSTER_SHAPE_2x1x1, CUBLASLT_CLUSTER_SHAPE_1x2x1}) {
                for (int custom = 0; custom <= most_custom && custom < 8; custom++) {
                    vary((int)tile, cluster, custom);
                }
            }
        }
    }
    void vary(int tile, int cluster, int custom) {
        cublasLtMatmulAlgo_t algorithm = plan.algorithm;
        if (matmul_vary(mm, &plan, &algorithm, tile, cluster, custom)) { add(algorithm); }
    }

    bool run(const Candidate& c, bool adds) {
        const float alpha = 1, beta = adds ? 1 : 0;
        return cublasLtMatmul(mm->handle, plan.desc, &alpha, a, plan.a, b, plan.b, &beta, d, plan.d, d, plan.d,
                              &c.algorithm, mm->workspace, MATMUL_WORKSPACE, mm->stream) == CUBLAS_STATUS_SUCCESS;
    }
    // Milliseconds of a call, over `seconds` after `before` seconds of running; infinite where it cannot run
    float time(const Candidate& c, double before, double seconds) {
        const double flops = 2.0 * gemm.shape.m * gemm.shape.n * gemm.shape.k, calls_a_second = 650e12 / flops;
        const int calls = std::max(1, (int)(seconds * calls_a_second));
        float ms = INFINITY;
        for (int i = 0; i <= (int)(before * calls_a_second); i++) {
            if (!run(c, gemm.adds)) { return ms; }
        }
        cuda_check(cudaEventRecord(begin, mm->stream));
        for (int i = 0; i < calls; i++) { run(c, gemm.adds); }
        cuda_check(cudaEventRecord(end, mm->stream));
        cuda_check(cudaEventSynchronize(end));
        cuda_check(cudaEventElapsedTime(&ms, begin, end));
        return ms / calls;
    }

    // Times each for `seconds` after `before` seconds of running, and keeps the first choice and `most` of the others.
    void choose(double before, double seconds, size_t most) {
        for (Candidate& c : candidates) { c.ms = time(c, before, seconds); }
        std::sort(candidates.begin() + 1, candidates.end(),
                  [](const Candidate& x, const Candidate& y) { return x.ms < y.ms; });
        if (!std::isfinite(candidates[0].ms)) { fatal("%s: cuBLASLt's first choice does not run", gemm.name); }
        while (!std::isfinite(candidates.back().ms)) { candidates.pop_back(); } // the last are those that cannot run
        candidates.resize(std::min(candidates.size(), 1 + most));
    }

    // The first numbers of D, without C
    std::vector<double> output(const Candidate& c) {
        const size_t n = std::min((size_t)gemm.shape.m * gemm.shape.n, (size_t)1 << 21);
        const bool in_fp32 = gemm.shape.out_type == CUDA_R_32F;
        std::vector<char> bytes(n * (in_fp32 ? sizeof(float) : sizeof(floatX)));
        std::vector<double> numbers(n);
        run(c, false);
        cuda_check(cudaStreamSynchronize(mm->stream));
        cuda_check(cudaMemcpy(bytes.data(), d, bytes.size(), cudaMemcpyDeviceToHost));
        for (size_t i = 0; i < n; i++) {
            numbers[i] = in_fp32 ? ((const float*)bytes.data())[i] : (float)((const floatX*)bytes.data())[i];
        }
        return numbers;
    }
    void compare() {
        const std::vector<double> expected = output(candidates[0]);
        for (Candidate& c : candidates) {
            const std::vector<double> x = output(c);
            double difference = 0, size = 0;
            for (size_t i = 0; i < x.size(); i++) {
                difference += (x[i] - expected[i]) * (x[i] - expected[i]), size += expected[i] * expected[i];
            }
            c.difference = sqrt(difference / size);
        }
    }
};

// scale: of a and b, in fp8, or NULL
static void search(Matmul* mm, const StepGemm& gemm, floatX* a, floatX* b, char* d, floatX* bias, const float* scale) {
    Search s = {};
    s.mm = mm, s.gemm = gemm, s.a = a, s.b = b, s.d = d;
    s.plan.shape = gemm.shape;
    check(matmul_describe(mm, &s.plan));
    if (scale) {
        const bool is_weight = gemm.shape.out_type == CUDA_R_32F;
        check(matmul_set(s.plan.a, CUBLASLT_MATRIX_LAYOUT_TYPE, (uint32_t)CUDA_R_8F_E4M3));
        check(matmul_set(s.plan.b, CUBLASLT_MATRIX_LAYOUT_TYPE, (uint32_t)CUDA_R_8F_E4M3));
        check(matmul_set(s.plan.desc, CUBLASLT_MATMUL_DESC_FAST_ACCUM,
                         (int8_t)e4m3_accumulates_fast(is_weight, gemm.shape.k)));
        check(matmul_set(s.plan.desc, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, scale));
        check(matmul_set(s.plan.desc, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, scale));
    }
    check(matmul_choose(mm, &s.plan));
    if (gemm.shape.epilogue == CUBLASLT_EPILOGUE_BIAS) {
        check(matmul_set(s.plan.desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, (const void*)bias));
    }
    cuda_check(cudaEventCreate(&s.begin));
    cuda_check(cudaEventCreate(&s.end));
    s.collect();
    check(status_now());
    const size_t searched = s.candidates.size();
    s.choose(0.001, 0.002, SEMIFINALISTS);
    s.choose(0.06, 0.08, FINALISTS);
    s.choose(0.2, 0.25, FINALISTS);
    s.compare();
    for (const Candidate& c : s.candidates) {
        printf("%s,%d,%d,%d,%d,%zu,%s,%d,%d,%d,%.4f,%.3f,%.1e\n", gemm.name, gemm.shape.m, gemm.shape.n, gemm.shape.k,
               gemm.shape.transpose_a, searched, c.first ? "yes" : "no", c.tile, c.cluster, c.custom, c.ms,
               c.ms / s.candidates[0].ms, c.difference);
    }
    fflush(stdout);
    cudaEventDestroy(s.begin), cudaEventDestroy(s.end);
    matmul_destroy_plan(&s.plan);
}

int main(int argc, char** argv) {
    int R, C;
    if (argc < 2 || sscanf(argv[1], "%d,%d", &R, &C) != 2 || R < 1 || C < 8 || C % 8 != 0 ||
        C > PADDED_VOCABULARY / 4) { // or 4 C channels were more than the tensors hold
        fatal("usage: gemm_algorithms R,C [--fp8] [GEMM ...], as 65536,768: rows of tokens; channels, a multiple of 8 "
              "up to %d",
              PADDED_VOCABULARY / 4);
    }
    const bool fp8 = argc > 2 && strcmp(argv[2], "--fp8") == 0;
    const int first_name = 2 + fp8;
    std::vector<StepGemm> gemms;
    for (const StepGemm& gemm : gemms_of_step(R, C, fp8)) {
        bool asked = argc == first_name;
        for (int i = first_name; i < argc; i++) { asked = asked || strcmp(argv[i], gemm.name) == 0; }
        if (asked) { gemms.push_back(gemm); }
    }
    if (gemms.empty()) { fatal("gemm_algorithms: none of the GEMMs has such a name, as 'input of qkv'"); }
    const size_t largest = (size_t)std::max(R, 4 * C) * PADDED_VOCABULARY;
    static Matmul mm; // too large for a stack
    floatX *a, *b, *bias;
    char* d;
    float* scale = NULL;
    const float one = 1;
    check(matmul_create(&mm, 0, 0));
    cuda_check(cudaMalloc(&a, largest * sizeof(floatX)));
    cuda_check(cudaMalloc(&b, largest * sizeof(floatX)));
    cuda_check(cudaMalloc(&d, largest * sizeof(float)));
    cuda_check(cudaMalloc(&bias, PADDED_VOCABULARY * sizeof(floatX)));
    cuda_check(cudaMemset(d, 0, largest * sizeof(float)));
    for (floatX* x : {a, b}) {
        if (fp8) {
            fill_kernel<<<1024, 256>>>((uint8_t*)x, largest, x == a ? 1 : 2);
        } else {
            fill_kernel<<<1024, 256>>>(x, largest, x == a ? 1 : 2);
        }
    }
    if (fp8) {
        cuda_check(cudaMalloc(&scale, sizeof(float)));
        cuda_check(cudaMemcpy(scale, &one, sizeof(float), cudaMemcpyHostToDevice));
    }
    fill_kernel<<<64, 256>>>(bias, PADDED_VOCABULARY, 3);
    cuda_check(cudaDeviceSynchronize());
    printf("gemm,m,n,k,transpose_a,searched,first_choice,tile,cluster,custom,ms,of_first,difference\n");
    for (const StepGemm& gemm : gemms) { search(&mm, gemm, a, b, d, bias, scale); }
    for (void* p : {(void*)a, (void*)b, (void*)d, (void*)bias, (void*)scale}) { cuda_check(cudaFree(p)); }
    matmul_destroy(&mm);
    return 0;
}
