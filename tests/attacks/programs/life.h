/*
 * What the attack programs have in common: a file that all of them map, by which a test sees when they were alive, and
 * by which every one of them ends. The path is in ATTACK_LIFE.
 *
 * The hazard is the machine: the guard under test may be broken. So every process ends by itself at an instant that the
 * first of them writes down, and no more than MOST_BIRTHS are ever made of them.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MOST_BIRTHS = 2000000, MOST_SLOTS = 64, PAUSE_MS = 10 };

/* life.rs reads the first five. */
struct life {
    /* CLOCK_BOOTTIME in nanoseconds: the first and the last sign of life, and when everything ends by itself. */
    _Atomic uint64_t first, last, until;
    /* The test lets the attack begin. */
    _Atomic uint64_t go;
    /* 1: it has begun. 2: it could not, and what is left of it is a process like any other. */
    _Atomic uint64_t ready;
    _Atomic uint64_t births;
    _Atomic uint64_t seen[MOST_SLOTS];
    _Atomic uint64_t occupant[MOST_SLOTS];
};

static struct life *life;
static int word_count;
static char **words;

static inline uint64_t now(void) {
    struct timespec at;
    clock_gettime(CLOCK_BOOTTIME, &at);
    return (uint64_t)at.tv_sec * 1000000000 + (uint64_t)at.tv_nsec;
}

static inline void must(int well, const char *what) {
    if (!well) {
        perror(what);
        _exit(70);
    }
}

/* Shows that this process lives, and ends it when it is time. */
static inline void stamp(void) {
    uint64_t at = now(), before = atomic_load(&life->last);
    if (at >= atomic_load(&life->until)) _exit(71);
    while (before < at && !atomic_compare_exchange_weak(&life->last, &before, at)) {}
    before = 0;
    atomic_compare_exchange_strong(&life->first, &before, at);
}

static inline void pause_ms(long ms) {
    struct timespec span = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&span, NULL);
}

static inline void work(void) {
    for (;;) {
        stamp();
        pause_ms(PAUSE_MS);
    }
}

static inline void ready(int how) {
    uint64_t before = 0;
    atomic_compare_exchange_strong(&life->ready, &before, (uint64_t)how);
}

static inline int has(const char *word) {
    for (int i = 1; i < word_count; i++)
        if (!strcmp(words[i], word)) return 1;
    return 0;
}

/* The number after a word. */
static inline int number(const char *word) {
    for (int i = 1; i + 1 < word_count; i++)
        if (!strcmp(words[i], word)) return atoi(words[i + 1]);
    return 0;
}

/* Too many were made: the attack ends here, and the test is told. */
static inline void give_up(void) {
    atomic_store(&life->until, now());
    _exit(72);
}

/* fork, counted: in the child 0. */
static inline pid_t bear(void) {
    stamp();
    if (atomic_fetch_add(&life->births, 1) >= MOST_BIRTHS) give_up();
    pid_t child = fork();
    if (child < 0) atomic_fetch_sub(&life->births, 1);
    return child;
}

/* The state of a process in /proc/PID/stat; 0 where there is none. */
static inline char state_of(pid_t pid) {
    char path[64], line[256] = "";
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return 0;
    ssize_t length = read(file, line, sizeof line - 1);
    close(file);
    char *end = strrchr(line, ')');
    return length > 0 && end ? end[2] : 0;
}

/* Returns in a process of a session of its own that no parent waits for. The caller goes on as COMMAND, and works. */
static inline void become_daemon(void) {
    pid_t child = bear();
    must(child >= 0, "fork");
    if (child > 0) {
        waitpid(child, NULL, 0);
        work();
    }
    setsid();
    child = bear();
    must(child >= 0, "fork");
    if (child > 0) _exit(0);
}

/* Every descendant has the lock that is taken here: it is free when the last of them is gone, wherever they went. */
static inline void begin(int argc, char **argv) {
    const char *path = getenv("ATTACK_LIFE"), *seconds = getenv("ATTACK_SECONDS");
    word_count = argc;
    words = argv;
    must(path && seconds, "ATTACK_LIFE and ATTACK_SECONDS");
    int file = open(path, O_RDWR);
    must(file >= 0, path);
    must(!flock(file, LOCK_SH), "flock");
    life = mmap(NULL, sizeof *life, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    must(life != MAP_FAILED, "mmap");
    uint64_t before = 0;
    atomic_compare_exchange_strong(&life->until, &before, now() + (uint64_t)atoi(seconds) * 1000000000);
    if (has("deaf")) signal(SIGTERM, SIG_IGN);
    stamp();
    while (!atomic_load(&life->go)) {
        stamp();
        pause_ms(1);
    }
}
