/* A file system that lacks calls, for what is below one folder: a library to be loaded before the C library.
 *
 * REFUSED_BELOW   the folder
 * REFUSED         "call=errno call=errno": each of these calls says so there; "readdir=0" knows no kind of a name,
 *                 "statvfs=0" no free byte, "utime=0" and "chmod=0" succeed and do nothing
 * REFUSED_LOG     a file to which each refused call adds a letter
 *
 * fsync.folder and fsync.file, open.new (O_EXCL), open.folder (O_DIRECTORY), open.append, open.write and open.read are kinds of a call.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/xattr.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

/* Returns what the call is to say: an errno, 0 for "in another way", -1 for nothing. */
static int said(const char *call) {
    const char *at = getenv("REFUSED");
    size_t length = strlen(call);
    while (at && *at) {
        if (!strncmp(at, call, length) && at[length] == '=') return atoi(at + length + 1);
        at = strchr(at, ' ');
        if (at) at++;
    }
    return -1;
}

static int below(const char *path) {
    const char *folder = getenv("REFUSED_BELOW");
    return folder && *folder && !strncmp(path, folder, strlen(folder));
}

static int is_there(int at, const char *path) {
    char whole[2 * PATH_MAX], link[64];
    if (path && *path == '/') return below(path);
    if (at == AT_FDCWD) {
        if (syscall(SYS_getcwd, whole, sizeof whole) <= 0) return 0;
    } else {
        snprintf(link, sizeof link, "/proc/self/fd/%d", at);
        ssize_t size = syscall(SYS_readlink, link, whole, sizeof whole - 1);
        if (size <= 0) return 0;
        whole[size] = 0;
    }
    return below(whole);
}

static int met(const char *call, int at, const char *path) {
    int number = said(call), kept = errno;
    if (number < 0 || !is_there(at, path)) return -1;
    const char *log = getenv("REFUSED_LOG");
    if (log) {
        int file = syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND, 0666);
        if (syscall(SYS_write, file, "x", 1) < 0) abort();
        syscall(SYS_close, file);
    }
    errno = number ? number : kept;
    return number;
}

static int is_folder(int file) {
    struct stat facts;
    return !syscall(SYS_fstat, file, &facts) && S_ISDIR(facts.st_mode);
}

#define BY_FILE(type, name, given, passed, file) \
    type name given { return met(#name, file, 0) > 0 ? (type)-1 : REAL(name) passed; }
#define BY_PATH(type, name, call, given, passed, at, path) \
    type name given { return met(call, at, path) > 0 ? (type)-1 : REAL(name) passed; }

BY_FILE(int, flock, (int file, int how), (file, how), file)
int fsync(int file) {
    return met(is_folder(file) ? "fsync.folder" : "fsync.file", file, 0) > 0 ? -1 : 0; /* no test waits for a disk */
}
BY_FILE(int, fdatasync, (int file), (file), file)
BY_FILE(int, ftruncate, (int file, off_t size), (file, size), file)
BY_FILE(int, ftruncate64, (int file, off64_t size), (file, size), file)
BY_FILE(int, fallocate, (int file, int how, off_t from, off_t size), (file, how, from, size), file)
BY_FILE(int, fallocate64, (int file, int how, off64_t from, off64_t size), (file, how, from, size), file)
int posix_fallocate(int file, off_t from, off_t size) {
    int number = met("posix_fallocate", file, 0);
    return number > 0 ? number : REAL(posix_fallocate)(file, from, size);
}
int posix_fallocate64(int file, off64_t from, off64_t size) {
    int number = met("posix_fallocate", file, 0);
    return number > 0 ? number : REAL(posix_fallocate64)(file, from, size);
}
int posix_fadvise(int file, off_t from, off_t size, int how) {
    int number = met("posix_fadvise", file, 0);
    return number > 0 ? number : REAL(posix_fadvise)(file, from, size, how);
}
int posix_fadvise64(int file, off64_t from, off64_t size, int how) {
    int number = met("posix_fadvise", file, 0);
    return number > 0 ? number : REAL(posix_fadvise64)(file, from, size, how);
}
BY_FILE(ssize_t, read, (int file, void *to, size_t size), (file, to, size), file)
BY_FILE(ssize_t, write, (int file, const void *from, size_t size), (file, from, size), file)
BY_PATH(ssize_t, pread, "pread", (int file, void *to, size_t size, off_t at), (file, to, size, at), file, 0)
BY_PATH(ssize_t, pread64, "pread", (int file, void *to, size_t size, off64_t at), (file, to, size, at), file, 0)
BY_PATH(off_t, lseek, "lseek", (int file, off_t to, int how), (file, to, how), file, 0)
BY_PATH(off64_t, lseek64, "lseek", (int file, off64_t to, int how), (file, to, how), file, 0)
int close(int file) {
    int number = met("close", file, 0);
    int result = REAL(close)(file);
    if (number <= 0) return result;
    errno = number;
    return -1;
}
void *mmap(void *to, size_t size, int rights, int how, int file, off_t from) {
    if (file >= 0 && met("mmap", file, 0) > 0) return MAP_FAILED;
    return (void *)syscall(SYS_mmap, to, size, rights, how, file, from);
}
void *mmap64(void *to, size_t size, int rights, int how, int file, off64_t from) {
    return mmap(to, size, rights, how, file, from);
}
BY_FILE(ssize_t, copy_file_range, (int in, off64_t *a, int out, off64_t *b, size_t size, unsigned how),
        (in, a, out, b, size, how), out)
BY_PATH(ssize_t, sendfile, "sendfile", (int out, int in, off_t *from, size_t size), (out, in, from, size), out, 0)
BY_PATH(ssize_t, sendfile64, "sendfile", (int out, int in, off64_t *from, size_t size), (out, in, from, size), out, 0)
BY_FILE(ssize_t, splice, (int in, off64_t *a, int out, off64_t *b, size_t size, unsigned how),
        (in, a, out, b, size, how), out)

BY_PATH(int, link, "link", (const char *from, const char *to), (from, to), AT_FDCWD, to)
BY_PATH(int, linkat, "link", (int a, const char *from, int b, const char *to, int how), (a, from, b, to, how), b, to)
BY_PATH(int, symlink, "symlink", (const char *from, const char *to), (from, to), AT_FDCWD, to)
BY_PATH(int, symlinkat, "symlink", (const char *from, int at, const char *to), (from, at, to), at, to)
BY_PATH(int, rename, "rename", (const char *from, const char *to), (from, to), AT_FDCWD, to)
BY_PATH(int, renameat, "rename", (int a, const char *from, int b, const char *to), (a, from, b, to), b, to)
BY_PATH(int, renameat2, "rename", (int a, const char *from, int b, const char *to, unsigned how),
        (a, from, b, to, how), b, to)
BY_PATH(int, unlink, "unlink", (const char *path), (path), AT_FDCWD, path)
int unlinkat(int at, const char *path, int how) {
    const char *call = how & AT_REMOVEDIR ? "rmdir" : "unlink";
    return met(call, at, path) > 0 ? -1 : REAL(unlinkat)(at, path, how);
}
BY_PATH(int, rmdir, "rmdir", (const char *path), (path), AT_FDCWD, path)
BY_PATH(int, mkdir, "mkdir", (const char *path, mode_t mode), (path, mode), AT_FDCWD, path)
BY_PATH(int, mkdirat, "mkdir", (int at, const char *path, mode_t mode), (at, path, mode), at, path)
BY_PATH(int, access, "access", (const char *path, int how), (path, how), AT_FDCWD, path)

/* Those that may also succeed and do nothing. */
#define IN_VAIN(name, call, given, passed, at, path) \
    int name given { \
        int number = met(call, at, path); \
        return number < 0 ? REAL(name) passed : number ? -1 : 0; \
    }
IN_VAIN(chmod, "chmod", (const char *path, mode_t mode), (path, mode), AT_FDCWD, path)
IN_VAIN(fchmod, "chmod", (int file, mode_t mode), (file, mode), file, 0)
IN_VAIN(fchmodat, "chmod", (int at, const char *path, mode_t mode, int how), (at, path, mode, how), at, path)
IN_VAIN(utimensat, "utime", (int at, const char *path, const struct timespec t[2], int how), (at, path, t, how), at, path)
IN_VAIN(futimens, "utime", (int file, const struct timespec t[2]), (file, t), file, 0)

static int met_open(int at, const char *path, int how) {
    if (how & O_EXCL && met("open.new", at, path) > 0) return 1;
    if ((how & O_TMPFILE) == O_TMPFILE) return met("open.tmpfile", at, path) > 0;
    if (how & O_DIRECTORY) return met("open.folder", at, path) > 0;
    if (how & O_NOFOLLOW && met("open.nofollow", at, path) > 0) return 1;
    if (how & O_APPEND && met("open.append", at, path) > 0) return 1;
    if ((how & O_ACCMODE) != O_RDONLY) return met("open.write", at, path) > 0;
    return met("open.read", at, path) > 0;
}
#define OPEN(name, given, at, passed) \
    int name given { \
        va_list more; \
        va_start(more, how); \
        mode_t mode = va_arg(more, mode_t); \
        va_end(more); \
        return met_open(at, path, how) ? -1 : REAL(name) passed; \
    }
OPEN(open, (const char *path, int how, ...), AT_FDCWD, (path, how, mode))
OPEN(open64, (const char *path, int how, ...), AT_FDCWD, (path, how, mode))
OPEN(openat, (int at, const char *path, int how, ...), at, (at, path, how, mode))
OPEN(openat64, (int at, const char *path, int how, ...), at, (at, path, how, mode))

BY_PATH(int, stat, "stat", (const char *path, struct stat *to), (path, to), AT_FDCWD, path)
BY_PATH(int, stat64, "stat", (const char *path, struct stat64 *to), (path, to), AT_FDCWD, path)
BY_PATH(int, lstat, "lstat", (const char *path, struct stat *to), (path, to), AT_FDCWD, path)
BY_PATH(int, lstat64, "lstat", (const char *path, struct stat64 *to), (path, to), AT_FDCWD, path)
BY_PATH(int, fstat, "fstat", (int file, struct stat *to), (file, to), file, 0)
BY_PATH(int, fstat64, "fstat", (int file, struct stat64 *to), (file, to), file, 0)
BY_PATH(int, fstatat, "fstatat", (int at, const char *path, struct stat *to, int how), (at, path, to, how), at, path)
BY_PATH(int, fstatat64, "fstatat", (int at, const char *path, struct stat64 *to, int how), (at, path, to, how), at, path)

#define ROOM(name, type, call, given, passed, at, path) \
    int name given { \
        int number = met(call, at, path); \
        if (number > 0) return -1; \
        int result = REAL(name) passed; \
        if (number == 0 && !result) to->f_bfree = to->f_bavail = 0; \
        return result; \
    }
ROOM(statvfs, statvfs, "statvfs", (const char *path, struct statvfs *to), (path, to), AT_FDCWD, path)
ROOM(statvfs64, statvfs64, "statvfs", (const char *path, struct statvfs64 *to), (path, to), AT_FDCWD, path)
ROOM(fstatvfs, statvfs, "statvfs", (int file, struct statvfs *to), (file, to), file, 0)
ROOM(fstatvfs64, statvfs64, "statvfs", (int file, struct statvfs64 *to), (file, to), file, 0)

#define ENTRIES(name, type) \
    struct type *name(DIR *folder) { \
        int number = met("readdir", dirfd(folder), 0); \
        if (number > 0) return 0; \
        struct type *entry = REAL(name)(folder); \
        if (number == 0 && entry) entry->d_type = DT_UNKNOWN; \
        return entry; \
    }
ENTRIES(readdir, dirent)
ENTRIES(readdir64, dirent64)

BY_PATH(ssize_t, listxattr, "xattr", (const char *p, char *to, size_t size), (p, to, size), AT_FDCWD, p)
BY_PATH(ssize_t, flistxattr, "xattr", (int file, char *to, size_t size), (file, to, size), file, 0)
BY_PATH(ssize_t, getxattr, "xattr", (const char *p, const char *n, void *to, size_t size), (p, n, to, size), AT_FDCWD, p)
BY_PATH(ssize_t, fgetxattr, "xattr", (int f, const char *n, void *to, size_t size), (f, n, to, size), f, 0)
