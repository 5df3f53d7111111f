/* thread_outlives_main [deaf] [daemon]: its main thread ends, another one works. /proc/PID/stat says Z then. */
#include "life.h"
#include <pthread.h>

static void *go_on(void *nothing) {
    while (state_of(getpid()) != 'Z') {
        stamp();
        pause_ms(1);
    }
    ready(1);
    work();
    return nothing;
}

int main(int argc, char **argv) {
    pthread_t thread;
    begin(argc, argv);
    if (has("daemon")) become_daemon();
    must(!pthread_create(&thread, NULL, go_on, NULL), "pthread_create");
    pthread_exit(NULL);
}
