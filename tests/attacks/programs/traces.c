/* traces [deaf]: a daemon holds another one in ptrace(2), which nobody but SIGKILL can end. */
#include "life.h"
#include <sys/ptrace.h>

int main(int argc, char **argv) {
    begin(argc, argv);
    become_daemon();
    pid_t held = bear();
    must(held >= 0, "fork");
    if (held == 0) {
        setsid();
        work();
    }
    must(!ptrace(PTRACE_SEIZE, held, 0, PTRACE_O_EXITKILL), "PTRACE_SEIZE");
    must(!ptrace(PTRACE_INTERRUPT, held, 0, 0), "PTRACE_INTERRUPT");
    must(waitpid(held, NULL, __WALL) == held, "waitpid");
    ready(1);
    work();
}
