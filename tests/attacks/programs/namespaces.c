/* namespaces [deaf] [daemon]: works in a user and a PID namespace that it made, as their init and as a daemon in them. */
#include "life.h"

int main(int argc, char **argv) {
    begin(argc, argv);
    if (has("daemon")) become_daemon();
    if (unshare(CLONE_NEWUSER | CLONE_NEWPID)) {
        perror("unshare");
        ready(2);
        work();
    }
    pid_t child = bear();
    must(child >= 0, "fork");
    if (child == 0) {
        become_daemon();
        ready(1);
    }
    work();
}
