/*
The rendezvous file by which the processes of comm.h find rank 0 if no address is known beforehand. Rank 0 listens, then
writes address, port and a random secret into it, the token of the rendezvous; it removes the file when all have connected.

An existing file is refused by all, in one line: rank 0 never overwrites one, and no process uses a file of another program, of
another job, or of a process that has ended. Files appear whole: they are linked to their name.
*/
#ifndef LLMC_COMM_FILE_H
#define LLMC_COMM_FILE_H

#include <signal.h>
#include <sys/random.h>

#include "socket.h"
#include "llmc/base/atomic_file.h"

enum { COMM_FILE_BYTES = 4096, COMM_SECRET_BYTES = 33 };

// What a rendezvous file says, line by line
typedef struct {
    char address[64], secret[COMM_SECRET_BYTES], job[2 * 256], host[256];
    char machine[128]; // this boot of that machine, and its space of process ids: "" if it is not known
    int port, pid;
    unsigned long long began; // when that process began, in ticks; 0: not known
} CommFile;

static const char comm_file_head_[] = "flashgpt rendezvous 1\n";

// When a process began, in ticks since its machine did; 0: there is none
static inline unsigned long long comm_began_(int pid) {
    char path[64], text[1024];
    unsigned long long began = 0;
    snprintf(path, sizeof(path), "/proc/%d/stat", pid);
    FILE* file = fopen(path, "r");
    if (file == NULL) { return 0; }
    text[fread(text, 1, sizeof(text) - 1, file)] = '\0';
    fclose(file);
    const char* rest = strrchr(text, ')'); // behind the program's name; the 20th field from there
    for (int field = 0; rest != NULL && field < 20; field++) { rest = strchr(rest + 1, ' '); }
    return rest != NULL && sscanf(rest, " %llu", &began) == 1 ? began : 0;
}

static inline void comm_machine_(char* machine, size_t size) {
    char boot[64] = "", space[64] = "";
    FILE* file = fopen("/proc/sys/kernel/random/boot_id", "r");
    if (file != NULL) {
        if (fscanf(file, "%63s", boot) != 1) { boot[0] = '\0'; }
        fclose(file);
    }
    ssize_t n = readlink("/proc/self/ns/pid", space, sizeof(space) - 1);
    space[n > 0 ? n : 0] = '\0';
    snprintf(machine, size, "%s%s", boot[0] && space[0] ? boot : "", boot[0] && space[0] ? space : "");
}

// The job's token as hexadecimal digits: it may hold anything.
static inline void comm_job_(char* job, const char* token) {
    job[0] = '\0';
    for (size_t i = 0; token[i] != '\0'; i++) { snprintf(job + 2 * i, 3, "%02x", (unsigned char)token[i]); }
}

// 1 if the text is that of a rendezvous file, whole.
static inline int comm_file_parse_(CommFile* f, const char* text) {
    int end = 0;
    size_t head = sizeof(comm_file_head_) - 1;
    memset(f, 0, sizeof(*f));
    if (strncmp(text, comm_file_head_, head) != 0) { return 0; }
    int fields = sscanf(text + head, "address %63s port %d secret %32s job =%511[0-9a-f] host %255s", f->address,
                        &f->port, f->secret, f->job, f->host);
    const char* rest = strstr(text + head, "\nhost ");
    if (fields == 3) {
        fields += sscanf(rest != NULL ? rest : "", " host %255s", f->host) + 1;
    } // a job without a token
    if (fields != 5 || rest == NULL || (rest = strstr(rest, "\nmachine =")) == NULL) { return 0; }
    size_t n = strcspn(rest + 10, "\n");
    if (n >= sizeof(f->machine)) { return 0; }
    memcpy(f->machine, rest + 10, n);
    fields = sscanf(rest + 10 + n, " pid %d began %llu end%n", &f->pid, &f->began, &end);
    return fields == 2 && end > 0 && f->port > 0 && f->port < 65536;
}

// Reads a rendezvous file. 0: there is none; 1: it is one, and of this job; -1: it is refused, with an error
static inline int comm_file_read_(CommFile* f, const char* path, const char* token) {
    char text[COMM_FILE_BYTES], job[2 * 256], machine[128];
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 && errno == ENOENT) { return 0; }
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);
    int error = errno;
    if (fd >= 0) { close(fd); }
    if (n < 0) {
        status_fail("cannot read the rendezvous file %s: %s", path, strerror(error));
        return -1;
    }
    text[n] = '\0';
    if (!comm_file_parse_(f, text)) {
        status_fail("%s is no rendezvous file of this program; remove it, or name another folder (-pf)", path);
        return -1;
    }
    comm_machine_(machine, sizeof(machine));
    if (strcmp(f->machine, machine) == 0 && machine[0] != '\0' && comm_began_(f->pid) != f->began) {
        status_fail("the rendezvous file %s is stale: its process %d on %s is gone; remove it", path, f->pid, f->host);
        return -1;
    }
    comm_job_(job, token);
    if (strcmp(f->job, job) != 0) {
        status_fail("the rendezvous file %s is of another job, process %d on %s; name another folder (-pf)", path,
                    f->pid, f->host);
        return -1;
    }
    return 1;
}

// Rank 0: refuses a file that is there.
static inline Status comm_file_refuse(const char* path, const char* token) {
    CommFile f;
    int found = comm_file_read_(&f, path, token);
    if (found == 0) { return STATUS_OK; }
    if (found < 0) { return STATUS_ERROR; }
    return status_fail("the rendezvous file %s is there already, of process %d on %s; name another folder (-pf)", path,
                       f.pid, f.host);
}

// Gives the file its name, unless there is a file of that name. Some file systems have no links.
static inline int comm_file_name_(const char* temporary, const char* path) {
    if (link(temporary, path) == 0) { return 1; }
    if (errno != EPERM && !atomic_not_supported(errno)) { return 0; }
    return access(path, F_OK) != 0 && rename(temporary, path) == 0;
}

// Writes a text into a new file of this user's alone, whole or not at all.
static inline Status comm_file_put_(const char* path, const char* text) {
    char temporary[TEMPORARY_PATH];
    size_t length = strlen(text);
    if (snprintf(temporary, sizeof(temporary), "%s.%d", path, (int)getpid()) >= (int)sizeof(temporary)) {
        return status_fail("the rendezvous file's path is too long: %s", path);
    }
    unlink(temporary);
    int fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    ssize_t n = fd < 0 ? -1 : write(fd, text, length);
    int well = n == (ssize_t)length && atomic_sync_file(fd, temporary) == 0 && comm_file_name_(temporary, path),
        error = errno;
    if (fd >= 0) { close(fd); }
    unlink(temporary);
    return well ? STATUS_OK : status_fail("cannot write the rendezvous file %s: %s", path, strerror(error));
}

// A random token, as COMM_SECRET_BYTES of hexadecimal digits
static inline Status comm_secret(char* secret) {
    unsigned char bytes[(COMM_SECRET_BYTES - 1) / 2];
    if (getrandom(bytes, sizeof(bytes), 0) != (ssize_t)sizeof(bytes)) {
        return status_fail("no random numbers: %s", strerror(errno));
    }
    for (size_t i = 0; i < sizeof(bytes); i++) { snprintf(secret + 2 * i, 3, "%02x", bytes[i]); }
    return STATUS_OK;
}

// Rank 0, which listens: writes the file. `slot` is for comm_file_remove, `secret` for those who come.
static inline Status comm_file_write(const char* path, const char* token, int listener, int* slot, char* secret) {
    char text[COMM_FILE_BYTES];
    CommFile f;
    memset(&f, 0, sizeof(f));
    TRY(comm_secret(secret));
    if (gethostname(f.host, sizeof(f.host) - 1) != 0 || f.host[0] == '\0') { strcpy(f.host, "unknown"); }
    comm_machine_(f.machine, sizeof(f.machine));
    comm_job_(f.job, token);
    snprintf(text, sizeof(text),
             "%saddress %s\nport %d\nsecret %s\njob =%s\nhost %s\nmachine =%s\npid %d\nbegan %llu\nend\n",
             comm_file_head_, comm_host(listener), comm_port(listener), secret, f.job, f.host, f.machine, (int)getpid(),
             comm_began_((int)getpid()));
    TRY(comm_file_put_(path, text));
    *slot = temporary_add(path);
    return STATUS_OK;
}

// Rank 0, once all have met: removes the file, which `slot` of the temporary files holds.
static inline void comm_file_remove(const char* path, int slot) {
    unlink(path);
    temporary_remove(slot);
}

// The others: wait for the file until the deadline, and learn from it where rank 0 listens.
static inline Status comm_file_wait(const char* path, const char* token, double deadline, struct sockaddr_in* root,
                                    char* secret) {
    CommFile f;
    int found;
    while ((found = comm_file_read_(&f, path, token)) == 0) {
        if (wall_seconds() > deadline) {
            return status_fail("rank 0 has not written the rendezvous file %s until --connect-timeout; was it started, "
                               "and does it see the same folder?",
                               path);
        }
        poll(NULL, 0, 50);
    }
    if (found < 0) { return STATUS_ERROR; }
    strcpy(secret, f.secret);
    return comm_resolve(root, f.address, f.port, deadline);
}

#endif
