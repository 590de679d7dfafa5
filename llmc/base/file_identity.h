/*
Files of tokens and weights, told from others by their contents: a file may be moved, or get another name.
*/
#ifndef LLMC_BASE_FILE_IDENTITY_H
#define LLMC_BASE_FILE_IDENTITY_H

#include "digest.h"
#include "regular_file.h"
#include "status.h"
#include "utils.h"

enum {
    IDENTITY_CHECKSUMS = 124,
    IDENTITY_CHECKSUM_MARK = 0x43524343
}; // header word and value: the header has checksums
enum { IDENTITY_SAMPLES = 16, IDENTITY_SAMPLE_BYTES = 4096 };

// Adds a file to a digest: its size and its header, which holds the checksums of all the rest. Of a file without
// checksums, 16 samples of 4 KiB are added, from its first byte to its last.
NOINLINE Status identity_file(Digest* digest, const char* path) {
    int32_t header[HEADER_INTS] = {0};
    char sample[IDENTITY_SAMPLE_BYTES];
    struct stat st;
    int fd;
    TRY(open_regular(&fd, &st, path));
    int ok = pread(fd, header, sizeof(header), 0) >= 0;
    uint64_t size = (uint64_t)st.st_size;
    digest_update(digest, &size, sizeof(size));
    digest_update(digest, header, sizeof(header));
    int samples = header[IDENTITY_CHECKSUMS] == IDENTITY_CHECKSUM_MARK ? 0 : IDENTITY_SAMPLES;
    uint64_t last = size > sizeof(sample) ? size - sizeof(sample) : 0;
    for (int i = 0; i < samples && ok; i++) {
        memset(sample, 0, sizeof(sample));
        uint64_t at = last / (IDENTITY_SAMPLES - 1) * (uint64_t)i;
        ok = pread(fd, sample, sizeof(sample), (off_t)(i == IDENTITY_SAMPLES - 1 ? last : at)) >= 0;
        digest_update(digest, sample, sizeof(sample));
    }
    if (!ok) { status_fail("cannot read %s: %s", path, strerror(errno)); }
    close(fd);
    return ok ? STATUS_OK : STATUS_ERROR;
}

#endif
