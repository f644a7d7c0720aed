/* The shim over DPDK: functions with plain types for DPDK's inline functions and macros. src/ffi.rs mirrors this file. */
#ifndef BURST_DPDK_SHIM_H
#define BURST_DPDK_SHIM_H

#include <stddef.h>
#include <stdint.h>

/* A received packet: its first segment. */
struct bd_packet {
    void *mbuf;
    const uint8_t *data;
    uint32_t len;      /* of all segments */
    uint32_t segments; /* 1: `data` holds all of `len` */
};

/* Properties of a device. */
struct bd_facts {
    char driver[32];
    uint8_t mac[6];
    uint16_t mtu;
    uint16_t mtu_max;
    uint16_t rx_queues_max;
    uint16_t tx_queues_max;
    uint8_t has_rss;
    uint8_t rx_scatter;
};

/* The wanted configuration of a device. */
struct bd_setup {
    uint16_t queues;
    uint16_t rx_descriptors;
    uint16_t tx_descriptors;
    uint16_t mtu; /* 0: unchanged */
    uint32_t room; /* bytes of a receive buffer without headroom */
    uint32_t rx_buffers;
    uint32_t tx_buffers;
};

/* The pools of one queue pair. */
struct bd_pools {
    void *rx;   /* receive buffers */
    void *tx;   /* whole frames to send */
};

typedef void (*bd_log_line)(uint32_t level, const char *text, size_t length);

/* The process. */
int bd_log_to(bd_log_line line, uint32_t level);
int bd_eal_init(int argc, char **argv);
int bd_thread_register(void);
void bd_thread_unregister(void);

/* Devices: the functions return 0 or a negative errno. */
int bd_probe(const char *devargs, const char *name, uint16_t *port);
int bd_remove(uint16_t port);
int bd_facts(uint16_t port, struct bd_facts *facts);
int bd_configure(uint16_t port, const struct bd_setup *setup, struct bd_pools *pools);
int bd_start(uint16_t port);
int bd_stop(uint16_t port);
int bd_link(uint16_t port, uint32_t *speed_mbps);
void bd_free_pools(struct bd_pools *pools);
int bd_rx_event_open(uint16_t port, uint16_t queue);
int bd_rx_event_arm(uint16_t port, uint16_t queue);
void bd_rx_event_drain(uint16_t port, uint16_t queue, int events);
int bd_rx_waiting(uint16_t port, uint16_t queue);

/* Packets. */
uint16_t bd_rx(uint16_t port, uint16_t queue, struct bd_packet *out, uint16_t n);
void bd_rx_done(const struct bd_packet *packets, uint16_t n);
uint32_t bd_flatten(const void *mbuf, uint8_t *out, uint32_t max);
int bd_alloc(void *pool, void **mbufs, uint16_t n);
void bd_free(void **mbufs, uint16_t n);
uint8_t *bd_fill(void *mbuf, uint16_t len);
uint16_t bd_tx(uint16_t port, uint16_t queue, void **mbufs, uint16_t n);

#endif
