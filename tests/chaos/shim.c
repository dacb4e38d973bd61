/* In front of a PostgreSQL server (LD_PRELOAD): its clock is so many seconds wrong, and its disk is full, as a shared file says.

A full disk refuses what would make a file longer; what is written inside a file still goes through, as on a real one. Standard
error is never full, so that the server's log tells what happened. Only the clock on the wall moves: waiting takes as long as ever. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

struct state { volatile int64_t ahead, full; };
static struct state calm, *now = &calm;

__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv("CHAOS_SHIM");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *shared = file < 0 ? MAP_FAILED : mmap(NULL, sizeof *now, PROT_READ, MAP_SHARED, file, 0);
    if (shared != MAP_FAILED)
        now = shared;
    if (file >= 0)
        close(file);
}

#define REAL(name) \
    static __typeof__(&name) real; \
    if (!real) \
        real = (__typeof__(&name)) dlsym(RTLD_NEXT, #name)

int clock_gettime(clockid_t clock, struct timespec *at)
{
    REAL(clock_gettime);
    int failed = real(clock, at);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        at->tv_sec += now->ahead;
    return failed;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone)
{
    struct timespec fine;
    int failed = clock_gettime(CLOCK_REALTIME, &fine);
    if (!failed) {
        at->tv_sec = fine.tv_sec;
        at->tv_usec = fine.tv_nsec / 1000;
    }
    return failed;
}

time_t time(time_t *at)
{
    struct timespec fine;
    clock_gettime(CLOCK_REALTIME, &fine);
    if (at)
        *at = fine.tv_sec;
    return fine.tv_sec;
}

static int too_long(int file, off_t end)
{
    struct stat found;
    if (!now->full || file == STDERR_FILENO || fstat(file, &found) || !S_ISREG(found.st_mode) || end <= found.st_size)
        return 0;
    errno = ENOSPC;
    return 1;
}

static off_t length(const struct iovec *parts, int count)
{
    off_t sum = 0;
    while (count--)
        sum += parts++->iov_len;
    return sum;
}

ssize_t write(int file, const void *data, size_t count)
{
    REAL(write);
    return now->full && too_long(file, lseek(file, 0, SEEK_CUR) + count) ? -1 : real(file, data, count);
}

ssize_t pwrite(int file, const void *data, size_t count, off_t at)
{
    REAL(pwrite);
    return too_long(file, at + count) ? -1 : real(file, data, count, at);
}

ssize_t pwritev(int file, const struct iovec *parts, int count, off_t at)
{
    REAL(pwritev);
    return too_long(file, at + length(parts, count)) ? -1 : real(file, parts, count, at);
}

int posix_fallocate(int file, off_t at, off_t count)
{
    REAL(posix_fallocate);
    return too_long(file, at + count) ? ENOSPC : real(file, at, count);
}

/* The same under the names that a program compiled for large files calls. */
ssize_t pwrite64(int file, const void *data, size_t count, off_t at) { return pwrite(file, data, count, at); }
ssize_t pwritev64(int file, const struct iovec *parts, int count, off_t at) { return pwritev(file, parts, count, at); }
int posix_fallocate64(int file, off_t at, off_t count) { return posix_fallocate(file, at, count); }
