/* For tests: takes down what a process does to the files under one directory, so that a power cut can be played.

   Loaded by LD_PRELOAD. $POWER_CUT_WATCH is the directory (absolute, without links), $POWER_CUT_JOURNAL the file, outside
   of it, to which every write, truncation, sync, creation, renaming and removal is appended, in the order in which
   they took place, whichever process or thread made them. disk.py reads it. While there is a journal nothing is synced:
   the replayer decides what was.

   power_cut_fail has an operation fail, or kill the process before it. It works without a journal, too.

   What is done past these functions (a writable mapping, a copy in the kernel) is taken down as `unsupported`: disk.py
   refuses such a journal rather than overlook it. */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum operation { WRITE = 1, TRUNCATE, SYNC, SYNC_DIRECTORY, CREATE, UNLINK, RENAME, LINK, MAKE_DIRECTORY,
                 REMOVE_DIRECTORY, UNSUPPORTED };

struct record {
    uint32_t operation, pid;
    uint64_t inode;
    int64_t offset;
    uint32_t path_length, data_length;
};

struct fault {
    char operation[16], suffix[64];
    int skip, error, times, taken;
};

static char watched[PATH_MAX];
static size_t watched_length;
static int journal = -1;
static struct fault fault;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

/* The kernel itself is called, and not the C library's next function: other libraries' constructors may come first. */

static ssize_t real_write(int fd, const void *data, size_t length, off_t offset) {
    return offset < 0 ? syscall(SYS_write, fd, data, length) : syscall(SYS_pwrite64, fd, data, length, offset);
}

static int real_openat(int directory, const char *name, int flags, mode_t mode) {
    return (int)syscall(SYS_openat, directory, name, flags, mode);
}

static void unlock_in_child(void) { pthread_mutex_init(&mutex, NULL); }

__attribute__((constructor)) static void start(void) {
    const char *directory = getenv("POWER_CUT_WATCH"), *path = getenv("POWER_CUT_JOURNAL");
    pthread_atfork(NULL, NULL, unlock_in_child);
    if (directory != NULL) {
        snprintf(watched, sizeof watched, "%s", directory);
        watched_length = strlen(watched);
    }
    if (watched_length && path != NULL) {
        int opened = real_openat(AT_FDCWD, path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
        /* Out of the way of programs that know their descriptors by number. */
        journal = fcntl(opened, F_DUPFD_CLOEXEC, 900);
        if (journal < 0)
            journal = opened;
        else
            close(opened);
    }
}

/* --- what is watched --- */

static int inside(const char *path) {
    return watched_length && strncmp(path, watched, watched_length) == 0 &&
           (path[watched_length] == '/' || path[watched_length] == 0);
}

/* The path behind a descriptor, if it is watched. */
static int behind(int fd, char *path) {
    char link[64];
    if (!watched_length || fd == journal)
        return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, PATH_MAX - 1);
    if (length <= 0)
        return 0;
    path[length] = 0;
    return inside(path);
}

/* A name's absolute path, the last part of which isn't followed; whether it is watched. */
static int named(int directory, const char *name, char *path) {
    char whole[2 * PATH_MAX], link[64], *slash, *end;
    if (!watched_length || name == NULL)
        return 0;
    if (name[0] == '/')
        snprintf(whole, sizeof whole, "%s", name);
    else {
        ssize_t length;
        if (directory == AT_FDCWD)
            snprintf(link, sizeof link, "/proc/self/cwd");
        else
            snprintf(link, sizeof link, "/proc/self/fd/%d", directory);
        length = readlink(link, whole, PATH_MAX - 1);
        if (length <= 0)
            return 0;
        snprintf(whole + length, sizeof whole - length, "/%s", name);
    }
    end = whole + strlen(whole);
    while (end > whole + 1 && end[-1] == '/')
        *--end = 0;
    slash = strrchr(whole, '/');
    if (slash == NULL || slash == whole)
        return 0;
    *slash = 0;
    if (realpath(whole, path) == NULL)
        return 0;
    strncat(path, "/", PATH_MAX - strlen(path) - 1);
    strncat(path, slash + 1, PATH_MAX - strlen(path) - 1);
    return inside(path);
}

static uint64_t inode_of(int fd) {
    struct stat found;
    return fstat(fd, &found) == 0 ? (uint64_t)found.st_ino : 0;
}

/* --- the journal --- */

/* One lock around an operation and its record, for all threads and processes: the order of the journal is the order of
   what was done. The kernel drops it when its holder is killed. */
static void lock(void) {
    pthread_mutex_lock(&mutex);
    if (journal >= 0) {
        struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
        while (fcntl(journal, F_SETLKW, &whole) < 0 && errno == EINTR) {
        }
    }
}

static void unlock(void) {
    int kept = errno;
    if (journal >= 0) {
        struct flock whole = {.l_type = F_UNLCK, .l_whence = SEEK_SET};
        fcntl(journal, F_SETLK, &whole);
    }
    pthread_mutex_unlock(&mutex);
    errno = kept;
}

static void take_down(enum operation operation, uint64_t inode, int64_t offset, const char *path, const void *data,
                      size_t length) {
    int kept = errno;
    struct record head = {operation, (uint32_t)getpid(), inode, offset, (uint32_t)strlen(path), (uint32_t)length};
    struct iovec parts[] = {{&head, sizeof head}, {(void *)path, head.path_length}, {(void *)data, length}};
    if (journal >= 0 && syscall(SYS_writev, journal, parts, 3) != (ssize_t)(sizeof head + head.path_length + length))
        abort();
    errno = kept;
}

/* --- faults --- */

/* Have an operation fail.

   operation: "write", "truncate", "sync" (of a file), "sync_directory", "open" (with leave to write), "unlink",
   "rename", "link".
   suffix: how the file's path ends. skip: how many of them go well before. error: errno, or 0 to kill the process
   before it. times: how many fail, -1 for all from then on; 0 ends the fault. */
__attribute__((visibility("default"))) void power_cut_fail(const char *operation, const char *suffix, int skip,
                                                           int error, int times) {
    pthread_mutex_lock(&mutex);
    snprintf(fault.operation, sizeof fault.operation, "%s", operation);
    snprintf(fault.suffix, sizeof fault.suffix, "%s", suffix);
    fault.skip = skip, fault.error = error, fault.times = times, fault.taken = 0;
    pthread_mutex_unlock(&mutex);
}

/* Whether an operation is to fail, errno being set; with the lock held. */
static int fails(const char *operation, const char *path) {
    size_t length = strlen(path), suffix = strlen(fault.suffix);
    if (fault.times == 0 || strcmp(operation, fault.operation) != 0 || length < suffix ||
        strcmp(path + length - suffix, fault.suffix) != 0)
        return 0;
    if (fault.skip > 0) {
        fault.skip--;
        return 0;
    }
    if (fault.error == 0)
        kill(getpid(), SIGKILL);
    if (fault.times > 0)
        fault.times--;
    errno = fault.error;
    return 1;
}

/* --- writing --- */

static ssize_t written(int fd, const void *data, size_t length, off_t offset) {
    char path[PATH_MAX];
    int positioned = offset >= 0;
    ssize_t count;
    if (!behind(fd, path))
        return real_write(fd, data, length, offset);
    lock();
    if (fails("write", path)) {
        /* A disk that becomes full takes a part of what doesn't fit. */
        if (errno != ENOSPC || fault.taken || length < 2) {
            unlock();
            return -1;
        }
        fault.taken = 1;
        length /= 2;
    }
    count = real_write(fd, data, length, offset);
    if (count > 0) {
        off_t begin = positioned ? offset : lseek(fd, 0, SEEK_CUR) - count;
        take_down(WRITE, inode_of(fd), begin, path, data, (size_t)count);
    }
    unlock();
    return count;
}

ssize_t write(int fd, const void *data, size_t length) { return written(fd, data, length, -1); }
ssize_t pwrite(int fd, const void *data, size_t length, off_t offset) { return written(fd, data, length, offset); }
ssize_t pwrite64(int fd, const void *data, size_t length, off_t offset) { return written(fd, data, length, offset); }

ssize_t writev(int fd, const struct iovec *parts, int count) {
    char path[PATH_MAX];
    ssize_t sum = 0;
    if (!behind(fd, path))
        return syscall(SYS_writev, fd, parts, count);
    for (int at = 0; at < count; at++) {
        ssize_t now = written(fd, parts[at].iov_base, parts[at].iov_len, -1);
        if (now < 0)
            return sum ? sum : now;
        sum += now;
        if ((size_t)now < parts[at].iov_len)
            break;
    }
    return sum;
}

static int truncated(int fd, off_t size) {
    char path[PATH_MAX];
    int result = -1;
    if (!behind(fd, path))
        return (int)syscall(SYS_ftruncate, fd, size);
    lock();
    if (!fails("truncate", path)) {
        result = (int)syscall(SYS_ftruncate, fd, size);
        if (result == 0)
            take_down(TRUNCATE, inode_of(fd), size, path, NULL, 0);
    }
    unlock();
    return result;
}

int ftruncate(int fd, off_t size) { return truncated(fd, size); }
int ftruncate64(int fd, off_t size) { return truncated(fd, size); }

static int synced(int fd, long call) {
    char path[PATH_MAX];
    int result = 0;
    struct stat found;
    if (!behind(fd, path))
        return (int)syscall(call, fd);
    if (fstat(fd, &found) != 0)
        return -1;
    lock();
    if (fails(S_ISDIR(found.st_mode) ? "sync_directory" : "sync", path))
        result = -1;
    else if (journal < 0)
        result = (int)syscall(call, fd);
    if (result == 0)
        take_down(S_ISDIR(found.st_mode) ? SYNC_DIRECTORY : SYNC, found.st_ino, 0, path, NULL, 0);
    unlock();
    return result;
}

int fsync(int fd) { return synced(fd, SYS_fsync); }
int fdatasync(int fd) { return synced(fd, SYS_fdatasync); }

/* --- names --- */

static int opened(int directory, const char *name, int flags, mode_t mode) {
    char path[PATH_MAX];
    int fd, existed, writes = (flags & O_ACCMODE) != O_RDONLY || flags & (O_CREAT | O_TRUNC);
    struct stat found;
    if (!writes || !named(directory, name, path))
        return real_openat(directory, name, flags, mode);
    lock();
    if (fails("open", path)) {
        unlock();
        return -1;
    }
    existed = lstat(path, &found) == 0;
    fd = real_openat(directory, name, flags, mode);
    if (fd >= 0) {
        if ((flags & O_TMPFILE) == O_TMPFILE)
            take_down(UNSUPPORTED, 0, 0, "O_TMPFILE", NULL, 0);
        else if (!existed)
            take_down(CREATE, inode_of(fd), 0, path, NULL, 0);
        else if (flags & O_TRUNC)
            take_down(TRUNCATE, inode_of(fd), 0, path, NULL, 0);
    }
    unlock();
    return fd;
}

#define MODE(flags, last)                                                                                              \
    mode_t mode = 0;                                                                                                   \
    if ((flags) & (O_CREAT | __O_TMPFILE)) {                                                                           \
        va_list rest;                                                                                                  \
        va_start(rest, last);                                                                                          \
        mode = va_arg(rest, mode_t);                                                                                   \
        va_end(rest);                                                                                                  \
    }

int open(const char *name, int flags, ...) { MODE(flags, flags) return opened(AT_FDCWD, name, flags, mode); }
int open64(const char *name, int flags, ...) { MODE(flags, flags) return opened(AT_FDCWD, name, flags, mode); }
int openat(int at, const char *name, int flags, ...) { MODE(flags, flags) return opened(at, name, flags, mode); }
int openat64(int at, const char *name, int flags, ...) { MODE(flags, flags) return opened(at, name, flags, mode); }
int __open_2(const char *name, int flags) { return opened(AT_FDCWD, name, flags, 0); }
int __open64_2(const char *name, int flags) { return opened(AT_FDCWD, name, flags, 0); }
int __openat_2(int at, const char *name, int flags) { return opened(at, name, flags, 0); }
int __openat64_2(int at, const char *name, int flags) { return opened(at, name, flags, 0); }
int creat(const char *name, mode_t mode) { return opened(AT_FDCWD, name, O_CREAT | O_WRONLY | O_TRUNC, mode); }
int creat64(const char *name, mode_t mode) { return opened(AT_FDCWD, name, O_CREAT | O_WRONLY | O_TRUNC, mode); }

int unlinkat(int directory, const char *name, int flags) {
    char path[PATH_MAX];
    int result = -1, is_watched = named(directory, name, path);
    if (!is_watched)
        return (int)syscall(SYS_unlinkat, directory, name, flags);
    lock();
    if (!fails("unlink", path)) {
        result = (int)syscall(SYS_unlinkat, directory, name, flags);
        if (result == 0)
            take_down(flags & AT_REMOVEDIR ? REMOVE_DIRECTORY : UNLINK, 0, 0, path, NULL, 0);
    }
    unlock();
    return result;
}

int unlink(const char *name) { return unlinkat(AT_FDCWD, name, 0); }
int rmdir(const char *name) { return unlinkat(AT_FDCWD, name, AT_REMOVEDIR); }

static int moved(int from, const char *old, int to, const char *new, unsigned flags) {
    char before[PATH_MAX], after[PATH_MAX];
    int result = -1, left = named(from, old, before), arrived = named(to, new, after);
    if (!left && !arrived)
        return (int)syscall(SYS_renameat2, from, old, to, new, flags);
    lock();
    if (!fails("rename", after)) {
        result = (int)syscall(SYS_renameat2, from, old, to, new, flags);
        if (result == 0 && (flags || !left || !arrived))
            take_down(UNSUPPORTED, 0, 0, "a move into or out of the directory", NULL, 0);
        else if (result == 0)
            take_down(RENAME, 0, 0, before, after, strlen(after));
    }
    unlock();
    return result;
}

int rename(const char *old, const char *new) { return moved(AT_FDCWD, old, AT_FDCWD, new, 0); }
int renameat(int from, const char *old, int to, const char *new) { return moved(from, old, to, new, 0); }
int renameat2(int from, const char *old, int to, const char *new, unsigned flags) {
    return moved(from, old, to, new, flags);
}

int linkat(int from, const char *old, int to, const char *new, int flags) {
    char before[PATH_MAX], after[PATH_MAX];
    int result = -1, left = named(from, old, before), arrived = named(to, new, after);
    if (!left && !arrived)
        return (int)syscall(SYS_linkat, from, old, to, new, flags);
    lock();
    if (!fails("link", after)) {
        result = (int)syscall(SYS_linkat, from, old, to, new, flags);
        if (result == 0 && (!left || !arrived))
            take_down(UNSUPPORTED, 0, 0, "a link into or out of the directory", NULL, 0);
        else if (result == 0)
            take_down(LINK, 0, 0, before, after, strlen(after));
    }
    unlock();
    return result;
}

int link(const char *old, const char *new) { return linkat(AT_FDCWD, old, AT_FDCWD, new, 0); }

int mkdirat(int directory, const char *name, mode_t mode) {
    char path[PATH_MAX];
    int result, is_watched = named(directory, name, path);
    if (!is_watched)
        return (int)syscall(SYS_mkdirat, directory, name, mode);
    lock();
    result = (int)syscall(SYS_mkdirat, directory, name, mode);
    if (result == 0)
        take_down(MAKE_DIRECTORY, 0, 0, path, NULL, 0);
    unlock();
    return result;
}

int mkdir(const char *name, mode_t mode) { return mkdirat(AT_FDCWD, name, mode); }

/* --- what isn't followed --- */

static void *mapped(void *address, size_t length, int protection, int flags, int fd, off_t offset) {
    char path[PATH_MAX];
    /* SQLite's shared memory needs no disk: it is made anew after a cut. */
    if (fd >= 0 && protection & PROT_WRITE && flags & MAP_SHARED && journal >= 0 && behind(fd, path)) {
        size_t end = strlen(path);
        if (end < 4 || strcmp(path + end - 4, "-shm") != 0) {
            lock();
            take_down(UNSUPPORTED, 0, 0, "a writable mapping", NULL, 0);
            unlock();
        }
    }
    return (void *)syscall(SYS_mmap, address, length, protection, flags, fd, offset);
}

void *mmap(void *at, size_t length, int protection, int flags, int fd, off_t offset) {
    return mapped(at, length, protection, flags, fd, offset);
}
void *mmap64(void *at, size_t length, int protection, int flags, int fd, off_t offset) {
    return mapped(at, length, protection, flags, fd, offset);
}

static void refuse(int fd, const char *what) {
    char path[PATH_MAX];
    if (journal >= 0 && behind(fd, path)) {
        lock();
        take_down(UNSUPPORTED, 0, 0, what, NULL, 0);
        unlock();
    }
}

ssize_t sendfile64(int to, int from, off_t *offset, size_t count) {
    refuse(to, "sendfile");
    return syscall(SYS_sendfile, to, from, offset, count);
}
ssize_t sendfile(int to, int from, off_t *offset, size_t count) { return sendfile64(to, from, offset, count); }

ssize_t copy_file_range(int from, off64_t *read_at, int to, off64_t *write_at, size_t count, unsigned flags) {
    refuse(to, "copy_file_range");
    return syscall(SYS_copy_file_range, from, read_at, to, write_at, count, flags);
}

int fallocate64(int fd, int mode, off64_t offset, off64_t length) {
    refuse(fd, "fallocate");
    return (int)syscall(SYS_fallocate, fd, mode, offset, length);
}
int fallocate(int fd, int mode, off_t offset, off_t length) { return fallocate64(fd, mode, offset, length); }

int posix_fallocate64(int fd, off64_t offset, off64_t length) {
    refuse(fd, "posix_fallocate");
    return syscall(SYS_fallocate, fd, 0, offset, length) == 0 ? 0 : errno;
}
int posix_fallocate(int fd, off_t offset, off_t length) { return posix_fallocate64(fd, offset, length); }
