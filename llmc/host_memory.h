/*
How much memory the host has left for a process, and how much a process has taken: from /proc, and from the limits that
containers and batch systems set by cgroups, version 2 and version 1. Where there is neither, what sysconf says.
*/
#ifndef LLMC_HOST_MEMORY_H
#define LLMC_HOST_MEMORY_H

#include "utils.h"

typedef struct {
    size_t available; // bytes that can still be had without swapping
    size_t total;
    const char* limit; // what sets them
} HostMemory;

// The number after `key`, at the beginning of a line of a file; with an empty key, the file's first number. `fallback`
// where there is none, as where a limit is "max".
static inline size_t host_memory_number_(const char* path, const char* key, size_t fallback) {
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

// Lowers what there is to the limit of the cgroup in `folder`. Pages of files that nothing maps can be taken back, and are
// not counted as in use.
static inline void host_memory_limit_(HostMemory* m, const char* folder, const char* limit_file, const char* used_file,
                                      const char* cache_key) {
    char path[1400];
    snprintf(path, sizeof(path), "%s/%s", folder, limit_file);
    size_t limit = host_memory_number_(path, "", SIZE_MAX);
    if (limit >= m->total) { return; } // "max", or as good as none
    snprintf(path, sizeof(path), "%s/%s", folder, used_file);
    size_t used = host_memory_number_(path, "", 0);
    snprintf(path, sizeof(path), "%s/memory.stat", folder);
    size_t cache = host_memory_number_(path, cache_key, 0);
    used = used > cache ? used - cache : 0;
    size_t available = limit > used ? limit - used : 0;
    m->total = limit;
    m->limit = "the cgroup's limit";
    if (available < m->available) { m->available = available; }
}

// The same for the cgroup `group` below `base` and for all that it is in: each may have a limit. In a container the group
// often lies elsewhere than its name says; then it is the nearest above that is seen.
static inline void host_memory_limits_(HostMemory* m, const char* base, const char* group, int version) {
    char folder[1280];
    snprintf(folder, sizeof(folder), "%s%s", base, group);
    while (strlen(folder) >= strlen(base)) {
        if (version == 2) {
            host_memory_limit_(m, folder, "memory.max", "memory.current", "inactive_file ");
        } else {
            host_memory_limit_(m, folder, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file ");
        }
        char* slash = strrchr(folder, '/');
        if (slash == NULL) { break; }
        *slash = '\0';
    }
}

// `root` stands before /proc and /sys: "" but in tests.
static inline HostMemory host_memory(const char* root) {
    char path[512], line[1024];
    HostMemory m;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    snprintf(path, sizeof(path), "%s/proc/meminfo", root);
    m.total = host_memory_number_(path, "MemTotal:", 0) * 1024;
    if (m.total == 0) { m.total = (size_t)sysconf(_SC_PHYS_PAGES) * page; }
    m.available = size_mul(host_memory_number_(path, "MemAvailable:", m.total / 1024), 1024);
    m.limit = "the machine's memory";
    snprintf(path, sizeof(path), "%s/proc/self/cgroup", root);
    FILE* file = fopen(path, "r");
    while (file != NULL && fgets(line, sizeof(line), file) != NULL) { // "0::/group" or "4:memory:/group"
        char* controllers = strchr(line, ':');
        char* group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (group == NULL) { continue; }
        *group++ = '\0';
        group[strcspn(group, "\n")] = '\0';
        if (strcmp(group, "/") == 0) { group++; }
        if (controllers[1] == '\0') {
            snprintf(path, sizeof(path), "%s/sys/fs/cgroup", root);
            host_memory_limits_(&m, path, group, 2);
        } else if (strcmp(controllers + 1, "memory") == 0) {
            snprintf(path, sizeof(path), "%s/sys/fs/cgroup/memory", root);
            host_memory_limits_(&m, path, group, 1);
        }
    }
    if (file != NULL) { fclose(file); }
    return m;
}

// The most memory that this process has held, in bytes; 0 if the system does not say.
static inline size_t host_memory_peak(void) { return host_memory_number_("/proc/self/status", "VmHWM:", 0) * 1024; }

#endif
