/*
The folder of a run (-o) on the disk: its checkpoints and the newest whole one of them, files left by a killed run, whether
another run is active, and which checkpoints -nk deletes.

    run_folder_lock(&folder, "log124M");                 // a second run ends here
    run_folder_scan(&scan, "log124M");
    int step = run_folder_newest(&folder, &scan, is_whole); // a function on a folder and a step
    ...                                                  // all that could refuse the run
    run_folder_clean(&scan, step);                       // the first change on the disk
    run_folder_hold(&folder);                            // before a save: somebody may have deleted the folder
    run_folder_keep(&folder, 5, 1000, 400);              // after checkpoint 400 was written; in any thread

Only files with the names of checkpoint.h's, main.log, main.jsonl, main.flags and their .tmp files are looked at, and only they
are ever removed.
*/
#ifndef LLMC_FILES_RUN_FOLDER_H
#define LLMC_FILES_RUN_FOLDER_H

#include <dirent.h>
#include <limits.h>
#include <sys/file.h>

#include "llmc/base/atomic_file.h"
#include "llmc/base/regular_file.h"
#include "llmc/base/utils.h"

typedef struct {
    char path[1024];
    int lock; // file descriptor of the lock; -1: none
    int slot; // the lock's among the temporary files, which are removed however the process ends, unless it is killed
    int* damaged; // (num_damaged) steps of checkpoints that were found not to be whole
    int num_damaged;
    char damage[2048]; // what is wrong with the newest of them
    const char* flags; // (flags_bytes) text of main.flags, which is the caller's; NULL: none yet
    size_t flags_bytes;
    int64_t flags_time; // atomic: when it was written, by which the run knows its folder again
} RunFolder;

typedef enum { FOLDER_MODEL, FOLDER_STATE, FOLDER_DONE, FOLDER_LOG, FOLDER_TEMPORARY } FolderFileKind;

typedef struct {
    FolderFileKind kind;
    int step; // -1: the file is of no step
    char name[64];
} FolderFile;

typedef struct {
    char path[1024];
    int exists;        // 0: there is no such folder
    int log_has_lines; // main.log exists and has more than the run's id
    FolderFile* files; // (num_files), the newest step first
    size_t num_files;
} RunFolderScan;

// ----------------------------------------------------------------------------
// Scanning

// 1 if a file of that name is one of a run's: the name is what its step and rank are printed as, or that and .tmp.
static inline int folder_parse_(FolderFile* file, const char* name) {
    static const char* const logs[] = {"main.log", "main.jsonl", "main.flags"};
    char base[sizeof(file->name)], printed[sizeof(file->name)] = "";
    int step = -1, rank = -1, is_temporary = ends_with(name, ".tmp");
    if (strlen(name) >= sizeof(file->name)) { return 0; }
    strcpy(file->name, name);
    snprintf(base, sizeof(base), "%.*s", (int)strlen(name) - (is_temporary ? 4 : 0), name);
    file->kind = FOLDER_LOG;
    for (int i = 0; i < 3; i++) {
        if (strcmp(base, logs[i]) == 0) { strcpy(printed, base); }
    }
    if (sscanf(base, "model_%d", &step) == 1) {
        file->kind = FOLDER_MODEL;
        snprintf(printed, sizeof(printed), "model_%08d.bin", step);
    } else if (sscanf(base, "state_%d_%d", &step, &rank) == 2) {
        file->kind = FOLDER_STATE;
        snprintf(printed, sizeof(printed), "state_%08d_%05d.bin", step, rank);
    } else if (sscanf(base, "DONE_%d", &step) == 1) {
        file->kind = FOLDER_DONE;
        snprintf(printed, sizeof(printed), "DONE_%08d", step);
    }
    file->step = step;
    if (is_temporary) { file->kind = FOLDER_TEMPORARY; }
    return base[0] != '\0' && strcmp(base, printed) == 0 && strchr(base, '-') == NULL;
}

static inline int folder_compare_(const void* a, const void* b) {
    const FolderFile *x = (const FolderFile*)a, *y = (const FolderFile*)b;
    if (x->step != y->step) { return x->step < y->step ? 1 : -1; }
    return strcmp(x->name, y->name);
}

static inline void run_folder_scan_free(RunFolderScan* scan) {
    free(scan->files);
    scan->files = NULL, scan->num_files = 0;
}

static inline Status folder_add_(RunFolderScan* scan, const char* name) {
    FolderFile file;
    if (!folder_parse_(&file, name)) { return STATUS_OK; }
    if ((scan->num_files & (scan->num_files + 1)) == 0) { // 0, 1, 3, 7: there is room for one more, and it doubles
        FolderFile* more = (FolderFile*)realloc(scan->files, 2 * (scan->num_files + 1) * sizeof(FolderFile));
        if (more == NULL) { return status_fail("out of memory: cannot list %s", scan->path); }
        scan->files = more;
    }
    scan->files[scan->num_files++] = file;
    return STATUS_OK;
}

// 1 if a log has more than the run's id, its first line. That is all there is of a run that ended before its first step.
static inline int folder_log_has_lines_(const char* log) {
    char line[64];
    struct stat st;
    FILE* file;
    if (fopen_regular(&file, &st, log) != STATUS_OK) {
        status_clear();
        return stat(log, &st) == 0 && st.st_size > 0;
    }
    const char* first = fgets(line, sizeof(line), file);
    int more = first != NULL && (strncmp(line, "s:0 run:", 8) != 0 || fgets(line, sizeof(line), file) != NULL);
    fclose(file);
    return more;
}

// Lists the files of a run in a folder, which need not exist; run_folder_scan_free frees the list. A folder that cannot be
// read is an error: to a run that resumes it would look empty.
static inline Status run_folder_scan(RunFolderScan* scan, const char* path) {
    char log[1024 + 16];
    struct dirent* entry;
    status_clear();
    memset(scan, 0, sizeof(*scan));
    if (strlen(path) > 680) { return status_fail("-o: the path is longer than 680 bytes: %s", path); }
    strcpy(scan->path, path);
    DIR* dir = opendir(path);
    if (dir == NULL && errno == ENOENT) { return STATUS_OK; }
    Status status = STATUS_OK;
    while (dir != NULL && status == STATUS_OK && (errno = 0, entry = readdir(dir)) != NULL) {
        status = folder_add_(scan, entry->d_name);
    }
    if (status == STATUS_OK && errno != 0) {
        status = status_fail("cannot read the directory %s: %s", path, strerror(errno));
    }
    if (dir != NULL) { closedir(dir); }
    if (status != STATUS_OK) {
        run_folder_scan_free(scan);
        return status;
    }
    if (scan->num_files > 0) { qsort(scan->files, scan->num_files, sizeof(FolderFile), folder_compare_); }
    snprintf(log, sizeof(log), "%s/main.log", path);
    scan->log_has_lines = folder_log_has_lines_(log);
    scan->exists = 1;
    return STATUS_OK;
}

// 1 if the folder has a file of that kind and step.
static inline int folder_has_(const RunFolderScan* scan, FolderFileKind kind, int step) {
    for (size_t i = 0; i < scan->num_files; i++) {
        if (scan->files[i].kind == kind && scan->files[i].step == step) { return 1; }
    }
    return 0;
}

// 1 if all files of the step's checkpoint are there.
static inline int folder_complete_(const RunFolderScan* scan, int step) {
    return folder_has_(scan, FOLDER_DONE, step) && folder_has_(scan, FOLDER_MODEL, step) &&
           folder_has_(scan, FOLDER_STATE, step);
}

// 1 if the step has its DONE and only one of its other files: no kill leaves that, so a user has removed the other.
static inline int folder_is_apart_(const RunFolderScan* scan, int step) {
    return folder_has_(scan, FOLDER_DONE, step) &&
           folder_has_(scan, FOLDER_MODEL, step) != folder_has_(scan, FOLDER_STATE, step);
}

static inline int folder_has_weights_(const RunFolderScan* scan, int step) {
    return folder_has_(scan, FOLDER_MODEL, step);
}

// The newest step below `below` with its DONE that is such, or -1.
static inline int folder_find_(const RunFolderScan* scan, int below, int (*is)(const RunFolderScan* scan, int step)) {
    for (size_t i = 0; i < scan->num_files; i++) {
        const FolderFile* f = &scan->files[i];
        if (f->kind == FOLDER_DONE && f->step < below && is(scan, f->step)) { return f->step; }
    }
    return -1;
}

static inline int folder_lacks_files_(const RunFolderScan* scan, int step) { return !folder_complete_(scan, step); }

// The newest step that has its DONE and not all of its other files, which a user has removed; or -1.
static inline int run_folder_apart(const RunFolderScan* scan) {
    return folder_find_(scan, INT_MAX, folder_lacks_files_);
}

// The newest step below `below` whose checkpoint has all its files; -1 if there is none.
static inline int run_folder_next(const RunFolderScan* scan, int below) {
    return folder_find_(scan, below, folder_complete_);
}

// The same for callers that need the weights only: the newest with its DONE and its weights.
static inline int run_folder_next_weights(const RunFolderScan* scan, int below) {
    return folder_find_(scan, below, folder_has_weights_);
}

// 1 if the folder holds files of a checkpoint, whole or not.
static inline int run_folder_has_checkpoints(const RunFolderScan* scan) {
    for (size_t i = 0; i < scan->num_files; i++) {
        if (scan->files[i].kind <= FOLDER_DONE) { return 1; }
    }
    return 0;
}

static inline int folder_is_damaged_(const RunFolder* folder, int step) {
    for (int i = 0; i < folder->num_damaged; i++) {
        if (folder->damaged[i] == step) { return 1; }
    }
    return 0;
}

// Ends the program if a file of a checkpoint exists but cannot be opened, for lack of permission or because of a dangling link:
// it may be whole, and a run that skipped it would replace it. I/O errors count as damage.
static inline void folder_check_access_(const RunFolderScan* scan, int step) {
    char path[1024 + 64];
    for (size_t i = 0; i < scan->num_files; i++) {
        const FolderFile* f = &scan->files[i];
        if (f->step != step || (f->kind != FOLDER_MODEL && f->kind != FOLDER_STATE)) { continue; }
        snprintf(path, sizeof(path), "%s/%s", scan->path, f->name);
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0 && errno != EIO) {
            fatal("-y 1: cannot open %s: %s; fix that, or move the files of checkpoint %d away", path, strerror(errno),
                  step);
        }
        if (fd >= 0) { close(fd); }
    }
}

// The newest step above `above` that lacks its DONE alone and passes `verify`, or -1: a kill came before DONE was written, or a
// copy of the folder has no empty files. The scan has its DONE then, which run_folder_clean writes.
static inline int folder_adopt_(RunFolderScan* scan, int above, Status (*verify)(const char* path, int step)) {
    char done[32];
    for (size_t i = 0; i < scan->num_files; i++) {
        const int step = scan->files[i].step;
        if (scan->files[i].kind != FOLDER_STATE || step <= above || folder_has_(scan, FOLDER_DONE, step) ||
            !folder_has_(scan, FOLDER_MODEL, step)) {
            continue;
        }
        status_clear();
        if (verify(scan->path, step) != STATUS_OK) { continue; }
        snprintf(done, sizeof(done), "DONE_%08d", step);
        if (folder_add_(scan, done) != STATUS_OK) { return -1; }
        printf("note: checkpoint %d is whole, though there is no %s\n", step, done);
        qsort(scan->files, scan->num_files, sizeof(FolderFile), folder_compare_);
        return step;
    }
    return -1;
}

// The newest checkpoint that passes `verify`, or -1. Reports the others, with the reason, and keeps them: run_folder_keep
// deletes those older than a whole one, and the run replaces later ones when it reaches their steps.
static inline int run_folder_newest(RunFolder* folder, RunFolderScan* scan,
                                    Status (*verify)(const char* path, int step)) {
    int step = run_folder_next(scan, INT_MAX);
    for (; step >= 0; step = run_folder_next(scan, step)) {
        status_clear();
        if (verify(scan->path, step) == STATUS_OK) { break; }
        folder_check_access_(scan, step);
        printf("note: skipped checkpoint %d: %s\n", step, status_message());
        if (folder->num_damaged == 0) { snprintf(folder->damage, sizeof(folder->damage), "%s", status_message()); }
        folder->damaged = (int*)realloc(folder->damaged, (size_t)(folder->num_damaged + 1) * sizeof(int));
        if (folder->damaged == NULL) { fatal("out of memory: cannot list damaged checkpoints"); }
        folder->damaged[folder->num_damaged++] = step;
    }
    for (int s = INT_MAX; (s = folder_find_(scan, s, folder_is_apart_)) > step;) {
        int has_model = folder_has_(scan, FOLDER_MODEL, s);
        printf("note: skipped checkpoint %d: %s/%s_%08d%s.bin is not there\n", s, scan->path,
               has_model ? "state" : "model", s, has_model ? "_00000" : "");
    }
    const int adopted = folder_adopt_(scan, step, verify);
    status_clear();
    return adopted >= 0 ? adopted : step;
}

// ----------------------------------------------------------------------------
// Removing

static inline Status folder_remove_(const char* path, const char* name) {
    char file[1024 + 64];
    snprintf(file, sizeof(file), "%s/%s", path, name);
    if (remove(file) == 0 || errno == ENOENT) { return STATUS_OK; }
    return status_fail("cannot delete %s: %s", file, strerror(errno));
}

// Removes a checkpoint. DONE goes first, the state last: what is left of an interrupted removal is not a checkpoint, and
// has a state, which without its DONE is of no use to anybody.
static inline Status folder_remove_step_(const RunFolderScan* scan, int step) {
    static const FolderFileKind order[] = {FOLDER_DONE, FOLDER_MODEL, FOLDER_STATE};
    Status status = STATUS_OK;
    for (size_t k = 0; k < sizeof(order) / sizeof(order[0]); k++) {
        for (size_t i = 0; i < scan->num_files && status == STATUS_OK; i++) {
            const FolderFile* f = &scan->files[i];
            if (f->step == step && f->kind == order[k]) { status = folder_remove_(scan->path, f->name); }
        }
    }
    return status;
}

// A damaged checkpoint that was written anew is whole.
static inline void folder_forget_damage_(RunFolder* folder, int step) {
    int left = 0;
    for (int i = 0; i < folder->num_damaged; i++) {
        if (folder->damaged[i] != step) { folder->damaged[left++] = folder->damaged[i]; }
    }
    folder->num_damaged = left;
}

// Implements -nk after checkpoint `newest` was written: of the checkpoints up to it, keeps the `keep` newest and those at
// multiples of `major`; deletes older and damaged ones. It counts what is on the disk. keep 0: keeps all; major 0: no
// multiples. Does not print or end the program, so that any thread may call it.
static inline Status run_folder_keep(RunFolder* folder, int keep, int major, int newest) {
    RunFolderScan scan;
    int kept = 0;
    folder_forget_damage_(folder, newest);
    if (keep <= 0) { return STATUS_OK; }
    TRY(run_folder_scan(&scan, folder->path));
    Status status = STATUS_OK;
    for (int step = run_folder_next(&scan, newest); step >= 0; step = run_folder_next(&scan, step)) {
        int damaged = folder_is_damaged_(folder, step);
        int stays = (!damaged && kept + 1 < keep) || (major > 0 && step % major == 0);
        kept += !damaged;
        if (!stays && status == STATUS_OK) { status = folder_remove_step_(&scan, step); }
    }
    run_folder_scan_free(&scan);
    return status;
}

// Why a file is a leftover of a killed run; NULL if it is not. A save puts the state in place first and a removal takes it
// last, so a model without one was kept on purpose.
static inline const char* folder_leftover_(const RunFolderScan* scan, const FolderFile* f) {
    if (f->kind == FOLDER_TEMPORARY) { return "its writing did not end"; }
    if (f->kind == FOLDER_LOG || folder_complete_(scan, f->step) || folder_is_apart_(scan, f->step)) { return NULL; }
    if (f->kind == FOLDER_DONE) { return "its checkpoint is not there"; }
    return folder_has_(scan, FOLDER_STATE, f->step) ? "its checkpoint was not completed" : NULL;
}

// Writes the DONE of a checkpoint that was found whole without it; one that is there stays as it is.
static inline Status folder_write_done_(const RunFolderScan* scan, const FolderFile* f) {
    char file[1024 + 64];
    snprintf(file, sizeof(file), "%s/%s", scan->path, f->name);
    const int fd = open(file, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (fd < 0 && errno != EEXIST) { return status_fail("cannot write %s: %s", file, strerror(errno)); }
    if (fd >= 0) { close(fd); }
    return STATUS_OK;
}

// Removes the leftovers of a killed run from its folder, and prints them; writes the DONE that run_folder_newest has missed.
static inline Status run_folder_clean(const RunFolderScan* scan, int step) {
    for (size_t i = 0; i < scan->num_files; i++) {
        const FolderFile* f = &scan->files[i];
        if (f->kind == FOLDER_DONE && f->step == step) { TRY(folder_write_done_(scan, f)); }
        const char* why = folder_leftover_(scan, &scan->files[i]);
        if (why == NULL) { continue; }
        TRY(folder_remove_(scan->path, scan->files[i].name));
        printf("note: removed %s/%s: %s\n", scan->path, scan->files[i].name, why);
    }
    return STATUS_OK;
}

// Removes all files of a run, for --overwrite. A kill in between leaves no checkpoint that looks whole.
static inline Status run_folder_clear(const RunFolderScan* scan) {
    size_t removed = 0;
    for (int done = 1; done >= 0; done--) {
        for (size_t i = 0; i < scan->num_files; i++) {
            if ((scan->files[i].kind == FOLDER_DONE) != done) { continue; }
            TRY(folder_remove_(scan->path, scan->files[i].name));
            removed++;
        }
    }
    if (removed > 0) { printf("note: --overwrite removed %zu files of a run from %s\n", removed, scan->path); }
    return STATUS_OK;
}

// ----------------------------------------------------------------------------
// One run at a time: a lock that the kernel releases when the process ends, however it ends

// 1 if an open file is the one of that name: another run may have removed it, and made its own.
static inline int folder_is_named_(int fd, const char* file) {
    struct stat opened, named;
    return fstat(fd, &opened) == 0 && stat(file, &named) == 0 && opened.st_dev == named.st_dev &&
           opened.st_ino == named.st_ino;
}

// Opens and locks <path>/main.lock. 1: locked; 0: the file system has no locks; -1: an error, errno is why.
static inline int folder_try_lock_(int* fd, const char* file) {
    for (int attempt = 0; attempt < 100; attempt++) {
        *fd = open(file, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
        if (*fd < 0) { return -1; }
        if (flock(*fd, LOCK_EX | LOCK_NB) != 0) {
            return errno == ENOLCK || errno == EOPNOTSUPP || errno == ENOSYS || errno == EINVAL ? 0 : -1;
        }
        // the run before has removed its file between our open and our lock: then this lock is nobody's
        if (folder_is_named_(*fd, file)) { return 1; }
        close(*fd);
    }
    *fd = -1;
    errno = EBUSY;
    return -1;
}

// Locks a folder for this run, and names it; one that does not exist is only named. An error names who holds the lock. Without
// an error there is no lock where the file system has none.
static inline Status run_folder_lock(RunFolder* folder, const char* path) {
    char file[1024 + 16], text[256] = "", process[20] = "?", host[200] = "?";
    struct stat st;
    status_clear();
    memset(folder, 0, sizeof(*folder));
    folder->lock = -1;
    if (strlen(path) > 680) { return status_fail("-o: the path is longer than 680 bytes: %s", path); }
    strcpy(folder->path, path);
    if (stat(path, &st) != 0 && errno == ENOENT) { return STATUS_OK; }
    snprintf(file, sizeof(file), "%s/main.lock", path);
    int fd, locked = folder_try_lock_(&fd, file), error = errno;
    if (locked < 0 && fd >= 0 && pread(fd, text, sizeof(text) - 1, 0) > 0) {
        if (sscanf(text, "%19s %199s", process, host) < 2) { strcpy(process, "?"); }
    }
    if (locked <= 0 && fd >= 0) { close(fd); }
    if (locked < 0 && error == EWOULDBLOCK) {
        return status_fail("-o %s: process %s on %s is using it (it holds %s); wait for it, or name another "
                           "folder",
                           path, process, host, file);
    }
    if (locked < 0) { return status_fail("cannot lock %s: %s", file, strerror(error)); }
    if (locked == 0) { return STATUS_OK; }
    gethostname(host, sizeof(host) - 1);
    int length = snprintf(text, sizeof(text), "%ld %s\n", (long)getpid(), host);
    if (ftruncate(fd, 0) != 0 || pwrite(fd, text, (size_t)length, 0) != length) { /* a full disk: it is locked still */
    }
    folder->lock = fd;
    folder->slot = temporary_add(file);
    return STATUS_OK;
}

// Ends the lock and removes its file, unless somebody has: then the name is another run's.
static inline void run_folder_unlock(RunFolder* folder) {
    free(folder->damaged);
    folder->damaged = NULL, folder->num_damaged = 0;
    if (folder->lock < 0) { return; }
    char file[1024 + 16];
    snprintf(file, sizeof(file), "%s/main.lock", folder->path);
    if (folder_is_named_(folder->lock, file)) { remove(file); }
    temporary_remove(folder->slot);
    close(folder->lock);
    folder->lock = -1;
}

// ----------------------------------------------------------------------------
// A folder that is deleted while its run continues: another run may take it

// When the folder's main.flags was written, in ns since 1970; 0 if there is none.
static inline int64_t folder_flags_time_(const RunFolder* folder) {
    char file[1024 + 16];
    struct stat st;
    snprintf(file, sizeof(file), "%s/main.flags", folder->path);
    return stat(file, &st) == 0 ? (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec : 0;
}

// Writes folder->flags as main.flags.
static inline Status run_folder_write_flags(RunFolder* folder) {
    char path[1024];
    AtomicFile file;
    snprintf(path, sizeof(path), "%.960s/main.flags", folder->path);
    TRY(atomic_open(&file, path));
    TRY(atomic_write(&file, folder->flags, folder->flags_bytes));
    TRY(atomic_commit(&file));
    __atomic_store_n(&folder->flags_time, folder_flags_time_(folder), __ATOMIC_RELAXED);
    return STATUS_OK;
}

// 1 if the folder has this run's main.lock or main.flags: no other run has taken it. Always 1 for a run without a lock. A
// folder that was moved to another disk still has its main.flags, with its time. May be called in any thread.
static inline int run_folder_is_ours(const RunFolder* folder) {
    char file[1024 + 16];
    if (folder->lock < 0 || folder->flags == NULL) { return 1; }
    snprintf(file, sizeof(file), "%s/main.lock", folder->path);
    if (folder_is_named_(folder->lock, file)) { return 1; }
    int64_t now = folder_flags_time_(folder);
    return now != 0 && now == __atomic_load_n(&folder->flags_time, __ATOMIC_RELAXED);
}

// Locks the folder anew, unless another run holds it or has left files there. The lock keeps its file descriptor, which other
// threads look at.
static inline Status folder_lock_again_(RunFolder* folder) {
    RunFolder again;
    RunFolderScan scan;
    TRY(run_folder_lock(&again, folder->path));
    Status status = run_folder_scan(&scan, folder->path);
    if (status == STATUS_OK && scan.num_files > 0 && !run_folder_is_ours(folder)) {
        status = status_fail("-o %s: it was deleted, and has files of another run now; move them away", folder->path);
    }
    run_folder_scan_free(&scan);
    if (status == STATUS_OK && again.lock >= 0 && dup3(again.lock, folder->lock, O_CLOEXEC) < 0) {
        status = status_fail("cannot lock %s: %s", folder->path, strerror(errno));
    }
    if (status != STATUS_OK) { run_folder_unlock(&again); }
    if (again.lock < 0) { return status; }
    folder->slot = again.slot;
    close(again.lock);
    return STATUS_OK;
}

// Before a save: makes sure that the folder, which must exist, is still this run's, with main.lock and main.flags. Does not
// print or end the program.
static inline Status run_folder_hold(RunFolder* folder) {
    char file[1024 + 16];
    status_clear();
    if (folder->lock < 0 || folder->flags == NULL) { return STATUS_OK; }
    snprintf(file, sizeof(file), "%s/main.lock", folder->path);
    if (!folder_is_named_(folder->lock, file)) {
        temporary_remove(folder->slot); // the name is nobody's, or another run's
        folder->slot = -1;
        TRY(folder_lock_again_(folder));
    }
    return folder_flags_time_(folder) != 0 ? STATUS_OK : run_folder_write_flags(folder);
}

#endif
