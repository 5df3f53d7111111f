/*
 * quiet [deaf] [daemon] [hidden] [renamed]: works.
 * hidden: in no core dump, so /proc belongs to root. renamed: to what reads as an ended process in /proc/PID/stat.
 */
#include "life.h"

int main(int argc, char **argv) {
    begin(argc, argv);
    if (has("daemon")) become_daemon();
    if (has("hidden")) must(!prctl(PR_SET_DUMPABLE, 0), "PR_SET_DUMPABLE");
    if (has("renamed")) must(!prctl(PR_SET_NAME, "a) Z 0 0 ("), "PR_SET_NAME");
    ready(1);
    work();
}
