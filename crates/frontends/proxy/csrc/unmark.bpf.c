/* Takes the proxy's mark from the TCP sockets of one network namespace: those that an earlier proxy has marked.
 *
 * A socket that was connecting, or has connected by TCP, when that proxy ended would otherwise follow the routes of its successor to `lo`, where none of
 * its programs knows the connection: the kernel drops such packets without an answer. Writes a byte for each socket.
 *
 * The two structures are the interface of the iterator (each member has eight bytes), so nothing is relocated.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#define SOL_SOCKET 1
#define SO_MARK 36

/* Set by the loader. */
volatile const __u32 MARK = 0;

struct seq_file;
struct sock_common;

struct bpf_iter_meta {
	struct seq_file *seq;
};

struct bpf_iter__tcp {
	struct bpf_iter_meta *meta;
	struct sock_common *sk_common;
};

SEC("iter/tcp")
int unmark(struct bpf_iter__tcp *ctx)
{
	struct sock_common *common = ctx->sk_common;
	if (!common)
		return 0;
	/* None in TIME-WAIT, and none of a request that no socket has accepted. */
	struct tcp_sock *socket = bpf_skc_to_tcp_sock(common);
	int mark = 0, none = 0;
	char done = 1;
	if (!socket || bpf_getsockopt(socket, SOL_SOCKET, SO_MARK, &mark, sizeof mark) || mark != (int)MARK)
		return 0;
	if (!bpf_setsockopt(socket, SOL_SOCKET, SO_MARK, &none, sizeof none))
		bpf_seq_write(ctx->meta->seq, &done, sizeof done);
	return 0;
}

char _license[] SEC("license") = "Dual MIT/GPL";
