/*
 * crowd [deaf] chain N | daemons N [mayflies N]: processes, each the child of the one before, or each of them an orphan.
 * mayflies: so many processes that make orphans which end at once. Who reaps those looks past all daemons for each.
 */
#include "life.h"

enum { MOST = 4000, MOST_IN_A_CHAIN = 400 };

static void sit(void) {
    for (;;) {
        stamp();
        pause_ms(number("mayflies") ? 1000 : 50);
    }
}

/* Its children's children are orphans at once, and end. */
static void make_mayflies(void) {
    for (;;) {
        pid_t child = bear();
        if (child == 0) {
            bear();
            _exit(0);
        }
        if (child > 0) waitpid(child, NULL, 0);
    }
}

int main(int argc, char **argv) {
    begin(argc, argv);
    must(number("chain") <= MOST_IN_A_CHAIN && number("daemons") <= MOST && number("mayflies") <= 8, "too many");
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
    for (int i = 0; i < number("mayflies"); i++) {
        pid_t child = bear();
        must(child >= 0, "fork");
        if (child == 0) make_mayflies();
    }
    ready(1);
    sit();
}
