// What serves a GPU of 9.0 whose code was compiled without sm_90a's instructions: the tables of variants name none of the
// kernels that would be empty, and still serve everything. And how kernels are launched there. Needs no GPU.
#include "dev/cuda/attention/choice.h"
#include "dev/cuda/matmul/choice.h"
#define cudaLaunchKernelEx note_launch // whatever is launched
#include "llmc/cuda/dependent_launch.cuh"
#include "dev/test/fixtures/unit.h"

#include <vector>

static std::vector<cudaLaunchAttribute> attributes; // of the last launch
template <class... Arguments> static cudaError_t note_launch(const cudaLaunchConfig_t* config, Arguments...) {
    attributes.assign(config->attrs, config->attrs + config->numAttrs);
    return cudaSuccess;
}

static const int with_sm_90a = served_capability(90, 1), without = served_capability(90, 0);

static void other_gpus_are_served_as_they_are() {
    for (int capability : {75, 80, 86, 89, 100, 103, 120}) { CHECK(served_capability(capability, 0) == capability); }
    CHECK(with_sm_90a == 90);
}

static void attention_is_served() {
    for (AttentionDirection d : {ATTENTION_FORWARD_PASS, ATTENTION_BACKWARD_PASS}) {
        for (int HS : {32, 64, 96, 128}) {
            for (int T : {1, 1024, 16384}) {
                const AttentionRule* r = attention_rule(d, nullptr, 0, without, 1, T, 12, HS);
                CHECK(r != nullptr && strcmp(r->variant, "mma") == 0);
                CHECK(attention_rule(d, "wgmma", 0, without, 1, T, 12, HS) == nullptr);
            }
        }
        CHECK(strcmp(attention_rule(d, nullptr, 0, with_sm_90a, 1, 1024, 12, 64)->variant, "wgmma") == 0);
    }
}

static void matmul_is_served() {
    int differ = 0;
    for (int group = 0; group < NUM_MATMUL_GROUPS; group++) {
        for (int C : {768, 1280, 1600}) {
            const MatmulSizes s = {65536, C, C, group == MATMUL_CLASSIFIER ? C : 0};
            const MatmulRule* r = matmul_rule((MatmulGroup)group, 0, without, s);
            CHECK(r != nullptr && strstr(r->variant, "wgmma") == nullptr);
            differ += r != matmul_rule((MatmulGroup)group, 0, with_sm_90a, s);
        }
    }
    CHECK(differ > 0);
}

// GPUs older than 9.0 have neither clusters nor dependent launches: there a launch with either of the two would fail.
static void launches_have_what_the_gpu_has() {
    const auto attribute_ids = [](DeviceCode gpu, int cluster) {
        std::vector<int> ids;
        launch_dependent(gpu, device_code_probe_kernel, dim3(4), 32, 0, cluster, nullptr);
        for (const cudaLaunchAttribute& a : attributes) { ids.push_back(a.id); }
        return ids;
    };
    typedef std::vector<int> Ids;
    const int dependent = cudaLaunchAttributeProgrammaticStreamSerialization;
    const DeviceCode older = {80, 0, 0, 108, 163 << 10}, newer = {90, 1, 1, 132, 227 << 10};
    CHECK(attribute_ids(older, 1) == Ids() && attribute_ids(newer, 1) == Ids({dependent}));
    CHECK(attribute_ids(older, WHOLE_GRID) == Ids({cudaLaunchAttributeCooperative}));
    CHECK(attribute_ids(newer, WHOLE_GRID) == Ids({dependent, cudaLaunchAttributeCooperative}));
    CHECK(attribute_ids(newer, 4) == Ids({dependent, cudaLaunchAttributeClusterDimension}));
    CHECK(attributes.back().val.clusterDim.x == 4 && attributes.back().val.clusterDim.y == 1);
}

// Without a GPU the code is unknown, and stays so: a failure is not kept.
static void failures_are_reported() {
    DeviceCode code;
    for (int n = 0; n < 2; n++) {
        status_clear();
        CHECK(device_code(&code) == STATUS_ERROR && strstr(status_message(), "cudaGetDevice") != nullptr);
    }
    status_clear();
}

int main() {
    setenv("CUDA_VISIBLE_DEVICES", "-1", 1); // before the first CUDA call
    other_gpus_are_served_as_they_are();
    attention_is_served();
    matmul_is_served();
    launches_have_what_the_gpu_has();
    failures_are_reported();
    return unit_end();
}
