/*
A model's weights for other programs, by what the target is called:

    model.bin            llm.c's file, fp32 or bf16 (model_file.h)
    model.safetensors    one file with Hugging Face's names (hugging_face.h)
    any other name       a folder for Hugging Face's transformers: model, configuration, tokenizer

    TRY(export_check(target, "auto", 0));                                       // before the weights are read
    TRY(export_weights(target, params, config, "auto", &tokenizer, 0));

A target appears whole or not at all: a folder is written as <target>.tmp and then renamed. Nothing is overwritten unless
`overwrite` is 1, and then of folders only those that hold nothing but such an export, which is there until the new one is
whole. What a killed export has left in <target>.tmp is removed by the next one; that of one at work is locked, and refused.
*/
#ifndef LLMC_FILES_EXPORT_WEIGHTS_H
#define LLMC_FILES_EXPORT_WEIGHTS_H

#include <dirent.h>
#include <limits.h>
#include <sys/file.h>

#include "hugging_face.h"
#include "weights_file.h"

// ----------------------------------------------------------------------------
// Folders

static const char* const export_files[] = {
    "model.safetensors", "config.json",           "generation_config.json",  "vocab.json",       "tokenizer.json",
    "merges.txt",        "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"};
enum { NUM_EXPORT_FILES = sizeof(export_files) / sizeof(export_files[0]) };

// 1 if an export writes a file of that name, or one under its temporary name.
static inline int export_is_file_(const char* name) {
    char temporary[64];
    for (int i = 0; i < NUM_EXPORT_FILES; i++) {
        snprintf(temporary, sizeof(temporary), "%s.tmp", export_files[i]);
        if (strcmp(name, export_files[i]) == 0 || strcmp(name, temporary) == 0) { return 1; }
    }
    return 0;
}

// Counts what is in a folder; fails if something else than an export is. A folder that does not exist has nothing.
static inline Status export_look_(const char* folder, int* entries) {
    DIR* dir = opendir(folder);
    int unknown = 0;
    char name[256] = "";
    *entries = 0;
    if (dir == NULL && errno == ENOENT) { return STATUS_OK; }
    if (dir == NULL) { return status_fail("--export: cannot read %s: %s", folder, strerror(errno)); }
    for (struct dirent* entry; (entry = readdir(dir)) != NULL;) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) { continue; }
        (*entries)++;
        if (export_is_file_(entry->d_name)) { continue; }
        snprintf(name, sizeof(name), "%s", entry->d_name);
        unknown = 1;
    }
    closedir(dir);
    if (!unknown) { return STATUS_OK; }
    return status_fail(
        "--export %s: the folder holds %s, which is of no export, and stays as it is; name another folder", folder,
        name);
}

// Removes a folder with an export's files, if it is there.
static inline void export_remove_(const char* folder) {
    char path[1024 + 128];
    for (int i = 0; i < NUM_EXPORT_FILES; i++) {
        snprintf(path, sizeof(path), "%s/%s", folder, export_files[i]);
        remove(path);
        snprintf(path, sizeof(path), "%s/%s.tmp", folder, export_files[i]);
        remove(path);
    }
    rmdir(folder);
}

// ----------------------------------------------------------------------------
// Targets

typedef enum { EXPORT_BIN, EXPORT_SAFETENSORS, EXPORT_FOLDER } ExportKind;

static inline ExportKind export_kind_(const char* target) {
    if (ends_with(target, ".bin")) { return EXPORT_BIN; }
    return ends_with(target, ".safetensors") ? EXPORT_SAFETENSORS : EXPORT_FOLDER;
}

// The target's path: without '/' at its end, and where it is a link to a folder, that folder.
static inline Status export_path_(char path[1024], const char* target) {
    size_t n = strlen(target);
    while (n > 1 && target[n - 1] == '/') { n--; }
    if (n == 0 || n > 900) {
        return status_fail("--export %s: %s", target, n ? "the path is longer than 900 bytes" : "no name is given");
    }
    memcpy(path, target, n);
    path[n] = '\0';
    char* real = folder_exists(path) ? realpath(path, NULL) : NULL;
    if (real != NULL) { snprintf(path, 1024, "%s", real); }
    free(real);
    return STATUS_OK;
}

static inline Status export_busy_(const char* folder) {
    return status_fail("--export: another export is writing %s; wait for it, or name another folder", folder);
}

static inline Status export_make_(const char* folder) {
    if (mkdir(folder, 0777) == 0) { return STATUS_OK; }
    if (errno == EEXIST && folder_exists(folder)) { return export_busy_(folder); } // it was not there just before
    return status_fail("--export: cannot create directory %s: %s", folder, strerror(errno));
}

// Fails if an existing folder cannot be renamed, or is a current directory, which a replacement would remove.
static inline Status export_check_place_(const char* path) {
    struct stat folder, here;
    if (stat(path, &folder) == 0 && stat(".", &here) == 0 && folder.st_dev == here.st_dev &&
        folder.st_ino == here.st_ino) {
        return status_fail("--export %s is the folder that you are in, and would be replaced; name a folder in it",
                           path);
    }
#ifdef STATX_ATTR_MOUNT_ROOT
    struct statx found;
    if (statx(AT_FDCWD, path, 0, 0, &found) == 0 && (found.stx_attributes & STATX_ATTR_MOUNT_ROOT) != 0) {
        return status_fail("--export %s is a mount point, which cannot be replaced; name a folder in it", path);
    }
#endif
    if (access(path, W_OK | X_OK) != 0) { // it could be renamed, but not removed then
        return status_fail("--export: cannot replace %s: %s", path, strerror(errno));
    }
    return STATUS_OK;
}

static inline Status export_check_folder_(const char* path, int overwrite) {
    char temporary[1024 + 8];
    int entries;
    if (folder_exists(path)) { TRY(export_check_place_(path)); }
    snprintf(temporary, sizeof(temporary), "%s.tmp", path);
    TRY(export_look_(temporary, &entries));
    if (!folder_exists(temporary)) {
        TRY(export_make_(temporary));
        rmdir(temporary);
    }
    if (!folder_exists(path)) {
        return name_exists(path) ? status_fail("--export %s is a file, which stays as it is; a folder is written", path)
                                 : STATUS_OK;
    }
    if (overwrite) { return export_look_(path, &entries); }
    if (export_look_(path, &entries) == STATUS_OK && entries == 0) { return STATUS_OK; }
    status_clear();
    return status_fail("--export %s: the folder is not empty, and stays as it is; --overwrite replaces an export",
                       path);
}

// Fails if the target would be refused: a name or type of weights that cannot be, or files that are there already.
static inline Status export_check(const char* target, const char* dtype, int overwrite) {
    char path[1024];
    WeightType type;
    status_clear();
    TRY(weight_type_of(&type, dtype, NULL, 0));
    TRY(export_path_(path, target));
    if (export_kind_(target) == EXPORT_FOLDER) { return export_check_folder_(path, overwrite); }
    if (export_kind_(target) == EXPORT_BIN && strcmp(dtype, "fp16") == 0) {
        return status_fail("--export %s: llm.c's files hold fp32 or bf16, not fp16", target);
    }
    if (folder_exists(path)) { return status_fail("--export %s is a folder; a file is written", target); }
    if (overwrite || !name_exists(path)) { return atomic_check(path); }
    return status_fail("--export %s: the file is there already, and stays as it is; --overwrite replaces it", target);
}

// ----------------------------------------------------------------------------
// Writing

// llm.c's file. Weights that are fp16 without loss are written in fp32, which loses nothing either.
static inline Status export_bin_(const char* path, const float* params, GPT2Config config, WeightType type) {
    static const size_t PIECE = 1 << 11;
    GPT2Parameter table[NUM_PARAMETER_TENSORS];
    uint16_t words[1 << 11];
    size_t count = gpt2_parameters(table, config);
    CheckedWriter file;
    if (type != WEIGHTS_BF16) { return model_file_write(path, config, MODEL_VERSION_FP32, 0, params); }
    TRY(model_file_create(&file, path, config, MODEL_VERSION_BF16));
    for (size_t i = 0, n; i < count; i += n) {
        n = count - i < PIECE ? count - i : PIECE;
        if (cast_weights(words, type, params + i, n) > 0) {
            checked_abandon(&file);
            return status_fail("--export %s: a weight is too large for bf16; --export-dtype fp32 keeps it", path);
        }
        TRY(checked_write(&file, words, n * sizeof(uint16_t)));
    }
    model_file_complete(&file, 0);
    return checked_commit(&file);
}

// Opens a folder and locks it while *fd is open; *fd is -1 if there is none. Fails if another process has locked it, or has
// just replaced it.
static inline Status export_lock_(int* fd, const char* folder) {
    *fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (*fd < 0 && errno == ENOENT) { return STATUS_OK; }
    if (*fd < 0) { return status_fail("--export: cannot open %s: %s", folder, strerror(errno)); }
    int busy = flock(*fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK; // some file systems have no locks
    if (!busy && folder_is_named(*fd, folder)) { return STATUS_OK; }
    close(*fd);
    *fd = -1;
    return export_busy_(folder);
}

static inline void export_unlock_(int fd) {
    if (fd >= 0) { close(fd); }
}

// Renames a complete folder to `path`, replacing an empty folder or, with `overwrite`, an export there.
static inline Status export_rename_(const char* temporary, const char* path, int overwrite) {
    int replaced = -1;
    TRY(export_lock_(&replaced, path)); // it will be `temporary`, until it is removed
    Status status = STATUS_OK;
    if (rename(temporary, path) == 0) {
        status = atomic_sync_directory(path);
    } else if ((errno != ENOTEMPTY && errno != EEXIST) || !overwrite) {
        status = status_fail("cannot rename %s to %s: %s", temporary, path, strerror(errno));
    } else if (renameat2(AT_FDCWD, temporary, AT_FDCWD, path, RENAME_EXCHANGE) != 0) {
        status =
            status_fail("cannot put %s in the place of %s: %s; remove that first", temporary, path, strerror(errno));
    } else {
        export_remove_(temporary);
        status = atomic_sync_directory(path);
    }
    export_unlock_(replaced);
    return status;
}

static inline Status export_folder_(const char* path, const float* params, GPT2Config config, const char* dtype,
                                    const Tokenizer* tokenizer, int overwrite) {
    char temporary[1024 + 8];
    struct stat st;
    int left = -1, fd = -1;
    snprintf(temporary, sizeof(temporary), "%s.tmp", path);
    TRY(export_lock_(&left, temporary)); // what a killed export has left is not locked
    if (left >= 0) { export_remove_(temporary); }
    export_unlock_(left);
    TRY(export_make_(temporary));
    TRY(export_lock_(&fd, temporary));
    Status status = export_hugging_face(temporary, params, config, dtype, tokenizer);
    if (stat(path, &st) == 0) { (void)!chmod(temporary, st.st_mode & 07777); } // where a folder is replaced, its own
    if (status == STATUS_OK) { status = export_rename_(temporary, path, overwrite); }
    if (status != STATUS_OK) { export_remove_(temporary); }
    export_unlock_(fd);
    return status;
}

// A model.safetensors without a config.json beside it does not say how many heads there are.
static inline Status export_safetensors_(const char* path, const float* params, GPT2Config config, WeightType type) {
    TRY(hugging_face_write_model(path, params, config, type));
    if (config.channels != 64 * config.num_heads) {
        print_warning("%s alone does not say that its model has %d heads, of %d channels; an export to a folder does",
                      path, config.num_heads, config.channels / config.num_heads);
    }
    return STATUS_OK;
}

// Says that a model has more positions than it was trained on, which other programs do not look for.
static inline void export_note_trained_(const char* target, GPT2Config config) {
    static const char* const remarks[] = {"", ", which the file alone does not say", " (n_positions)"};
    if (gpt2_trained_length(config) == config.max_seq_len) { return; }
    print_note("%s: its model was trained on %d tokens, and has positions for %d%s", target, config.trained_len,
               config.max_seq_len, remarks[export_kind_(target)]);
}

// Writes the target. params: fp32 in table order. dtype: fp32, bf16, fp16, or auto, which takes 16 bits where nothing is lost.
// tokenizer, for a folder: NULL, or not ready, where there is none.
static inline Status export_weights(const char* target, const float* params, GPT2Config config, const char* dtype,
                                    const Tokenizer* tokenizer, int overwrite) {
    GPT2Parameter table[NUM_PARAMETER_TENSORS];
    WeightType type;
    char path[1024];
    TRY(export_check(target, dtype, overwrite));
    TRY(export_path_(path, target));
    TRY(weight_type_of(&type, dtype, params, gpt2_parameters(table, config)));
    switch (export_kind_(target)) {
    case EXPORT_BIN:
        TRY(export_bin_(path, params, config, type));
        break;
    case EXPORT_SAFETENSORS:
        TRY(export_safetensors_(path, params, config, type));
        break;
    case EXPORT_FOLDER:
        TRY(export_folder_(path, params, config, dtype, tokenizer, overwrite));
        break;
    }
    export_note_trained_(target, config);
    return STATUS_OK;
}

#endif
