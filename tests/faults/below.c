/* Faults below Python: as shim.py, but between the C library and the system, so that SQLite, safetensors, torch and
   memory maps are hit too. Loaded by LD_PRELOAD; crashes.py says where and when through fail_at(). Operations on files
   below `root` are counted in memory that forked processes share; the n-th fails with `code`, or kills where that is 0;
   with `lasting`, so do all after it that take room. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *root;
static long place, *counter;
static int code, lasting;
static char watched[65536]; /* descriptors of files below the root */

void fail_at(const char *where, long at, int error, int on, long *shared) {
    root = where, place = at, code = error, lasting = on, counter = shared;
}

static int below(int folder, const char *path) {
    char here[PATH_MAX];
    if (!root || !path) return 0;
    if (path[0] == '/') return !strncmp(path, root, strlen(root));
    if (folder >= 0) return folder < (int)sizeof watched && watched[folder];
    return getcwd(here, sizeof here) && !strncmp(here, root, strlen(root));
}

static int fails(int takes_room) {
    long count = __sync_add_and_fetch(counter, 1);
    if (count != place && !(lasting && takes_room && count > place && place > 0)) return 0;
    if (!code) kill(getpid(), SIGKILL);
    errno = code;
    return 1;
}

static int is_watched(int file) { return root && file >= 0 && file < (int)sizeof watched && watched[file]; }

static int opened(int file, int ours) {
    if (file >= 0 && file < (int)sizeof watched) watched[file] = ours;
    return file;
}

#define REAL(kind, name, ...) static kind (*real)(__VA_ARGS__); if (!real) real = dlsym(RTLD_NEXT, #name)
#define MODE(flags) mode_t mode = 0; if ((flags) & (O_CREAT | __O_TMPFILE)) { \
        va_list rest; va_start(rest, flags); mode = va_arg(rest, mode_t); va_end(rest); }
#define OPEN(name) int name(const char *path, int flags, ...) { REAL(int, name, const char *, int, ...); MODE(flags) \
        int ours = below(AT_FDCWD, path); return ours && fails(1) ? -1 : opened(real(path, flags, mode), ours); }
#define OPENAT(name) int name(int folder, const char *path, int flags, ...) { \
        REAL(int, name, int, const char *, int, ...); MODE(flags) \
        int ours = below(folder, path); return ours && fails(1) ? -1 : opened(real(folder, path, flags, mode), ours); }
#define ON_PATH(name, room, at, shown, given, ...) int name(__VA_ARGS__) { REAL(int, name, __VA_ARGS__); \
        return below(at, shown) && fails(room) ? -1 : real given; }
#define ON_FILE(kind, name, failed, room, given, ...) kind name(int file, ##__VA_ARGS__) { \
        REAL(kind, name, int, ##__VA_ARGS__); return is_watched(file) && fails(room) ? failed : real given; }

OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)
ON_PATH(rename, 0, AT_FDCWD, to, (from, to), const char *from, const char *to)
ON_PATH(unlink, 0, AT_FDCWD, path, (path), const char *path)
ON_PATH(unlinkat, 0, folder, path, (folder, path, flags), int folder, const char *path, int flags)
ON_PATH(rmdir, 0, AT_FDCWD, path, (path), const char *path)
ON_PATH(mkdir, 1, AT_FDCWD, path, (path, mode), const char *path, mode_t mode)
ON_FILE(ssize_t, read, -1, 0, (file, data, size), void *data, size_t size)
ON_FILE(ssize_t, pread64, -1, 0, (file, data, size, at), void *data, size_t size, off64_t at)
ON_FILE(ssize_t, write, -1, 1, (file, data, size), const void *data, size_t size)
ON_FILE(ssize_t, pwrite64, -1, 1, (file, data, size, at), const void *data, size_t size, off64_t at)
ON_FILE(int, fsync, -1, 1, (file))
ON_FILE(int, fdatasync, -1, 1, (file))
ON_FILE(int, ftruncate64, -1, 0, (file, size), off64_t size)
ON_FILE(int, flock, -1, 0, (file, how), int how)

FILE *fopen64(const char *path, const char *mode) {
    REAL(FILE *, fopen64, const char *, const char *);
    int ours = below(AT_FDCWD, path);
    FILE *found = ours && fails(1) ? NULL : real(path, mode);
    if (found) opened(fileno(found), ours);
    return found;
}

void *mmap64(void *at, size_t size, int access, int flags, int file, off64_t offset) {
    REAL(void *, mmap64, void *, size_t, int, int, int, off64_t);
    return is_watched(file) && fails(0) ? MAP_FAILED : real(at, size, access, flags, file, offset);
}

int close(int file) {
    REAL(int, close, int);
    int failed = is_watched(file) && fails(0), error = errno;
    opened(file, 0);
    int found = real(file);
    if (failed) errno = error;
    return failed ? -1 : found;
}
