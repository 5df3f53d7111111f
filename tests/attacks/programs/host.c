/*
 * A host of its own for one leaderrun: a PID and a mount namespace, so that everything in it ends for certain when the
 * test lets go of standard input.
 *
 * host STATUS BINARY [uid=N] [nproc=N] [rtprio=N] [cpu=N] [quota=N] [proc=own|hidden|foreign] [cgroup=NAME] [other] --
 * PROGRAM ARGUMENT...
 *
 * STATUS is the file that gets PROGRAM's wait status. BINARY is what PROGRAM stands for: it may lie where a user cannot
 * reach it. `other`: process 2 is the init of a further PID namespace. `cpu`: PROGRAM has this processor alone. `quota`: it
 * has so many milliseconds of one in each 100 ms.
 * `cgroup`: PROGRAM is born in a cgroup (v2) that is delegated to it. SIGUSR1 kills all of it, as a service manager does.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <ftw.h>
#include <grp.h>
#include <mntent.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

static char *status_path, **program, group[4096], killer[5000], limited[4096];
static const char *proc = "own";
static unsigned uid, nproc, rtprio, quota;
static int cpu = -1;
static int other;

static void must(int well, const char *what) {
    if (!well) {
        fprintf(stderr, "host: ");
        perror(what);
        exit(69);
    }
}

static void put(const char *directory, const char *name, const char *text) {
    char path[5000];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    int file = open(path, O_WRONLY);
    must(file >= 0 && write(file, text, strlen(text)) > 0, path);
    close(file);
}

static void delegate(const char *name) {
    char root[2048] = "", path[5000];
    struct mntent *entry;
    FILE *mounts = setmntent("/proc/self/mounts", "r");
    must(mounts != NULL, "/proc/self/mounts");
    while ((entry = getmntent(mounts)))
        if (!strcmp(entry->mnt_type, "cgroup2")) snprintf(root, sizeof root, "%s", entry->mnt_dir);
    endmntent(mounts);
    if (!*root) {
        snprintf(root, sizeof root, "%s.cgroup", status_path);
        must(!mkdir(root, 0755), root);
        must(!mount("none", root, "cgroup2", 0, NULL), "no cgroup2 can be had: mount");
    }
    snprintf(group, sizeof group, "%s/%s", root, name);
    must(!mkdir(group, 0755), group);
    snprintf(killer, sizeof killer, "%s/cgroup.kill", group);
    must(!setxattr(group, "trusted.delegate", "1", 1, 0), "trusted.delegate");
    setxattr(group, "user.delegate", "1", 1, 0);
    const char *files[] = {"", "/cgroup.procs", "/cgroup.threads", "/cgroup.subtree_control"};
    for (int i = 0; i < 4; i++) {
        snprintf(path, sizeof path, "%s%s", group, files[i]);
        must(!chown(path, uid, uid), path);
    }
}

/* A cgroup of version 1 with this limit. */
static void limit(void) {
    char root[2048] = "", text[32];
    struct mntent *entry;
    FILE *mounts = setmntent("/proc/self/mounts", "r");
    must(mounts != NULL, "/proc/self/mounts");
    while ((entry = getmntent(mounts)))
        if (!strcmp(entry->mnt_type, "cgroup") && hasmntopt(entry, "cpu")) snprintf(root, sizeof root, "%s", entry->mnt_dir);
    endmntent(mounts);
    if (!*root) {
        snprintf(root, sizeof root, "%s.cpu", status_path);
        must(!mkdir(root, 0755), root);
        must(!mount("none", root, "cgroup", 0, "cpu"), "no limit of processor time can be set: mount");
    }
    snprintf(limited, sizeof limited, "%s/leaderrun-attack-%d", root, (int)getpid());
    must(!mkdir(limited, 0755), limited);
    snprintf(text, sizeof text, "%u", quota * 1000);
    put(limited, "cpu.cfs_period_us", "100000");
    put(limited, "cpu.cfs_quota_us", text);
    /* As on a machine that is idle otherwise: what else runs takes nothing of it. */
    put(limited, "cpu.shares", "262144");
}

static int remove_directory(const char *path, const struct stat *ignored, int kind, struct FTW *place) {
    (void)ignored, (void)place;
    if (kind == FTW_DP) rmdir(path);
    return 0;
}

static void kill_group(int ignored) {
    (void)ignored;
    int file = open(killer, O_WRONLY | O_CLOEXEC);
    if (file < 0 || write(file, "1", 1) != 1) _exit(70);
    close(file);
}

static void remove_group(void) {
    kill_group(0);
    for (int i = 0; i < 500 && !access(group, F_OK); i++) {
        nftw(group, remove_directory, 16, FTW_DEPTH | FTW_PHYS);
        usleep(10000);
    }
}

static void reap_for_ever(void) {
    signal(SIGCHLD, SIG_IGN);
    for (;;) pause();
}

static void run(void) {
    if (*group) put(group, "cgroup.procs", "0");
    if (*limited) put(limited, "cgroup.procs", "0");
    cpu_set_t processor;
    CPU_ZERO(&processor);
    if (cpu >= 0) CPU_SET(cpu, &processor);
    if (cpu >= 0) must(!sched_setaffinity(0, sizeof processor, &processor), "a processor");
    struct rlimit limit = {nproc, nproc}, priority = {rtprio, rtprio};
    if (rtprio) must(!setrlimit(RLIMIT_RTPRIO, &priority), "RLIMIT_RTPRIO");
    if (nproc) must(!setrlimit(RLIMIT_NPROC, &limit), "RLIMIT_NPROC");
    if (uid) must(!setgroups(0, NULL) && !setgid(uid) && !setuid(uid), "setuid");
    must(dup2(open("/dev/null", O_RDWR | O_CLOEXEC), 0) == 0 && dup2(2, 1) == 1, "dup2");
    execvp(program[0], program);
    must(0, program[0]);
}

static void init(void) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (strcmp(proc, "foreign")) {
        /* Whoever unmounts this one must not find another one below. */
        while (!umount2("/proc", MNT_DETACH)) {}
        must(!mount("proc", "/proc", "proc", 0, strcmp(proc, "own") ? "hidepid=2" : NULL), "/proc");
    }
    if (other && !syscall(SYS_clone, CLONE_NEWPID | SIGCHLD, 0, 0, 0, 0)) reap_for_ever();
    pid_t child, ended;
    /* Low numbers are the kernel's own threads elsewhere: a foreign /proc could show them as ours by accident. */
    for (int i = 0; i < 200; i++) {
        child = fork();
        must(child >= 0, "fork");
        if (!child) _exit(0);
        waitpid(child, NULL, 0);
    }
    child = fork();
    must(child >= 0, "fork");
    if (!child) run();
    for (;;) {
        struct pollfd end = {.fd = 0, .events = POLLIN};
        if (poll(&end, 1, 10) > 0) exit(0);
        int status;
        while ((ended = waitpid(-1, &status, WNOHANG)) > 0) {
            if (ended != child) continue;
            int file = open(status_path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
            must(file >= 0 && dprintf(file, "%d\n", status) > 0, status_path);
            close(file);
        }
    }
}

int main(int argc, char **argv) {
    char *name = NULL;
    int word = 3;
    must(argc > 4, "STATUS BINARY -- PROGRAM");
    status_path = argv[1];
    for (; word < argc && strcmp(argv[word], "--"); word++) {
        sscanf(argv[word], "uid=%u", &uid);
        sscanf(argv[word], "nproc=%u", &nproc);
        sscanf(argv[word], "rtprio=%u", &rtprio);
        sscanf(argv[word], "cpu=%d", &cpu);
        sscanf(argv[word], "quota=%u", &quota);
        if (!strncmp(argv[word], "proc=", 5)) proc = argv[word] + 5;
        if (!strncmp(argv[word], "cgroup=", 7)) name = argv[word] + 7;
        if (!strcmp(argv[word], "other")) other = 1;
    }
    program = argv + word + 1;
    must(!unshare(CLONE_NEWNS) && !mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL), "a mount namespace");
    must(!mount(argv[2], program[0], NULL, MS_BIND, NULL), argv[2]);
    if (name) delegate(name);
    if (quota) limit();
    must(!unshare(CLONE_NEWPID), "a PID namespace");
    pid_t child = fork();
    must(child >= 0, "fork");
    if (!child) init();
    struct sigaction action = {.sa_handler = kill_group, .sa_flags = SA_RESTART};
    if (name) must(!sigaction(SIGUSR1, &action, NULL), "SIGUSR1");
    waitpid(child, NULL, 0);
    if (name) remove_group();
    for (int i = 0; *limited && rmdir(limited) && i < 500; i++) usleep(10000);
    return 0;
}
