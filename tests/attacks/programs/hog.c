/*
 * hog [deaf] [apart] [fifo N] busy N: processes that never sleep; `apart`: in sessions of their own; `fifo`: at this
 * real-time priority.
 */
#include "life.h"

enum { MOST = 256 };

static void spin(void) {
    for (;;) stamp();
}

int main(int argc, char **argv) {
    begin(argc, argv);
    must(number("busy") <= MOST, "too many");
    struct sched_param parameter = {.sched_priority = number("fifo")};
    if (number("fifo") && sched_setscheduler(0, SCHED_FIFO, &parameter)) {
        ready(2);
        work();
    }
    for (int i = 1; i < number("busy"); i++) {
        pid_t child = bear();
        must(child >= 0, "fork");
        if (child == 0) {
            if (has("apart")) setsid();
            spin();
        }
    }
    ready(1);
    spin();
}
