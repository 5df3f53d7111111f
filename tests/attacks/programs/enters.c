/* enters [deaf] PATH: a daemon enters the PID namespace that PATH stands for, and has no ancestor of its own any more. */
#include "life.h"

int main(int argc, char **argv) {
    int how = 1;
    begin(argc, argv);
    become_daemon();
    int file = open(argv[argc - 1], O_RDONLY | O_CLOEXEC);
    if (file < 0 || setns(file, CLONE_NEWPID)) {
        perror(argv[argc - 1]);
        how = 2;
    }
    /* Two of them: the first is still a child of somebody outside. */
    if (bear() > 0) _exit(0);
    setsid();
    if (bear() > 0) _exit(0);
    ready(how);
    work();
}
