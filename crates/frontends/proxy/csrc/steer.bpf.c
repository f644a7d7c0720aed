/* Takes TCP connections of one network namespace to the proxy's listeners.
 *
 * connect4/connect6 (a control group): looks up policy and liveness by destination, marks the socket and notes its destination. The mark makes the
 * kernel route the connection to `lo`. tcp_connect (sock_ops; the source port is known, the SYN not sent): notes the four-tuple. lookup (sk_lookup):
 * gives the SYN with that four-tuple to a listener. Everything else passes. Addresses in maps are IPv6, IPv4 ones v4-mapped, in network order.
 *
 * Only context fields and helpers of the stable BPF interface are used; the kernel relocates them by the object's BTF.
 */
#include <linux/bpf.h>
#include <linux/in.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define AF_INET 2
#define SOCK_STREAM 1
#define SOL_SOCKET 1
#define SO_MARK 36
#define LISTENERS 64
#define RANGES 16

/* Set by the loader. */
volatile const __u64 NAMESPACE = 0;	/* cookie of the namespace */
volatile const __u32 MARK = 0;
volatile const __u32 WORKERS = 1;
volatile const __u32 CLASSES = 1;	/* of source ports: the least power of two that is not below WORKERS */

struct address {
	__u32 word[4];
};

struct prefix {
	__u32 bits;
	struct address to;
};

/* Ports that a policy takes: ranges, ended by one with last == 0. */
struct ports {
	struct {
		__u16 first, last;
	} range[RANGES];
};

struct tuple {
	struct address server, client;
	__u16 server_port, client_port;	/* host order */
};

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 4096);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct prefix);
	__type(value, struct ports);
} policy SEC(".maps");

/* Prefixes that a connected peer serves: 1; 0: none, though a shorter prefix has one. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 4096);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct prefix);
	__type(value, __u64);
} alive SEC(".maps");

/* Whether a connecting socket is v4 (1) or v6 (0), by its cookie. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, __u64);
	__type(value, __u32);
} connecting SEC(".maps");

/* Sockets that carry the mark because of this program, by cookie: a socket may connect again, to a place that no policy names. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, __u64);
	__type(value, __u32);
} marked SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, struct tuple);
	__type(value, __u32);
} steered SEC(".maps");

/* IPv4 listener of worker n at 2n, its IPv6 listener at 2n + 1. */
struct {
	__uint(type, BPF_MAP_TYPE_SOCKMAP);
	__uint(max_entries, LISTENERS);
	__type(key, __u32);
	__type(value, __u32);
} listeners SEC(".maps");

/* 0: taken, 1: no policy, 2: no connected peer, 3: no listener, 4: marked by the program. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 8);
	__type(key, __u32);
	__type(value, __u64);
} counts SEC(".maps");

static __always_inline void count(__u32 what)
{
	__u64 *value = bpf_map_lookup_elem(&counts, &what);
	if (value)
		__sync_fetch_and_add(value, 1);
}

static __always_inline int named(struct ports *ports, __u16 port)
{
	for (int i = 0; i < RANGES; i++) {
		if (!ports->range[i].last)
			return 0;
		if (port >= ports->range[i].first && port <= ports->range[i].last)
			return 1;
	}
	return 0;
}

static __always_inline int listens(__u32 slot)
{
	struct bpf_sock *socket = bpf_map_lookup_elem(&listeners, &slot);
	if (!socket)
		return 0;
	bpf_sk_release(socket);
	return 1;
}

static __always_inline int decide(struct bpf_sock_addr *ctx, struct prefix *to, __u32 is_v4)
{
	__u16 port = bpf_ntohs((__u16)ctx->user_port);
	__u64 cookie = bpf_get_socket_cookie(ctx);
	__u32 own = ctx->sk ? ctx->sk->mark : 0;
	if (own == MARK && bpf_map_lookup_elem(&marked, &cookie)) {
		int none = 0;
		bpf_setsockopt(ctx, SOL_SOCKET, SO_MARK, &none, sizeof none);
		bpf_map_delete_elem(&connecting, &cookie);
		bpf_map_delete_elem(&marked, &cookie);
		own = 0;
	}
	struct ports *ports = bpf_map_lookup_elem(&policy, to);
	if (!ports || !named(ports, port)) {
		count(1);
		return 1;
	}
	if (own) {
		count(4);
		return 1;
	}
	__u64 *has_peer = bpf_map_lookup_elem(&alive, to);
	if (!has_peer || !*has_peer) {
		count(2);
		return 1;
	}
	if (!listens(is_v4 ? 0 : 1)) {
		count(3);
		return 1;
	}
	int mark = MARK;
	if (bpf_map_update_elem(&marked, &cookie, &is_v4, BPF_ANY) || bpf_map_update_elem(&connecting, &cookie, &is_v4, BPF_ANY))
		return 1;
	bpf_setsockopt(ctx, SOL_SOCKET, SO_MARK, &mark, sizeof mark);
	count(0);
	return 1;
}

/* A socket that is bound to a loopback address reaches no other host: the kernel refuses its connect (IPv4), or sends nothing that returns. On its way to
 * `lo` it would be taken for one that does. */
static __always_inline int is_bound_to_loopback(struct bpf_sock_addr *ctx, __u32 is_v4)
{
	struct bpf_sock *sk = ctx->sk;
	if (!sk)
		return 0;
	if (is_v4)
		return (bpf_ntohl(sk->src_ip4) >> 24) == 127;
	return !sk->src_ip6[0] && !sk->src_ip6[1] && !sk->src_ip6[2] && sk->src_ip6[3] == bpf_htonl(1);
}

static __always_inline int ours(struct bpf_sock_addr *ctx)
{
	return ctx->type == SOCK_STREAM && ctx->protocol == IPPROTO_TCP && bpf_get_netns_cookie(ctx) == NAMESPACE;
}

SEC("cgroup/connect4")
int connect4(struct bpf_sock_addr *ctx)
{
	if (!ours(ctx) || is_bound_to_loopback(ctx, 1))
		return 1;
	struct prefix to = { .bits = 128 };
	to.to.word[2] = bpf_htonl(0xffff);
	to.to.word[3] = ctx->user_ip4;
	return decide(ctx, &to, 1);
}

SEC("cgroup/connect6")
int connect6(struct bpf_sock_addr *ctx)
{
	if (!ours(ctx))
		return 1;
	struct prefix to = { .bits = 128 };
	to.to.word[0] = ctx->user_ip6[0];
	to.to.word[1] = ctx->user_ip6[1];
	to.to.word[2] = ctx->user_ip6[2];
	to.to.word[3] = ctx->user_ip6[3];
	__u32 mapped = !to.to.word[0] && !to.to.word[1] && to.to.word[2] == bpf_htonl(0xffff);
	if (is_bound_to_loopback(ctx, mapped))
		return 1;
	return decide(ctx, &to, mapped);
}

/* The compiler must not join two reads of a context's words into one of 64 bits: the verifier refuses it. */
#define SEPARATE asm volatile("" ::: "memory")

SEC("sockops")
int tcp_connect(struct bpf_sock_ops *ctx)
{
	if (ctx->op != BPF_SOCK_OPS_TCP_CONNECT_CB)
		return 1;
	__u64 cookie = bpf_get_socket_cookie(ctx);
	__u32 *is_v4 = bpf_map_lookup_elem(&connecting, &cookie);
	if (!is_v4)
		return 1;
	struct tuple tuple = {};
	__u32 one = 1;
	tuple.client_port = ctx->local_port;
	tuple.server_port = bpf_ntohl(ctx->remote_port);
	if (*is_v4) {
		tuple.client.word[2] = tuple.server.word[2] = bpf_htonl(0xffff);
		tuple.client.word[3] = ctx->local_ip4; SEPARATE;
		tuple.server.word[3] = ctx->remote_ip4; SEPARATE;
	} else {
		tuple.client.word[0] = ctx->local_ip6[0]; SEPARATE;
		tuple.client.word[1] = ctx->local_ip6[1]; SEPARATE;
		tuple.client.word[2] = ctx->local_ip6[2]; SEPARATE;
		tuple.client.word[3] = ctx->local_ip6[3]; SEPARATE;
		tuple.server.word[0] = ctx->remote_ip6[0]; SEPARATE;
		tuple.server.word[1] = ctx->remote_ip6[1]; SEPARATE;
		tuple.server.word[2] = ctx->remote_ip6[2]; SEPARATE;
		tuple.server.word[3] = ctx->remote_ip6[3]; SEPARATE;
	}
	bpf_map_delete_elem(&connecting, &cookie);
	bpf_map_update_elem(&steered, &tuple, &one, BPF_ANY);
	return 1;
}

SEC("sk_lookup")
int lookup(struct bpf_sk_lookup *ctx)
{
	if (ctx->protocol != IPPROTO_TCP)
		return SK_PASS;
	struct tuple tuple = {};
	tuple.server_port = ctx->local_port;
	tuple.client_port = bpf_ntohs(ctx->remote_port);
	__u32 slot = 0;
	if (ctx->family == AF_INET) {
		tuple.client.word[2] = tuple.server.word[2] = bpf_htonl(0xffff);
		tuple.server.word[3] = ctx->local_ip4; SEPARATE;
		tuple.client.word[3] = ctx->remote_ip4; SEPARATE;
	} else {
		slot = 1;
		tuple.server.word[0] = ctx->local_ip6[0]; SEPARATE;
		tuple.server.word[1] = ctx->local_ip6[1]; SEPARATE;
		tuple.server.word[2] = ctx->local_ip6[2]; SEPARATE;
		tuple.server.word[3] = ctx->local_ip6[3]; SEPARATE;
		tuple.client.word[0] = ctx->remote_ip6[0]; SEPARATE;
		tuple.client.word[1] = ctx->remote_ip6[1]; SEPARATE;
		tuple.client.word[2] = ctx->remote_ip6[2]; SEPARATE;
		tuple.client.word[3] = ctx->remote_ip6[3]; SEPARATE;
	}
	if (!bpf_map_lookup_elem(&steered, &tuple))
		return SK_PASS;
	slot += 2 * ((tuple.client_port & (CLASSES - 1)) % WORKERS);
	struct bpf_sock *socket = bpf_map_lookup_elem(&listeners, &slot);
	if (!socket)
		return SK_PASS;
	bpf_sk_assign(ctx, socket, 0);
	bpf_sk_release(socket);
	return SK_PASS;
}

char _license[] SEC("license") = "Dual MIT/GPL";
