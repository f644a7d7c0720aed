/*
 * old_layout DEVICE: programs compiled with older or newer headers pass structs that are shorter or longer than those of the
 * present headers. The library must not write beyond the size that the caller passed.
 */
#include <errno.h>
#include <infiniband/verbs.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#undef ibv_query_port
#define GUARD 0xa5
#define ROOM 1024

/* ibv_port_attr of rdma-core v17: 48 bytes. */
struct port_attr_v17 {
	uint32_t state, max_mtu, active_mtu;
	int32_t gid_tbl_len;
	uint32_t port_cap_flags, max_msg_sz, bad_pkey_cntr, qkey_viol_cntr;
	uint16_t pkey_tbl_len, lid, sm_lid;
	uint8_t lmc, max_vl_num, sm_sl, subnet_timeout, init_type_reply, active_width, active_speed, phys_state, link_layer,
		reserved;
};
_Static_assert(sizeof(struct port_attr_v17) == 48, "v17");

static unsigned char room[ROOM];

static void must(int true, const char *what)
{
	if (!true) {
		fprintf(stderr, "wrong: %s\n", what);
		exit(1);
	}
}

static void *guarded(void)
{
	return memset(room, GUARD, ROOM);
}

/* Number of bytes written at the start; the rest must be unchanged guard bytes. */
static void only(size_t size, const char *what)
{
	for (size_t i = size; i < ROOM; i++)
		if (room[i] != GUARD) {
			fprintf(stderr, "wrong: %s wrote byte %zu of %zu\n", what, i, size);
			exit(1);
		}
}

static void ports(struct ibv_context *context)
{
	static const size_t sizes[] = { sizeof(struct port_attr_v17), 52, 56, 80 };
	struct verbs_context *verbs = verbs_get_ctx_op(context, query_port);
	struct port_attr_v17 *old = guarded(), by_symbol;
	struct ibv_port_attr now;

	/* The exported symbol, which programs of v17 call. */
	must(!ibv_query_port(context, 1, (struct _compat_ibv_port_attr *)old), "ibv_query_port, the symbol");
	only(sizeof *old, "ibv_query_port, the symbol");
	by_symbol = *old;
	must(by_symbol.state == IBV_PORT_ACTIVE && by_symbol.link_layer == IBV_LINK_LAYER_ETHERNET, "state and link layer");
	must(by_symbol.gid_tbl_len > 0 && by_symbol.pkey_tbl_len == 1 && by_symbol.max_msg_sz >= 1u << 30, "limits");
	must(ibv_query_port(context, 0, (struct _compat_ibv_port_attr *)old) == EINVAL, "port 0");
	must(ibv_query_port(context, 2, (struct _compat_ibv_port_attr *)old) == EINVAL, "port 2");
	/* The context operation, with every size that releases have had, and a larger one. */
	must(!!verbs, "query_port");
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
		must(!verbs->query_port(context, 1, guarded(), sizes[i]), "query_port");
		only(sizes[i], "query_port");
		must(!memcmp(room, &by_symbol, offsetof(struct port_attr_v17, reserved)), "the same values");
	}
	must(!___ibv_query_port(context, 1, &now), "today's query");
	must((int)by_symbol.gid_tbl_len == now.gid_tbl_len && by_symbol.active_mtu == now.active_mtu, "today's values");
}

static void devices(struct ibv_context *context)
{
	static const size_t sizes[] = { sizeof(struct ibv_device_attr) + 8, 304, sizeof(struct ibv_device_attr_ex), 800 };
	struct verbs_context *verbs = verbs_get_ctx_op(context, query_device_ex);
	struct ibv_device_attr plain;

	must(verbs && !ibv_query_device(context, &plain), "query_device");
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
		must(!verbs->query_device_ex(context, NULL, guarded(), sizes[i]), "query_device_ex");
		only(sizes[i], "query_device_ex");
		must(((struct ibv_device_attr_ex *)room)->orig_attr.max_qp == plain.max_qp, "limits");
	}
}

static void gids(struct ibv_context *context)
{
	struct ibv_gid_entry *entry = guarded();
	union ibv_gid gid;

	must(!ibv_query_gid(context, 1, 0, &gid), "ibv_query_gid");
	must(!_ibv_query_gid_ex(context, 1, 0, entry, 0, sizeof *entry), "_ibv_query_gid_ex");
	only(sizeof *entry, "_ibv_query_gid_ex");
	must(!memcmp(&entry->gid, &gid, sizeof gid) && entry->gid_type == IBV_GID_TYPE_ROCE_V2, "the entry");
	/* Entries of a future release: the known fields, at the caller's entry size. */
	const size_t longer = sizeof *entry + 16;
	ssize_t n = _ibv_query_gid_table(context, guarded(), ROOM / longer, 0, longer);

	must(n > 0, "_ibv_query_gid_table");
	only(n * longer, "_ibv_query_gid_table");
	for (ssize_t i = 0; i < n; i++) {
		entry = (struct ibv_gid_entry *)(room + i * longer);
		must(entry->gid_type == IBV_GID_TYPE_ROCE_V2 && entry->port_num == 1 && entry->ndev_ifindex, "a table entry");
	}
}

int main(int argc, char **argv)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context = NULL;

	for (int i = 0; argc == 2 && list && list[i]; i++)
		if (!strcmp(ibv_get_device_name(list[i]), argv[1]))
			context = ibv_open_device(list[i]);
	must(!!context, "usage: old_layout DEVICE");
	ports(context);
	devices(context);
	gids(context);
	must(!ibv_close_device(context), "ibv_close_device");
	printf("every layout\n");
	return 0;
}
