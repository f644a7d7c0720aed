/* The functions of shim.h. All of them work on memory that DPDK owns; src/ffi.rs has the rules for callers. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <rte_dev.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_interrupts.h>
#include <rte_lcore.h>
#include <rte_log.h>
#include <rte_malloc.h>
#include <rte_mbuf.h>
#include <rte_mempool.h>

#include "shim.h"

/* Most packets requested by one call of a driver. */
#define BURST 32
/* Buffers in the cache of a thread. */
#define CACHE 64
/* Cache lines of a packet that are prefetched: from Ethernet to the end of the transport head. */
#define PREFETCH_LINES 2

_Static_assert(sizeof(struct bd_packet) == 24, "src/ffi.rs has the same layout");

static bd_log_line log_line;

static ssize_t log_write(void *cookie, const char *text, size_t length) {
    (void)cookie;
    log_line((uint32_t)rte_log_cur_msg_loglevel(), text, length);
    return (ssize_t)length;
}

int bd_log_to(bd_log_line line, uint32_t level) {
    cookie_io_functions_t functions = {.write = log_write};
    FILE *stream = fopencookie(NULL, "w", functions);
    if (stream == NULL)
        return -ENOMEM;
    setvbuf(stream, NULL, _IOLBF, 0);
    log_line = line;
    rte_log_set_global_level(level);
    return rte_openlog_stream(stream);
}

/* Some functions of DPDK fail without setting rte_errno. */
static int last_error(void) { return rte_errno != 0 ? -rte_errno : -EIO; }

int bd_eal_init(int argc, char **argv) { return rte_eal_init(argc, argv) < 0 ? last_error() : 0; }
int bd_thread_register(void) { return rte_thread_register() < 0 ? last_error() : 0; }
void bd_thread_unregister(void) { rte_thread_unregister(); }

int bd_probe(const char *devargs, const char *name, uint16_t *port) {
    int error = rte_dev_probe(devargs);
    if (error != 0)
        return error < 0 ? error : -error;
    if (rte_eth_dev_get_port_by_name(name, port) == 0)
        return 0;
    /* A port may have another name than its device (representors, buses): take the first that the arguments match. */
    struct rte_dev_iterator found;
    RTE_ETH_FOREACH_MATCHING_DEV(*port, devargs, &found) {
        rte_eth_iterator_cleanup(&found);
        return 0;
    }
    return -ENODEV;
}

int bd_remove(uint16_t port) {
    struct rte_eth_dev_info info;
    int error = rte_eth_dev_info_get(port, &info);
    return error != 0 ? error : rte_dev_remove(info.device);
}

int bd_facts(uint16_t port, struct bd_facts *facts) {
    struct rte_eth_dev_info info;
    struct rte_ether_addr mac;
    int error = rte_eth_dev_info_get(port, &info);
    if (error != 0)
        return error;
    memset(facts, 0, sizeof *facts);
    snprintf(facts->driver, sizeof facts->driver, "%s", info.driver_name);
    if (rte_eth_macaddr_get(port, &mac) == 0)
        memcpy(facts->mac, mac.addr_bytes, sizeof facts->mac);
    rte_eth_dev_get_mtu(port, &facts->mtu);
    facts->mtu_max = info.max_mtu;
    facts->rx_queues_max = info.max_rx_queues;
    facts->tx_queues_max = info.max_tx_queues;
    facts->has_rss = (info.flow_type_rss_offloads & (RTE_ETH_RSS_UDP | RTE_ETH_RSS_IP)) != 0;
    facts->rx_scatter = (info.rx_offload_capa & RTE_ETH_RX_OFFLOAD_SCATTER) != 0;
    return 0;
}

static struct rte_mempool *pool(uint16_t port, uint16_t queue, const char *what, uint32_t count, uint32_t room) {
    char name[RTE_MEMPOOL_NAMESIZE];
    snprintf(name, sizeof name, "burst_%s_%u_%u", what, port, queue);
    return rte_pktmbuf_pool_create(name, count, CACHE, 0, (uint16_t)(room + RTE_PKTMBUF_HEADROOM),
                                   rte_eth_dev_socket_id(port));
}

static int make_pools(uint16_t port, uint16_t queue, const struct bd_setup *setup, struct bd_pools *pools) {
    pools->rx = pool(port, queue, "rx", setup->rx_buffers, setup->room);
    pools->tx = pool(port, queue, "tx", setup->tx_buffers, setup->room);
    return pools->rx == NULL || pools->tx == NULL ? -ENOMEM : 0;
}

void bd_free_pools(struct bd_pools *pools) {
    rte_mempool_free(pools->rx);
    rte_mempool_free(pools->tx);
    memset(pools, 0, sizeof *pools);
}

/* Receive interrupts are requested first; a driver without them refuses, and is configured again without. */
static int configure_queues(uint16_t port, const struct bd_setup *setup, const struct rte_eth_dev_info *info) {
    struct rte_eth_conf conf;
    memset(&conf, 0, sizeof conf);
    conf.rxmode.mtu = setup->mtu;
    if (info->rx_offload_capa & RTE_ETH_RX_OFFLOAD_SCATTER)
        conf.rxmode.offloads |= RTE_ETH_RX_OFFLOAD_SCATTER;
    uint64_t rss = info->flow_type_rss_offloads & (RTE_ETH_RSS_IP | RTE_ETH_RSS_UDP);
    if (setup->queues > 1 && rss != 0) {
        conf.rxmode.mq_mode = RTE_ETH_MQ_RX_RSS;
        conf.rx_adv_conf.rss_conf.rss_hf = rss;
    }
    conf.intr_conf.rxq = 1;
    int error = rte_eth_dev_configure(port, setup->queues, setup->queues, &conf);
    if (error == 0)
        return 0;
    conf.intr_conf.rxq = 0;
    return rte_eth_dev_configure(port, setup->queues, setup->queues, &conf);
}

int bd_configure(uint16_t port, const struct bd_setup *setup, struct bd_pools *pools) {
    struct rte_eth_dev_info info;
    int error = rte_eth_dev_info_get(port, &info);
    if (error == 0)
        error = configure_queues(port, setup, &info);
    uint16_t rx = setup->rx_descriptors, tx = setup->tx_descriptors;
    if (error == 0)
        error = rte_eth_dev_adjust_nb_rx_tx_desc(port, &rx, &tx);
    for (uint16_t q = 0; q < setup->queues && error == 0; q++) {
        error = make_pools(port, q, setup, &pools[q]);
        if (error == 0)
            error = rte_eth_rx_queue_setup(port, q, rx, rte_eth_dev_socket_id(port), NULL, pools[q].rx);
        if (error == 0)
            error = rte_eth_tx_queue_setup(port, q, tx, rte_eth_dev_socket_id(port), NULL);
    }
    return error;
}

int bd_start(uint16_t port) {
    int error = rte_eth_dev_start(port);
    /* Neighbour discovery needs multicast; devices without a filter do not support this call. */
    if (error == 0)
        rte_eth_allmulticast_enable(port);
    return error;
}
int bd_stop(uint16_t port) { return rte_eth_dev_stop(port); }

int bd_link(uint16_t port, uint32_t *speed_mbps) {
    struct rte_eth_link link;
    int error = rte_eth_link_get_nowait(port, &link);
    if (error != 0)
        return error;
    *speed_mbps = link.link_speed == RTE_ETH_SPEED_NUM_UNKNOWN ? 0 : link.link_speed;
    return link.link_status == RTE_ETH_LINK_UP;
}

/* Interrupts arrive at an epoll descriptor of the shim, because DPDK knows how the event of each kind of device is consumed. */
int bd_rx_event_open(uint16_t port, uint16_t queue) {
    int events = epoll_create1(EPOLL_CLOEXEC);
    if (events < 0)
        return -errno;
    int error = rte_eth_dev_rx_intr_ctl_q(port, queue, events, RTE_INTR_EVENT_ADD, NULL);
    if (error == 0)
        return events;
    close(events);
    return error;
}

int bd_rx_event_arm(uint16_t port, uint16_t queue) { return rte_eth_dev_rx_intr_enable(port, queue); }

void bd_rx_event_drain(uint16_t port, uint16_t queue, int events) {
    struct rte_epoll_event event;
    rte_eth_dev_rx_intr_disable(port, queue);
    rte_epoll_wait(events, &event, 1, 0);
}

int bd_rx_waiting(uint16_t port, uint16_t queue) { return rte_eth_rx_queue_count(port, queue); }

uint16_t bd_rx(uint16_t port, uint16_t queue, struct bd_packet *out, uint16_t n) {
    struct rte_mbuf *mbufs[BURST];
    uint16_t got = rte_eth_rx_burst(port, queue, mbufs, n < BURST ? n : BURST);
    for (uint16_t i = 0; i < got; i++) {
        struct rte_mbuf *m = mbufs[i];
        const uint8_t *data = rte_pktmbuf_mtod(m, const uint8_t *);
        for (int line = 0; line < PREFETCH_LINES; line++)
            rte_prefetch0(data + line * RTE_CACHE_LINE_SIZE);
        out[i] = (struct bd_packet){.mbuf = m, .data = data, .len = m->pkt_len, .segments = m->nb_segs};
    }
    return got;
}

void bd_rx_done(const struct bd_packet *packets, uint16_t n) {
    struct rte_mbuf *mbufs[BURST];
    while (n > 0) {
        uint16_t some = n < BURST ? n : BURST;
        for (uint16_t i = 0; i < some; i++)
            mbufs[i] = packets[i].mbuf;
        rte_pktmbuf_free_bulk(mbufs, some);
        packets += some;
        n -= some;
    }
}

uint32_t bd_flatten(const void *mbuf, uint8_t *out, uint32_t max) {
    uint32_t at = 0;
    for (const struct rte_mbuf *m = mbuf; m != NULL; m = m->next) {
        if (m->data_len > max - at)
            return 0;
        memcpy(out + at, rte_pktmbuf_mtod(m, const uint8_t *), m->data_len);
        at += m->data_len;
    }
    return at;
}

int bd_alloc(void *pool, void **mbufs, uint16_t n) {
    return rte_pktmbuf_alloc_bulk(pool, (struct rte_mbuf **)mbufs, n);
}

void bd_free(void **mbufs, uint16_t n) { rte_pktmbuf_free_bulk((struct rte_mbuf **)mbufs, n); }

uint8_t *bd_fill(void *mbuf, uint16_t len) {
    struct rte_mbuf *m = mbuf;
    m->data_len = len;
    m->pkt_len = len;
    return rte_pktmbuf_mtod(m, uint8_t *);
}

uint16_t bd_tx(uint16_t port, uint16_t queue, void **mbufs, uint16_t n) {
    return rte_eth_tx_burst(port, queue, (struct rte_mbuf **)mbufs, n);
}
