/*
How much memory the host has left for a process, and how much a process has taken: from /proc, and from the limits that
containers and batch systems set by cgroups, version 2 and version 1. Where there is neither, what sysconf says.
*/
#ifndef LLMC_BASE_HOST_MEMORY_H
#define LLMC_BASE_HOST_MEMORY_H

#include "cgroup.h"

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
