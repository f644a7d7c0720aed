/* Many connections at once, by the RDMA-CM API: measures setup and teardown, and counts the outcomes.
 *
 *   cm_many [options]            serves until it is killed
 *   cm_many [options] ADDRESS    connects, then disconnects
 *
 *   -t THREADS   threads, each with its own event channel and port (default 1)
 *   -c COUNT     connections of all threads together (default 1000)
 *   -w WINDOW    connections under way at a time, per thread; 0: each step for all connections before the next step (default 0)
 *   -p PORT      first port (default 7200)
 *   -k SECONDS   keeps the connections for a while (default 0)
 *   -d SECONDS   deadline: connections without outcome by then count as stuck (default 60)
 *   -b BACKLOG   of the listeners (default 65535)
 *   -m           the server answers no request: all stay in the backlog
 *
 * The client prints one JSON object: seconds per step, and outcomes. The server prints "idle N" whenever its last connection has
 * ended; N is the number of connections accepted so far.
 */
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum step { CREATE, ADDRESS, ROUTE, QP, CONNECT, DISCONNECT, DESTROY, STEPS };
static const char *const step_names[STEPS] = {"create_id", "resolve_addr", "resolve_route", "create_qp",
                                              "connect",   "disconnect",   "destroy"};
enum outcome { UNDER_WAY, UP, REJECTED, UNREACHABLE, FAILED, OUTCOMES };
static const char *const outcome_names[OUTCOMES] = {"stuck", "established", "rejected", "unreachable", "failed"};

static int threads = 1, count = 1000, window, port = 7200, keep, deadline_s = 60, backlog = 65535;
static bool mute;
static const char *server;
static pthread_barrier_t together;
static atomic_int live, accepted;

struct conn {
    struct rdma_cm_id *id;
    enum outcome outcome;
    bool gone;
};

struct worker {
    int number, mine;
    struct rdma_event_channel *channel;
    struct ibv_cq *cq;
    struct sockaddr_storage to;
    struct conn *conns;
    double ended[STEPS];
    int outcomes[OUTCOMES];
};

static void die(const char *what)
{
    perror(what);
    exit(1);
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static void make_qp(struct worker *w, struct rdma_cm_id *id)
{
    if (!w->cq && !(w->cq = ibv_create_cq(id->verbs, 16, NULL, NULL, 0)))
        die("ibv_create_cq");
    struct ibv_qp_init_attr init = {.send_cq = w->cq,
                                    .recv_cq = w->cq,
                                    .qp_type = IBV_QPT_RC,
                                    .cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1}};
    if (rdma_create_qp(id, NULL, &init))
        die("rdma_create_qp");
}

static struct rdma_conn_param param(void)
{
    return (struct rdma_conn_param){
        .responder_resources = 1, .initiator_depth = 1, .retry_count = 5, .rnr_retry_count = 5};
}

/* Handles one event of the server. */
static void answer(struct worker *w, struct rdma_cm_id *id, enum rdma_cm_event_type kind)
{
    struct rdma_conn_param accept = param();
    switch (kind) {
    case RDMA_CM_EVENT_CONNECT_REQUEST:
        if (mute)
            return;
        make_qp(w, id);
        atomic_fetch_add(&live, 1);
        atomic_fetch_add(&accepted, 1);
        if (rdma_accept(id, &accept))
            die("rdma_accept");
        return;
    case RDMA_CM_EVENT_DISCONNECTED:
        rdma_disconnect(id);
        break;
    case RDMA_CM_EVENT_UNREACHABLE:
    case RDMA_CM_EVENT_REJECTED:
    case RDMA_CM_EVENT_CONNECT_ERROR:
        break;
    default:
        return;
    }
    if (!id->qp)
        return;
    rdma_destroy_qp(id);
    rdma_destroy_id(id);
    if (atomic_fetch_sub(&live, 1) == 1) {
        printf("idle %d\n", atomic_load(&accepted));
        fflush(stdout);
    }
}

static void *serve(void *arg)
{
    struct worker *w = arg;
    struct rdma_cm_id *listener;
    struct sockaddr_in any = {.sin_family = AF_INET, .sin_port = htons(port + w->number)};
    if (!(w->channel = rdma_create_event_channel()) || rdma_create_id(w->channel, &listener, NULL, RDMA_PS_TCP) ||
        rdma_bind_addr(listener, (struct sockaddr *)&any) || rdma_listen(listener, backlog))
        die("listen");
    pthread_barrier_wait(&together);
    for (struct rdma_cm_event *event; !rdma_get_cm_event(w->channel, &event);) {
        struct rdma_cm_id *id = event->id;
        enum rdma_cm_event_type kind = event->event;
        rdma_ack_cm_event(event);
        answer(w, id, kind);
    }
    die("rdma_get_cm_event");
    return NULL;
}

/* Records an event in its connection. True if the event ends a step of the connection. */
static bool follow(struct conn *c, enum rdma_cm_event_type kind)
{
    switch (kind) {
    case RDMA_CM_EVENT_ADDR_RESOLVED:
    case RDMA_CM_EVENT_ROUTE_RESOLVED:
        return true;
    case RDMA_CM_EVENT_ESTABLISHED:
        c->outcome = UP;
        return true;
    case RDMA_CM_EVENT_REJECTED:
        c->outcome = REJECTED;
        return true;
    case RDMA_CM_EVENT_UNREACHABLE:
        c->outcome = UNREACHABLE;
        return true;
    case RDMA_CM_EVENT_DISCONNECTED:
        c->gone = true;
        return true;
    case RDMA_CM_EVENT_TIMEWAIT_EXIT:
        return false;
    default:
        c->outcome = FAILED;
        return true;
    }
}

/* Waits for the next event; returns its connection, or NULL at the deadline. */
static struct conn *next(struct worker *w, double deadline, enum rdma_cm_event_type *kind)
{
    struct rdma_cm_event *event;
    while (rdma_get_cm_event(w->channel, &event)) {
        if (errno != EAGAIN)
            die("rdma_get_cm_event");
        struct pollfd look = {.fd = w->channel->fd, .events = POLLIN};
        double left = deadline - now();
        if (left <= 0)
            return NULL;
        poll(&look, 1, (int)(left * 1e3) + 1);
    }
    struct conn *c = event->id->context;
    *kind = event->event;
    rdma_ack_cm_event(event);
    return c;
}

static void begin(struct worker *w, struct conn *c, enum step step)
{
    struct rdma_conn_param ask = param();
    int failed = 0;
    switch (step) {
    case CREATE:
        failed = rdma_create_id(w->channel, &c->id, c, RDMA_PS_TCP);
        break;
    case ADDRESS:
        failed = rdma_resolve_addr(c->id, NULL, (struct sockaddr *)&w->to, 2000);
        break;
    case ROUTE:
        failed = rdma_resolve_route(c->id, 2000);
        break;
    case QP:
        make_qp(w, c->id);
        break;
    case CONNECT:
        failed = rdma_connect(c->id, &ask);
        break;
    case DISCONNECT:
        failed = rdma_disconnect(c->id);
        break;
    default:
        if (c->id->qp)
            rdma_destroy_qp(c->id);
        failed = rdma_destroy_id(c->id);
    }
    if (failed)
        die(step_names[step]);
}

/* Takes one step with all connections that have not failed. */
static void together_now(struct worker *w, enum step step, double deadline)
{
    int asked = 0, done = 0;
    bool answered = step == ADDRESS || step == ROUTE || step == CONNECT || step == DISCONNECT;
    pthread_barrier_wait(&together);
    for (int i = 0; i < w->mine; i++) {
        struct conn *c = &w->conns[i];
        if (c->outcome != UNDER_WAY && c->outcome != UP && step != DESTROY)
            continue;
        if (step == DISCONNECT && c->outcome != UP)
            continue;
        begin(w, c, step);
        asked++;
    }
    while (answered && done < asked) {
        enum rdma_cm_event_type kind;
        struct conn *c = next(w, deadline, &kind);
        if (!c)
            break;
        done += follow(c, kind);
    }
    w->ended[step] = now();
}

/* Each connection takes its next step as soon as the last one is done; at most `window` connections are under way. */
static void in_a_window(struct worker *w, double deadline)
{
    int begun = 0, done = 0;
    pthread_barrier_wait(&together);
    while (done < w->mine) {
        while (begun < w->mine && begun - done < window) {
            begin(w, &w->conns[begun], CREATE);
            begin(w, &w->conns[begun++], ADDRESS);
        }
        enum rdma_cm_event_type kind;
        struct conn *c = next(w, deadline, &kind);
        if (!c)
            break;
        follow(c, kind);
        if (kind == RDMA_CM_EVENT_ADDR_RESOLVED) {
            begin(w, c, ROUTE);
        } else if (kind == RDMA_CM_EVENT_ROUTE_RESOLVED) {
            begin(w, c, QP);
            begin(w, c, CONNECT);
        } else {
            done++;
        }
    }
    w->ended[CONNECT] = now();
}

static void *ask(void *arg)
{
    struct worker *w = arg;
    double deadline = now() + deadline_s;
    if (window)
        in_a_window(w, deadline);
    else
        for (enum step step = CREATE; step <= CONNECT; step++)
            together_now(w, step, deadline);
    for (int i = 0; i < w->mine; i++)
        w->outcomes[w->conns[i].id ? w->conns[i].outcome : FAILED]++;
    pthread_barrier_wait(&together);
    if (keep) {
        if (w->number == 0) {
            printf("up\n");
            fflush(stdout);
        }
        sleep(keep);
    }
    deadline = now() + deadline_s;
    together_now(w, DISCONNECT, deadline);
    for (int i = 0; i < w->mine; i++)
        if (w->conns[i].outcome == UP && !w->conns[i].gone)
            w->outcomes[UNDER_WAY]++;
    together_now(w, DESTROY, deadline);
    return NULL;
}

static void prepare(struct worker *w)
{
    struct addrinfo *found;
    char service[16];
    snprintf(service, sizeof service, "%d", port + w->number);
    if (getaddrinfo(server, service, NULL, &found))
        die("getaddrinfo");
    memcpy(&w->to, found->ai_addr, found->ai_addrlen);
    freeaddrinfo(found);
    w->mine = count / threads + (w->number < count % threads);
    w->conns = calloc(w->mine, sizeof *w->conns);
    if (!w->conns || !(w->channel = rdma_create_event_channel()))
        die("rdma_create_event_channel");
    fcntl(w->channel->fd, F_SETFL, fcntl(w->channel->fd, F_GETFL) | O_NONBLOCK);
}

static void report(const struct worker *workers, double begun, double kept)
{
    double before = begun;
    printf("{\"threads\": %d, \"count\": %d", threads, count);
    for (enum step step = window ? CONNECT : CREATE; step < STEPS; step++) {
        double last = 0;
        for (int i = 0; i < threads; i++)
            last = workers[i].ended[step] > last ? workers[i].ended[step] : last;
        if (step == DISCONNECT)
            before += kept;
        printf(", \"%s\": %.6f", window && step == CONNECT ? "setup" : step_names[step], last - before);
        before = last;
    }
    for (enum outcome outcome = 0; outcome < OUTCOMES; outcome++) {
        int sum = 0;
        for (int i = 0; i < threads; i++)
            sum += workers[i].outcomes[outcome];
        printf(", \"%s\": %d", outcome_names[outcome], sum);
    }
    printf("}\n");
}

int main(int argc, char **argv)
{
    for (int option; (option = getopt(argc, argv, "t:c:w:p:k:d:b:m")) != -1;) {
        int value = optarg ? atoi(optarg) : 0;
        switch (option) {
        case 't': threads = value; break;
        case 'c': count = value; break;
        case 'w': window = value; break;
        case 'p': port = value; break;
        case 'k': keep = value; break;
        case 'd': deadline_s = value; break;
        case 'b': backlog = value; break;
        case 'm': mute = true; break;
        default: return 2;
        }
    }
    server = argv[optind];
    struct worker *workers = calloc(threads, sizeof *workers);
    pthread_t *ids = calloc(threads, sizeof *ids);
    if (!workers || !ids)
        die("calloc");
    pthread_barrier_init(&together, NULL, threads + !server);
    for (int i = 0; i < threads; i++) {
        workers[i].number = i;
        if (server)
            prepare(&workers[i]);
    }
    double begun = now();
    for (int i = 0; i < threads; i++)
        if (pthread_create(&ids[i], NULL, server ? ask : serve, &workers[i]))
            die("pthread_create");
    if (!server) {
        pthread_barrier_wait(&together);
        printf("listening\n");
        fflush(stdout);
    }
    for (int i = 0; i < threads; i++)
        pthread_join(ids[i], NULL);
    report(workers, begun, keep);
    return 0;
}
