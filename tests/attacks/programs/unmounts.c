/*
 * unmounts [deaf] detach | cover | hide | blind: no /proc any more, an empty one, one without the process that works, or
 * one without COMMAND's parent.
 */
#include "life.h"
#include <sys/mount.h>

int main(int argc, char **argv) {
    char path[64];
    begin(argc, argv);
    pid_t parent = getppid();
    become_daemon();
    snprintf(path, sizeof path, "/proc/%d", (int)(has("blind") ? parent : getpid()));
    if (has("detach")) must(!umount2("/proc", MNT_DETACH), "umount /proc");
    if (has("cover")) must(!mount("none", "/proc", "tmpfs", 0, NULL), "mount over /proc");
    if (has("hide") || has("blind")) must(!mount("none", path, "tmpfs", 0, NULL), path);
    ready(1);
    work();
}
