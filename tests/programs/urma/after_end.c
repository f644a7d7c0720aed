/*
 * urma_after_end: descriptors of events after the end of the daemon. Each gives an error, once, to a program that waits for both by epoll,
 * and then wakes it no more; threads that wait inside the calls get the error, too. Prints "ready", and waits for the end of the daemon.
 *
 * Built with UMDK's headers, and linked with liburma.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <urma_api.h>

enum { CHANNEL, CONTEXT, SOURCES, THREADS = 3, QUIET_MS = 1000, LONG_MS = 30000 };

static urma_context_t *context;
static urma_jfce_t *jfce;

static void check(int is_good, const char *what) {
    if (!is_good) {
        fprintf(stderr, "urma_after_end: %s failed (%s)\n", what, strerror(errno));
        exit(1);
    }
}

/* Whether a call gives an error, as it must after the end. */
static int fails(int source) {
    urma_async_event_t event;
    urma_jfc_t *jfc;
    if (source == CHANNEL)
        return urma_wait_jfc(jfce, 1, -1, &jfc) < 0;
    return urma_get_async_event(context, &event) != URMA_SUCCESS;
}

static void *waits(void *source) {
    check(fails((int)(intptr_t)source), "a wait inside a call");
    return NULL;
}

int main(int argc, char **argv) {
    int blocked = argc > 1 && !strcmp(argv[1], "blocked"), errors[SOURCES] = {0}, wakeups = 0, count;
    urma_init_attr_t init = {0};
    check(urma_init(&init) == URMA_SUCCESS, "urma_init");
    urma_device_t *device = urma_get_device_by_name("burst0");
    check(device && (context = urma_create_context(device, 0)) && (jfce = urma_create_jfce(context)), "urma_create_jfce");
    urma_jfc_cfg_t cfg = {.depth = 16, .jfce = jfce};
    urma_jfc_t *jfc = urma_create_jfc(context, &cfg);
    check(jfc && urma_rearm_jfc(jfc, false) == URMA_SUCCESS, "urma_rearm_jfc");
    int fds[SOURCES] = {jfce->fd, context->async_fd}, epoll = epoll_create1(0);
    pthread_t threads[SOURCES][THREADS];
    for (int source = 0; source < SOURCES; source++) {
        struct epoll_event event = {.events = EPOLLIN, .data = {.u32 = source}};
        check(!epoll_ctl(epoll, EPOLL_CTL_ADD, fds[source], &event), "epoll_ctl");
        for (int i = 0; blocked && i < THREADS; i++)
            check(!pthread_create(&threads[source][i], NULL, waits, (void *)(intptr_t)source), "pthread_create");
    }
    puts("ready");
    fflush(stdout);
    for (int source = 0; blocked && source < SOURCES; source++)
        for (int i = 0; i < THREADS; i++)
            check(!pthread_join(threads[source][i], NULL), "pthread_join");
    struct epoll_event events[SOURCES];
    while ((count = epoll_wait(epoll, events, SOURCES, errors[CHANNEL] && errors[CONTEXT] ? QUIET_MS : blocked ? QUIET_MS : LONG_MS)) > 0) {
        check(++wakeups < 100, "quiet descriptors");
        for (int i = 0; i < count; i++)
            errors[events[i].data.u32] += fails(events[i].data.u32);
    }
    check(!count && (blocked || (errors[CHANNEL] && errors[CONTEXT])), "an error of each descriptor");
    check(fails(CHANNEL) && fails(CONTEXT), "calls after that");
    puts("checked");
    return 0;
}
