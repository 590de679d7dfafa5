/*
What the host lets this process have, and how much memory it has taken: from /proc and sysconf, and from the limits that
containers and batch systems set by cgroups, version 2 and version 1: the files of this process's group, and of all groups that
it is in.
*/
#ifndef LLMC_BASE_HOST_H
#define LLMC_BASE_HOST_H

#include <sched.h>

#include "utils.h"

// The number after `key`, at the beginning of a line of a file; with an empty key, the file's first number. `fallback`
// where there is none, as where a limit is "max".
static inline size_t cgroup_number(const char* path, const char* key, size_t fallback) {
    char line[256];
    unsigned long long number;
    size_t length = strlen(key), result = fallback;
    FILE* file = fopen(path, "r");
    while (file != NULL && result == fallback && fgets(line, sizeof(line), file) != NULL) {
        if (strncmp(line, key, length) == 0 && sscanf(line + length, " %llu", &number) == 1) {
            result = (size_t)number;
        }
    }
    if (file != NULL) { fclose(file); }
    return result;
}

// Calls `visit` for the group of `controller` ("memory", "cpu") that this process is in and for all that this one is in: each
// may have a limit. In a container the group often lies elsewhere than its name says; then it is the nearest above that is
// seen. `root` stands before /proc and /sys: "" but in tests.
static inline void cgroup_visit(const char* root, const char* controller,
                                void (*visit)(void* context, const char* folder, int version), void* context) {
    char path[512], line[1024], folder[1280];
    snprintf(path, sizeof(path), "%s/proc/self/cgroup", root);
    FILE* file = fopen(path, "r");
    while (file != NULL && fgets(line, sizeof(line), file) != NULL) { // "0::/group" or "4:cpu,cpuacct:/group"
        char* controllers = strchr(line, ':');
        char* group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (group == NULL) { continue; }
        *group++ = '\0';
        controllers++;
        group[strcspn(group, "\n")] = '\0';
        if (strcmp(group, "/") == 0) { group++; }
        int version = controllers[0] == '\0' ? 2 : 1;
        if (version == 1 && !is_listed(controllers, ',', controller)) { continue; }
        snprintf(path, sizeof(path), "%s/sys/fs/cgroup%s%s", root, version == 1 ? "/" : "",
                 version == 1 ? controller : "");
        snprintf(folder, sizeof(folder), "%s%s", path, group);
        while (strlen(folder) >= strlen(path)) {
            visit(context, folder, version);
            char* slash = strrchr(folder, '/');
            if (slash == NULL) { break; }
            *slash = '\0';
        }
    }
    if (file != NULL) { fclose(file); }
}

// ----------------------------------------------------------------------------
// Cores

static inline void cgroup_quota_(void* quota, const char* folder, int version) {
    char path[1400], line[128] = "";
    double used = 0.0, period = 0.0; // microseconds of processor time, in a period of so many
    snprintf(path, sizeof(path), "%s/%s", folder, version == 2 ? "cpu.max" : "cpu.cfs_quota_us");
    FILE* file = fopen(path, "r");
    if (file == NULL) { return; }
    if (fgets(line, sizeof(line), file) == NULL) { line[0] = '\0'; }
    fclose(file);
    if (sscanf(line, "%lf %lf", &used, &period) < 1) { return; } // "max 100000"
    snprintf(path, sizeof(path), "%s/cpu.cfs_period_us", folder);
    if (version == 1) { period = (double)cgroup_number(path, "", 0); }
    if (used > 0.0 && period > 0.0 && used / period < *(double*)quota) { *(double*)quota = used / period; }
}

// How many cores' time the cgroups let this process have, at most; infinite without a quota.
static inline double cpu_quota(const char* root) {
    double quota = __builtin_huge_val();
    cgroup_visit(root, "cpu", cgroup_quota_, &quota);
    return quota;
}

// Cores that this process may run on.
static inline int cpu_affinity(void) {
    cpu_set_t cpus;
    return sched_getaffinity(0, sizeof(cpus), &cpus) == 0 ? CPU_COUNT(&cpus) : 1;
}

// How many threads have a core, at least for part of the time: more would be stopped when the quota is used up.
static inline int cpu_cores_within(int cores, double quota) {
    int whole = quota < (double)cores ? (int)quota : cores;
    return whole < cores && (double)whole < quota ? whole + 1 : whole;
}
static inline int cpu_cores(void) { return cpu_cores_within(cpu_affinity(), cpu_quota("")); }

// ----------------------------------------------------------------------------
// Memory

typedef struct {
    size_t available; // bytes that can still be had without swapping
    size_t total;
    const char* limit; // what sets them
} HostMemory;

// Lowers what there is to the limit of the cgroup in `folder`. Pages of files that nothing maps can be taken back, and are
// not counted as in use.
static inline void host_memory_limit_(void* memory, const char* folder, int version) {
    HostMemory* m = (HostMemory*)memory;
    char path[1400];
    snprintf(path, sizeof(path), "%s/%s", folder, version == 2 ? "memory.max" : "memory.limit_in_bytes");
    size_t limit = cgroup_number(path, "", SIZE_MAX);
    if (limit >= m->total) { return; } // "max", or as good as none
    snprintf(path, sizeof(path), "%s/%s", folder, version == 2 ? "memory.current" : "memory.usage_in_bytes");
    size_t used = cgroup_number(path, "", 0);
    snprintf(path, sizeof(path), "%s/memory.stat", folder);
    size_t cache = cgroup_number(path, version == 2 ? "inactive_file " : "total_inactive_file ", 0);
    used = used > cache ? used - cache : 0;
    size_t available = limit > used ? limit - used : 0;
    m->total = limit;
    m->limit = "the cgroup's limit";
    if (available < m->available) { m->available = available; }
}

// `root` stands before /proc and /sys: "" but in tests.
static inline HostMemory host_memory(const char* root) {
    char path[512];
    HostMemory m;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    snprintf(path, sizeof(path), "%s/proc/meminfo", root);
    m.total = cgroup_number(path, "MemTotal:", 0) * 1024;
    if (m.total == 0) { m.total = (size_t)sysconf(_SC_PHYS_PAGES) * page; }
    m.available = size_mul(cgroup_number(path, "MemAvailable:", m.total / 1024), 1024);
    m.limit = "the machine's memory";
    cgroup_visit(root, "memory", host_memory_limit_, &m);
    return m;
}

// The most memory that this process has held, in bytes; 0 if the system does not say.
static inline size_t host_memory_peak(void) { return cgroup_number("/proc/self/status", "VmHWM:", 0) * 1024; }

#endif
