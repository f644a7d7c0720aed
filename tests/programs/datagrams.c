/*
 * datagrams serve PORT                    receives until a datagram of one byte comes
 * datagrams ADDRESS PORT SECONDS          sends as fast as it can, and prints {"gbits": ...}
 *
 * What the kernel's UDP sockets carry with trains (UDP_SEGMENT, UDP_GRO) between two programs that poll and touch each byte once: the sender
 * copies payload from its memory behind a head, as a packet needs it, and the receiver copies it to where it belongs. Nothing is checked, and no
 * packet has a sequence number, so this is a limit for a protocol above such sockets. At most WINDOW bytes are on the way: the receiver tells
 * how much it has, and a sender that hears nothing for a while goes on, so that a loss costs time only.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif
#ifndef UDP_GRO
#define UDP_GRO 104
#endif

enum {
	HEAD = 16, PAYLOAD = 4096, SEGMENT = HEAD + PAYLOAD, SEGMENTS = 15, TRAIN = SEGMENT * SEGMENTS, AREA = 1 << 20,
	WINDOW = 768 << 10, TELL_EACH = 4 * TRAIN, IDLE_READS = 200, STALL_MS = 50,
};

static unsigned char area[AREA + TRAIN], train[65536];

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

static double seconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec + now.tv_nsec / 1e9;
}

static int open_socket(void)
{
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0), size = 8 << 20;

	if (fd < 0)
		fail("socket");
	/* The first needs a privilege, the second is limited by net.core.rmem_max. */
	if (setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &size, sizeof size))
		setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof size);
	return fd;
}

static void serve(int port)
{
	struct sockaddr_in from, here = { .sin_family = AF_INET, .sin_port = htons(port) };
	uint64_t received = 0, told = 0;
	size_t at = 0;
	int fd = open_socket(), on = 1, idle = 0;

	if (bind(fd, (struct sockaddr *)&here, sizeof here) || setsockopt(fd, IPPROTO_UDP, UDP_GRO, &on, sizeof on))
		fail("bind");
	for (;;) {
		socklen_t length = sizeof from;
		ssize_t got = recvfrom(fd, train, sizeof train, 0, (struct sockaddr *)&from, &length);

		if (got == 1)
			return;
		if (got < 0 && errno != EAGAIN)
			fail("recvfrom");
		for (ssize_t begin = 0; begin + SEGMENT <= got; begin += SEGMENT) {
			memcpy(area + at, train + begin + HEAD, PAYLOAD);
			at = (at + PAYLOAD) % AREA;
		}
		received += got > 0 ? got : 0;
		idle = got > 0 ? 0 : idle + 1;
		if (received - told >= (idle == IDLE_READS ? 1 : TELL_EACH)) {
			told = received;
			sendto(fd, &told, sizeof told, 0, (struct sockaddr *)&from, sizeof from);
		}
	}
}

static void send_train(int fd, size_t *at)
{
	char control[CMSG_SPACE(sizeof(uint16_t))] = {};
	struct iovec piece = { train, TRAIN };
	struct msghdr message = { .msg_iov = &piece, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control };
	struct cmsghdr *header = CMSG_FIRSTHDR(&message);

	header->cmsg_level = IPPROTO_UDP;
	header->cmsg_type = UDP_SEGMENT;
	header->cmsg_len = CMSG_LEN(sizeof(uint16_t));
	*(uint16_t *)CMSG_DATA(header) = SEGMENT;
	for (int i = 0; i < SEGMENTS; i++) {
		memcpy(train + i * SEGMENT + HEAD, area + *at, PAYLOAD);
		*at = (*at + PAYLOAD) % AREA;
	}
	while (sendmsg(fd, &message, 0) < 0)
		if (errno != EAGAIN && errno != ENOBUFS)
			fail("sendmsg");
}

int main(int argc, char **argv)
{
	struct sockaddr_in there = { .sin_family = AF_INET };
	uint64_t sent = 0, known = 0, told;
	size_t at = 0;
	int fd;

	if (argc == 3 && !strcmp(argv[1], "serve")) {
		serve(atoi(argv[2]));
		return 0;
	}
	there.sin_port = htons(argc == 4 ? atoi(argv[2]) : 0);
	if (argc != 4 || inet_pton(AF_INET, argv[1], &there.sin_addr) != 1) {
		fprintf(stderr, "usage: datagrams serve PORT | datagrams ADDRESS PORT SECONDS\n");
		return 2;
	}
	fd = open_socket();
	if (connect(fd, (struct sockaddr *)&there, sizeof there))
		fail("connect");

	double begun = seconds(), end = begun + atof(argv[3]), heard = begun;
	uint64_t lost = 0;

	while (seconds() < end) {
		while (recv(fd, &told, sizeof told, 0) == sizeof told) {
			known = told;
			heard = seconds();
		}
		if (sent - known - lost < WINDOW) {
			send_train(fd, &at);
			sent += TRAIN;
		} else if (seconds() - heard > STALL_MS / 1e3) {
			lost = sent - known;
			heard = seconds();
		}
	}
	printf("{\"gbits\": %.3f, \"lost\": %llu}\n", known / SEGMENT * (double)PAYLOAD * 8 / (seconds() - begun) / 1e9, (unsigned long long)lost);
	for (int i = 0; i < 20; i++)
		send(fd, "", 1, 0);
	return 0;
}
