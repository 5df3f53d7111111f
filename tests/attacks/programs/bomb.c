/*
 * bomb [deaf] classic | setsid | slots N [busy] | hop N [slow]
 *
 * classic: every process forks for ever. setsid: and each in a session of its own. Both want RLIMIT_NPROC.
 * slots: N processes that start each other again. hop: N processes that are another one every moment. slow: only every
 * few milliseconds, and no more than MOST_SLOW times: whoever ought to reap them may be frozen.
 */
#include "life.h"

enum { LOOK_NS = 2000000, MOST_FILLED = 200000, MOST_SLOW = 20000, SLOW_MS = 4 };

static int is_gone(pid_t pid) {
    if (kill(pid, 0)) return 1;
    char state = state_of(pid);
    return state == 0 || state == 'Z' || state == 'X';
}

static void fork_for_ever(int sessions) {
    uint64_t refused = 0;
    for (;;) {
        pid_t child = bear();
        if (child == 0 && sessions) setsid();
        if (child < 0 && refused++ == 0) ready(1);
        while (waitpid(-1, NULL, WNOHANG) > 0) {}
    }
}

/* A slot has one process at a time: one that was replaced ends. */
static void occupy(int slot, int slots) {
    atomic_store(&life->occupant[slot], (uint64_t)getpid());
    for (;;) {
        if (atomic_load(&life->occupant[slot]) != (uint64_t)getpid()) _exit(0);
        atomic_store(&life->seen[slot], now());
        for (int i = 0; i < slots; i++) {
            uint64_t seen = atomic_load(&life->seen[i]), at = now();
            if (i == slot || at < seen + LOOK_NS) continue;
            /* It may be asleep or dead. One that lives is never replaced: on a busy machine all of them are silent. */
            uint64_t occupant = atomic_load(&life->occupant[i]);
            if (occupant && !is_gone((pid_t)occupant)) continue;
            if (!atomic_compare_exchange_strong(&life->seen[i], &seen, at)) continue;
            if (atomic_load(&life->births) > MOST_FILLED) give_up();
            pid_t child = bear();
            if (child < 0) continue;
            if (child == 0) {
                setsid();
                slot = i;
            }
            atomic_store(&life->occupant[i], (uint64_t)(child ? child : getpid()));
        }
        while (waitpid(-1, NULL, WNOHANG) > 0) {}
        stamp();
        if (slot == slots - 1) ready(1);
        if (!has("busy")) pause_ms(1);
    }
}

static void hop(void) {
    for (;;) {
        if (has("slow")) pause_ms(SLOW_MS);
        if (has("slow") && atomic_load(&life->births) >= MOST_SLOW) work();
        pid_t child = bear();
        if (child > 0) _exit(0);
        if (child == 0) setsid();
        ready(1);
    }
}

int main(int argc, char **argv) {
    begin(argc, argv);
    /* As root nothing else bounds them. */
    must(getuid() || number("slots") || number("hop"), "not as root");
    must(number("slots") <= MOST_SLOTS && number("hop") <= MOST_SLOTS, "too many");
    if (number("slots")) occupy(0, number("slots"));
    if (number("hop")) {
        for (int i = 0; i < number("hop"); i++)
            if (bear() == 0) hop();
        work();
    }
    fork_for_ever(has("setsid"));
}
