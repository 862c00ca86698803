/* Preloaded into a process (LD_PRELOAD), it plays the machine below it: see machine.py.

   Clock: the first 8 bytes of the file UMQTT_MACHINE/clock are nanoseconds that are added to the time of day.
   Disk: what fsync() and fdatasync() have made safe of a file is copied into UMQTT_MACHINE/synced, under its inode. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define NS 1000000000LL
#define FILES 1024
#define REAL(name) ((__typeof__(&name))real(&real_##name, #name))
#define DECLARE(name) static void *real_##name

DECLARE(clock_gettime); DECLARE(write); DECLARE(pwrite64); DECLARE(writev); DECLARE(fsync); DECLARE(fdatasync);

static volatile long long *offset;
static const char *folder;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* What was written since the last sync, of the files that this process has synced before. */
static struct { dev_t device; ino_t inode; off_t from, to; } dirty[FILES];
static int files;

static void *real(void **known, const char *name) {
    if (!*known) *known = dlsym(RTLD_NEXT, name);
    return *known;
}

__attribute__((constructor)) static void begin(void) {
    char path[4096];
    const char *found_folder = getenv("UMQTT_MACHINE");
    if (!found_folder) return;
    folder = strdup(found_folder); /* programs that set their title overwrite the environment */
    snprintf(path, sizeof path, "%s/clock", folder);
    int fd = open(path, O_RDONLY);
    if (fd < 0) return;
    void *found = mmap(0, sizeof *offset, PROT_READ, MAP_SHARED, fd, 0);
    if (found != MAP_FAILED) offset = found;
    close(fd);
}

int clock_gettime(clockid_t id, struct timespec *now) {
    int result = REAL(clock_gettime)(id, now);
    if (!result && offset && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) {
        long long ns = now->tv_sec * NS + now->tv_nsec + *offset;
        now->tv_sec = ns / NS, now->tv_nsec = ns % NS;
    }
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    (void)zone;
    struct timespec found;
    int result = clock_gettime(CLOCK_REALTIME, &found);
    now->tv_sec = found.tv_sec, now->tv_usec = found.tv_nsec / 1000;
    return result;
}

time_t time(time_t *now) {
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    if (now) *now = found.tv_sec;
    return found.tv_sec;
}

static int place(const struct stat *file) {
    for (int i = 0; i < files; i++)
        if (dirty[i].inode == file->st_ino && dirty[i].device == file->st_dev) return i;
    return -1;
}

static void note(int fd, off_t from, ssize_t count) {
    struct stat file;
    if (!folder || count <= 0 || fstat(fd, &file) || !S_ISREG(file.st_mode)) return;
    pthread_mutex_lock(&lock);
    int i = place(&file);
    if (i >= 0) {
        if (from < dirty[i].from) dirty[i].from = from;
        if (from + count > dirty[i].to) dirty[i].to = from + count;
    }
    pthread_mutex_unlock(&lock);
}

static off_t position(int fd) { return lseek(fd, 0, SEEK_CUR); }

ssize_t write(int fd, const void *data, size_t size) {
    ssize_t done = REAL(write)(fd, data, size);
    if (done > 0 && folder) note(fd, position(fd) - done, done);
    return done;
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
    ssize_t done = REAL(writev)(fd, parts, count);
    if (done > 0 && folder) note(fd, position(fd) - done, done);
    return done;
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    ssize_t done = REAL(pwrite64)(fd, data, size, at);
    note(fd, at, done);
    return done;
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t at) { return pwrite64(fd, data, size, at); }

/* The first sync of a file by this process copies all of it: an earlier process may have written without syncing. */
static void copy(int fd) {
    char path[4096], data[65536];
    struct stat file;
    if (!folder || fstat(fd, &file) || !S_ISREG(file.st_mode)) return;
    pthread_mutex_lock(&lock);
    int i = place(&file);
    off_t from = i < 0 ? 0 : dirty[i].from, to = i < 0 ? file.st_size : dirty[i].to;
    if (i < 0 && files < FILES) i = files++, dirty[i].device = file.st_dev, dirty[i].inode = file.st_ino;
    if (i >= 0) dirty[i].from = file.st_size, dirty[i].to = 0;
    snprintf(path, sizeof path, "%s/synced/%llu", folder, (unsigned long long)file.st_ino);
    int source, target = open(path, O_WRONLY | O_CREAT, 0600);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    source = open(path, O_RDONLY);
    for (ssize_t got; source >= 0 && target >= 0 && from < to; from += got) {
        size_t size = (size_t)(to - from) < sizeof data ? (size_t)(to - from) : sizeof data;
        got = pread(source, data, size, from);
        if (got <= 0 || REAL(pwrite64)(target, data, got, from) != got) break;
    }
    if (target >= 0 && ftruncate(target, file.st_size)) abort();
    if (target >= 0) close(target);
    if (source >= 0) close(source);
    pthread_mutex_unlock(&lock);
}

int fsync(int fd) {
    int result = REAL(fsync)(fd);
    if (!result) copy(fd);
    return result;
}

int fdatasync(int fd) {
    int result = REAL(fdatasync)(fd);
    if (!result) copy(fd);
    return result;
}
