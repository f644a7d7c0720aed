/*
 * Behaviours and facts. A behaviour is a function that makes verbs calls and prints what came of them: errno, status, counts, contents. It judges
 * nothing, so the same program runs on Burst and on the kernel's rxe, and the outputs are compared line by line.
 *
 * A line is `BEHAVIOUR.KEY = VALUE`, or `BEHAVIOUR.KEY >= VALUE` for a limit, which may be larger on another implementation. Nothing that
 * depends on the run is printed: no handles, addresses, keys, times.
 *
 * Each behaviour runs in a child process of its own that opens the device itself, so that a crash or a hang is one more fact (`ended`).
 */
#pragma once
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct behaviour {
	const char *name;
	void (*run)(void);
	struct behaviour *next;
};

void enter(struct behaviour *behaviour);

/* BEHAVIOUR(name) { ... } defines a behaviour and puts it into the list. */
#define BEHAVIOUR(name) \
	static void name##_behaviour(void); \
	static struct behaviour name##_entry = { #name, name##_behaviour, NULL }; \
	__attribute__((constructor)) static void name##_enter(void) { enter(&name##_entry); } \
	static void name##_behaviour(void)

#define COUNT(array) ((int)(sizeof(array) / sizeof(array)[0]))

/* --- Facts --- */
__attribute__((format(printf, 2, 3))) void fact(const char *key, const char *format, ...);
/* A limit: another implementation may have more. */
void at_least(const char *key, uint64_t value);
/* The result of a call that returns 0 or an errno (-1: errno). */
void result(const char *key, int code);
/* The result of a call that returns an object, or NULL and errno. */
void made(const char *key, const void *object);
/* A key made of parts, in one of four static buffers that take turns. */
__attribute__((format(printf, 1, 2))) const char *key_of(const char *format, ...);
const char *errno_name(int code);
const char *status_name(enum ibv_wc_status status);
const char *opcode_name(enum ibv_wc_opcode opcode);
const char *state_name(enum ibv_qp_state state);
const char *async_name(enum ibv_event_type type);

/* Ends the behaviour with the fact `stopped` if what it needs cannot be made. */
#define NEED(condition) \
	do { \
		if (!(condition)) \
			stopped(#condition); \
	} while (0)
void stopped(const char *condition);

/* --- The device, opened by `open_device` --- */
enum { PORT = 1, AREA = 64 << 10, QKEY = 0x1234567, DEPTH = 16 };
#define ALL_RIGHTS (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)

extern struct ibv_context *context;
extern struct ibv_pd *pd;
extern struct ibv_cq *cq;
/* A region of AREA bytes with ALL_RIGHTS. */
extern struct ibv_mr *mr;
extern uint8_t *area;
/* The GID of the interface's IPv4 address. */
extern union ibv_gid gid;
extern int gid_index;
extern struct ibv_device_attr device;

void open_device(void);
/* Fresh pages, not registered. */
uint8_t *pages(size_t bytes);

/* --- Queue pairs --- */
struct ibv_qp_init_attr init_of(enum ibv_qp_type type);
struct ibv_qp *new_qp(enum ibv_qp_type type);
/* Attributes and mask of the step from the state before to `state`, towards `peer`. */
int step(enum ibv_qp_type type, enum ibv_qp_state state, uint32_t peer, struct ibv_qp_attr *attr);
/* Makes all steps up to INIT, RTR or RTS, or to ERR or SQD. */
void bring(struct ibv_qp *qp, enum ibv_qp_state state, uint32_t peer);
/* A new queue pair in a state, connected with itself. */
struct ibv_qp *qp_in(enum ibv_qp_type type, enum ibv_qp_state state);
int move(struct ibv_qp *qp, enum ibv_qp_state state);
enum ibv_qp_state state_of(struct ibv_qp *qp);

/* --- Work requests --- */
struct ibv_sge piece(struct ibv_mr *region, size_t offset, size_t length);
/* Posts a signaled request of `length` bytes from the area's begin; the remote address is the middle of the area. */
int post(struct ibv_qp *qp, enum ibv_wr_opcode opcode, size_t length);
int post_wr(struct ibv_qp *qp, struct ibv_send_wr *wr);
/* Posts a receive of `length` bytes at the area's last quarter. */
int post_receive(struct ibv_qp *qp, size_t length);
#define REMOTE_AT (AREA / 2)
#define RECEIVE_AT (AREA / 4 * 3)

/* Waits for a completion; 0 if none comes. */
int await(struct ibv_cq *queue, struct ibv_wc *wc);
/* Waits for a completion and prints its status and, if it succeeded, opcode and length of a receive. */
struct ibv_wc completion(const char *key, struct ibv_cq *queue);
/* The sum of a range of bytes, for contents. */
unsigned sum(const uint8_t *bytes, size_t count);
