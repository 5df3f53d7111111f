/* crowd [deaf] chain N | daemons N: N processes, each the child of the one before, or each of them an orphan. */
#include "life.h"

enum { MOST = 400 };

static void sit(void) {
    for (;;) {
        stamp();
        pause_ms(50);
    }
}

int main(int argc, char **argv) {
    begin(argc, argv);
    must(number("chain") <= MOST && number("daemons") <= MOST, "too many");
    for (int i = 0; i < number("chain"); i++) {
        pid_t child = bear();
        must(child >= 0, "fork");
        if (child > 0) sit();
        setsid();
    }
    for (int i = 0; i < number("daemons"); i++) {
        pid_t child = bear();
        must(child >= 0, "fork");
        if (child > 0) {
            waitpid(child, NULL, 0);
            continue;
        }
        setsid();
        if (bear() != 0) _exit(0);
        sit();
    }
    ready(1);
    sit();
}
