/* Preloaded, refuses below the folder $WINDOWS_RULES what Windows refuses of files:
 *
 * - to rename, replace or remove a file that any process holds open, or a preloaded one mapped, and a folder with one
 *   in it, or one that a process works in (EACCES; Python opens without share-delete)
 * - to open a file that a process holds for itself: with a POSIX lock, which stands for a share mode (EACCES)
 * - to replace a folder (EACCES)
 * - names with < > : " | ? * \ or a control character in them, with a dot or space at their end, and those of devices
 *   (EINVAL); paths of more than 259 characters, 247 of a new folder (ENOENT)
 *
 * and a name finds the file that has it in other (ASCII) letters. Who holds what is asked of /proc at each call, so
 * nothing has to be kept, and holders need not be preloaded. */
#define _GNU_SOURCE
#include <ctype.h>
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#define REAL(kind, name, ...) \
    static kind (*real)(__VA_ARGS__); \
    if (!real) real = (kind (*)(__VA_ARGS__)) dlsym(RTLD_NEXT, name)
#define LONGEST 4096
enum { FILE_PATH = 259, FOLDER_PATH = 247 };

static int refused(int number) {
    errno = number;
    return -1;
}

static int real_lstat(const char *path, struct stat *facts) {
    REAL(int, "lstat", const char *, struct stat *);
    return real(path, facts);
}

static DIR *real_opendir(const char *path) {
    REAL(DIR *, "opendir", const char *);
    return real(path);
}

static FILE *real_fopen(const char *path) {
    REAL(FILE *, "fopen", const char *, const char *);
    return real(path, "re");
}

/* ---- names ---- */

/* UTF-16 units: what Windows counts. */
static int units(const char *text) {
    int count = 0;
    for (const unsigned char *at = (const unsigned char *) text; *at; at++)
        count += (*at & 0xc0) != 0x80 ? 1 + (*at >= 0xf0) : 0;
    return count;
}

static int is_device(const char *name, size_t length) {
    static const char *known[] = {"con", "prn", "aux", "nul"};
    size_t stem = strcspn(name, ".");
    if (stem > length) stem = length;
    while (stem && name[stem - 1] == ' ') stem--;
    for (size_t i = 0; stem == 3 && i < 4; i++) if (!strncasecmp(name, known[i], 3)) return 1;
    if (stem != 4 || !isdigit((unsigned char) name[3])) return 0;
    return !strncasecmp(name, "com", 3) || !strncasecmp(name, "lpt", 3);
}

static int is_bad(const char *name, size_t length) {
    if ((length == 1 && name[0] == '.') || (length == 2 && !strncmp(name, "..", 2))) return 0;
    for (size_t i = 0; i < length; i++) if (strchr("<>:\"|?*\\", name[i]) || (unsigned char) name[i] < 32) return 1;
    return name[length - 1] == '.' || name[length - 1] == ' ' || is_device(name, length);
}

/* Finds `name` in the folder `place` in whatever letters it has there, and puts that behind it. */
static void spell(char *place, const char *name, size_t length) {
    size_t end = strlen(place);
    struct stat facts;
    snprintf(place + end, LONGEST - end, "/%.*s", (int) length, name);
    if (!real_lstat(place, &facts)) return;
    place[end] = 0;
    DIR *folder = real_opendir(place);
    for (struct dirent *entry; folder && (entry = readdir(folder));)
        if (strlen(entry->d_name) == length && !strncasecmp(entry->d_name, name, length)) {
            name = strndupa(entry->d_name, length);
            break;
        }
    if (folder) closedir(folder);
    snprintf(place + end, LONGEST - end, "/%.*s", (int) length, name);
}

/* Writes into `to` what to ask the system for; 0 elsewhere, 1 below the folder, -1 with errno where Windows refuses. */
static int meant(int at, const char *path, char *to, int longest) {
    const char *root = getenv("WINDOWS_RULES");
    char whole[LONGEST], link[64];
    size_t known = root ? strlen(root) : 0;
    if (!path || !*path || !known) return 0;
    if (*path == '/') snprintf(whole, LONGEST, "%s", path);
    else {
        char base[LONGEST] = "";
        snprintf(link, sizeof link, at == AT_FDCWD ? "/proc/self/cwd" : "/proc/self/fd/%d", at);
        if (readlink(link, base, LONGEST - 1) < 0 || strlen(base) + strlen(path) + 2 > LONGEST) return 0;
        strcat(strcat(strcpy(whole, base), "/"), path);
    }
    if (strncmp(whole, root, known) || whole[known] != '/') return 0;
    if (units(whole) > longest) return refused(ENOENT);
    strcpy(to, root);
    for (const char *name = whole + known; *(name += strspn(name, "/"));) {
        size_t length = strcspn(name, "/");
        if (is_bad(name, length)) return refused(EINVAL);
        spell(to, name, length);
        name += length;
    }
    return 1;
}

/* ---- who holds it ---- */

static int is_in(const char *place, const char *path, size_t length, int folder) {
    return !strncmp(place, path, length) && (folder ? place[length] == '/' : !place[length] || place[length] == '\n');
}

static int holds_open(const char *process, const char *path, size_t length, int folder) {
    char place[LONGEST], link[LONGEST];
    ssize_t got;
    struct stat facts;
    int held = 0;
    snprintf(place, sizeof place, "%s/cwd", process);
    if (folder && (got = readlink(place, link, LONGEST - 1)) > 0) {
        link[got] = 0;
        if (!strncmp(link, path, length) && (!link[length] || link[length] == '/')) return 1;
    }
    snprintf(place, sizeof place, "%s/fd", process);
    DIR *files = real_opendir(place);
    for (struct dirent *entry; files && !held && (entry = readdir(files));) {
        if (*entry->d_name == '.') continue;
        snprintf(place, sizeof place, "%s/fd/%s", process, entry->d_name);
        if ((got = readlink(place, link, LONGEST - 1)) <= 0) continue;
        link[got] = 0;
        held = is_in(link, path, length, folder) && !stat(place, &facts) && S_ISREG(facts.st_mode) && facts.st_nlink;
    }
    if (files) closedir(files);
    return held;
}

/* Its maps take the system long to tell, so only those of processes like this one are asked for. */
static int is_preloaded(const char *process) {
    char place[320], text[1 << 16];
    snprintf(place, sizeof place, "%s/environ", process);
    FILE *file = real_fopen(place);
    size_t got = file ? fread(text, 1, sizeof text, file) : 0;
    if (file) fclose(file);
    return memmem(text, got, "LD_PRELOAD=", 11) != NULL;
}

static int holds_mapped(const char *process, const char *path, size_t length, int folder) {
    char place[320], line[LONGEST];
    int held = 0;
    if (!is_preloaded(process)) return 0;
    snprintf(place, sizeof place, "%s/maps", process);
    FILE *maps = real_fopen(place);
    while (maps && !held && fgets(line, sizeof line, maps)) {
        char *name = strchr(line, '/');
        held = name && !strstr(name, " (deleted)") && is_in(name, path, length, folder);
    }
    if (maps) fclose(maps);
    return held;
}

static int is_held(const char *path) {
    struct stat facts;
    if (real_lstat(path, &facts) || S_ISLNK(facts.st_mode)) return 0;
    DIR *processes = real_opendir("/proc");
    int held = 0, folder = S_ISDIR(facts.st_mode);
    for (struct dirent *entry; processes && !held && (entry = readdir(processes));) {
        char process[300];
        if (!isdigit((unsigned char) *entry->d_name)) continue;
        snprintf(process, sizeof process, "/proc/%s", entry->d_name);
        held = holds_open(process, path, strlen(path), folder) || holds_mapped(process, path, strlen(path), folder);
    }
    if (processes) closedir(processes);
    return held;
}

/* ---- the calls ---- */

/* What was opened, unless somebody keeps it for himself. */
static int shared(int opened, int flags) {
    struct flock lock = {.l_type = (flags & O_ACCMODE) == O_RDONLY ? F_RDLCK : F_WRLCK};
    struct stat facts;
    if (opened < 0 || fstat(opened, &facts) || !S_ISREG(facts.st_mode)) return opened;
    if (fcntl(opened, F_GETLK, &lock) || lock.l_type == F_UNLCK) return opened;
    close(opened);
    return refused(EACCES);
}

#define MODE_OF(flags) \
    mode_t mode = 0; \
    if ((flags) & (O_CREAT | __O_TMPFILE)) { \
        va_list more; \
        va_start(more, flags); \
        mode = va_arg(more, mode_t); \
        va_end(more); \
    }

#define OPEN(name) \
    int name(const char *path, int flags, ...) { \
        REAL(int, #name, const char *, int, ...); \
        MODE_OF(flags) \
        char to[LONGEST]; \
        int place = meant(AT_FDCWD, path, to, FILE_PATH); \
        if (place < 0) return -1; \
        return place ? shared(real(to, flags, mode), flags) : real(path, flags, mode); \
    }
OPEN(open)
OPEN(open64)

#define OPENAT(name) \
    int name(int at, const char *path, int flags, ...) { \
        REAL(int, #name, int, const char *, int, ...); \
        MODE_OF(flags) \
        char to[LONGEST]; \
        int place = meant(at, path, to, FILE_PATH); \
        if (place < 0) return -1; \
        return place ? shared(real(AT_FDCWD, to, flags, mode), flags) : real(at, path, flags, mode); \
    }
OPENAT(openat)
OPENAT(openat64)

#define FOPEN(name) \
    FILE *name(const char *path, const char *mode) { \
        REAL(FILE *, #name, const char *, const char *); \
        char to[LONGEST]; \
        int place = meant(AT_FDCWD, path, to, FILE_PATH); \
        return place < 0 ? NULL : real(place ? to : path, mode); \
    }
FOPEN(fopen)
FOPEN(fopen64)

DIR *opendir(const char *path) {
    char to[LONGEST];
    int place = meant(AT_FDCWD, path, to, FILE_PATH);
    return place < 0 ? NULL : real_opendir(place ? to : path);
}

/* Looking, at a path with one more value behind it. */
#define LOOK(name, kind) \
    int name(const char *path, kind value) { \
        REAL(int, #name, const char *, kind); \
        char to[LONGEST]; \
        int place = meant(AT_FDCWD, path, to, FILE_PATH); \
        return place < 0 ? -1 : real(place ? to : path, value); \
    }
LOOK(stat, struct stat *)
LOOK(stat64, struct stat64 *)
LOOK(lstat, struct stat *)
LOOK(lstat64, struct stat64 *)
LOOK(access, int)
LOOK(chmod, mode_t)

#define LOOKAT(name, kind) \
    int name(int at, const char *path, kind value, int flags) { \
        REAL(int, #name, int, const char *, kind, int); \
        char to[LONGEST]; \
        int place = meant(at, path, to, FILE_PATH); \
        return place < 0 ? -1 : real(place ? AT_FDCWD : at, place ? to : path, value, flags); \
    }
LOOKAT(fstatat, struct stat *)
LOOKAT(fstatat64, struct stat64 *)
LOOKAT(faccessat, int)

int statx(int at, const char *path, int flags, unsigned int mask, struct statx *facts) {
    REAL(int, "statx", int, const char *, int, unsigned int, struct statx *);
    char to[LONGEST];
    int place = meant(at, path, to, FILE_PATH);
    return place < 0 ? -1 : real(place ? AT_FDCWD : at, place ? to : path, flags, mask, facts);
}

int mkdirat(int at, const char *path, mode_t mode) {
    REAL(int, "mkdirat", int, const char *, mode_t);
    char to[LONGEST];
    int place = meant(at, path, to, FOLDER_PATH);
    return place < 0 ? -1 : real(place ? AT_FDCWD : at, place ? to : path, mode);
}

int mkdir(const char *path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }

int unlinkat(int at, const char *path, int flags) {
    REAL(int, "unlinkat", int, const char *, int);
    char to[LONGEST];
    int place = meant(at, path, to, FILE_PATH);
    if (place < 0) return -1;
    if (place && is_held(to)) return refused(EACCES);
    return real(place ? AT_FDCWD : at, place ? to : path, flags);
}

int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }
int rmdir(const char *path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }

int renameat(int at, const char *path, int other, const char *target) {
    REAL(int, "renameat", int, const char *, int, const char *);
    char from[LONGEST], to[LONGEST];
    struct stat facts, old;
    int one = meant(at, path, from, FILE_PATH), two = meant(other, target, to, FILE_PATH);
    if (one < 0 || two < 0) return -1;
    if (one && is_held(from)) return refused(EACCES);
    if (two && !real_lstat(to, &facts)) {
        int itself = one && !real_lstat(from, &old) && old.st_dev == facts.st_dev && old.st_ino == facts.st_ino;
        if (!itself && (S_ISDIR(facts.st_mode) || is_held(to))) return refused(EACCES);
    }
    return real(one ? AT_FDCWD : at, one ? from : path, two ? AT_FDCWD : other, two ? to : target);
}

int rename(const char *path, const char *target) { return renameat(AT_FDCWD, path, AT_FDCWD, target); }
