// The CPU trainer with the faults that the environment's FAULT names; see train_with_faults.h.
#include "dev/test/fixtures/file_calls.h"

#include "train_gpt2.c"

#include "train_with_faults.h"

// The faults of the file system that the environment's FILE_FAULTS names, from the beginning on: "rename:38,sync_folder:95",
// each a member of file_faults with its errno.
static void file_faults_read(void) {
    static const struct {
        const char* name;
        int* error;
    } faults[] = {{"sync_file", &file_faults.sync_file},
                  {"sync_folder", &file_faults.sync_folder},
                  {"rename", &file_faults.rename},
                  {"seek", &file_faults.seek},
                  {"no_blocks", &file_faults.no_blocks}};
    char *list = getenv("FILE_FAULTS"), *number;
    for (char* name = list ? strtok(list, ",") : NULL; name != NULL; name = strtok(NULL, ",")) {
        size_t i = 0, n = sizeof(faults) / sizeof(faults[0]), length = strcspn(name, ":");
        while (i < n && (strlen(faults[i].name) != length || strncmp(faults[i].name, name, length) != 0)) { i++; }
        if (i == n || (number = strchr(name, ':')) == NULL) { fatal("FILE_FAULTS: no %s", name); }
        *faults[i].error = atoi(number + 1);
    }
}

int main(int argc, char** argv) {
    file_faults_read();
    faults_read();
    return train_main(argc, argv);
}
