/* vforks [deaf] [daemon]: its parent is held in vfork(2) as long as the child works. */
#include "life.h"

int main(int argc, char **argv) {
    begin(argc, argv);
    if (has("daemon")) become_daemon();
    if (vfork() == 0) {
        ready(1);
        work();
    }
}
