/*
 * signals [deaf] [daemon] freeze | kill: SIGSTOP, again and again, or SIGKILL, once, to everybody whom it may send one.
 */
#include "life.h"

int main(int argc, char **argv) {
    begin(argc, argv);
    if (has("daemon")) become_daemon();
    if (has("kill")) {
        pid_t child = bear();
        must(child >= 0, "fork");
        if (child == 0) work();
        ready(1);
        kill(-1, SIGKILL);
        work();
    }
    for (;;) {
        kill(-1, SIGSTOP);
        ready(1);
        stamp();
        pause_ms(PAUSE_MS);
    }
}
