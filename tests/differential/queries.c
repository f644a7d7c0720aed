/* Queries: limits of the device, port, tables, attributes of queue pairs and shared receive queues as they are read back. */
#include "facts.h"

BEHAVIOUR(device_limits)
{
	at_least("max_mr_size", device.max_mr_size);
	at_least("max_qp_wr", device.max_qp_wr);
	at_least("max_sge", device.max_sge);
	at_least("max_sge_rd", device.max_sge_rd);
	at_least("max_cqe", device.max_cqe);
	at_least("max_qp_rd_atom", device.max_qp_rd_atom);
	at_least("max_qp_init_rd_atom", device.max_qp_init_rd_atom);
	at_least("max_srq_wr", device.max_srq_wr);
	at_least("max_srq_sge", device.max_srq_sge);
	at_least("max_mcast_grp", device.max_mcast_grp);
	at_least("max_pkeys", device.max_pkeys);
	fact("atomic_cap", "%d", device.atomic_cap);
}

BEHAVIOUR(device_objects)
{
	at_least("max_qp", device.max_qp);
	at_least("max_cq", device.max_cq);
	at_least("max_mr", device.max_mr);
	at_least("max_pd", device.max_pd);
	at_least("max_mw", device.max_mw);
	at_least("max_srq", device.max_srq);
	at_least("max_ah", device.max_ah);
}

BEHAVIOUR(device_capabilities)
{
	static const struct { const char *name; unsigned flag; } flags[] = {
		{ "BAD_PKEY_CNTR", IBV_DEVICE_BAD_PKEY_CNTR }, { "BAD_QKEY_CNTR", IBV_DEVICE_BAD_QKEY_CNTR },
		{ "AUTO_PATH_MIG", IBV_DEVICE_AUTO_PATH_MIG }, { "CHANGE_PHY_PORT", IBV_DEVICE_CHANGE_PHY_PORT },
		{ "CURR_QP_STATE_MOD", IBV_DEVICE_CURR_QP_STATE_MOD }, { "RC_RNR_NAK_GEN", IBV_DEVICE_RC_RNR_NAK_GEN },
		{ "SRQ_RESIZE", IBV_DEVICE_SRQ_RESIZE }, { "N_NOTIFY_CQ", IBV_DEVICE_N_NOTIFY_CQ },
		{ "MEM_WINDOW", IBV_DEVICE_MEM_WINDOW }, { "MEM_WINDOW_TYPE_2A", IBV_DEVICE_MEM_WINDOW_TYPE_2A },
		{ "MEM_WINDOW_TYPE_2B", IBV_DEVICE_MEM_WINDOW_TYPE_2B }, { "XRC", IBV_DEVICE_XRC },
		{ "MEM_MGT_EXTENSIONS", IBV_DEVICE_MEM_MGT_EXTENSIONS }, { "RESIZE_MAX_WR", IBV_DEVICE_RESIZE_MAX_WR },
		{ "PORT_ACTIVE_EVENT", IBV_DEVICE_PORT_ACTIVE_EVENT }, { "SYS_IMAGE_GUID", IBV_DEVICE_SYS_IMAGE_GUID },
		{ "UD_AV_PORT_ENFORCE", IBV_DEVICE_UD_AV_PORT_ENFORCE }, { "MANAGED_FLOW_STEERING", IBV_DEVICE_MANAGED_FLOW_STEERING },
	};

	for (int i = 0; i < COUNT(flags); i++)
		fact(flags[i].name, "%d", !!(device.device_cap_flags & flags[i].flag));
}

BEHAVIOUR(port_attributes)
{
	struct ibv_port_attr port;

	result("query", ibv_query_port(context, PORT, &port));
	fact("state", "%d", port.state);
	fact("max_mtu", "%d", port.max_mtu);
	fact("active_mtu", "%d", port.active_mtu);
	at_least("max_msg_sz", port.max_msg_sz);
	fact("pkey_tbl_len", "%d", port.pkey_tbl_len);
	fact("lid", "%d", port.lid);
	fact("link_layer", "%d", port.link_layer);
	fact("phys_state", "%d", port.phys_state);
	fact("port_cap_flags", "%#x", port.port_cap_flags);
	fact("max_vl_num", "%d", port.max_vl_num);
	fact("active_width", "%d", port.active_width);
}

BEHAVIOUR(ports_that_are_not)
{
	struct ibv_port_attr port;
	union ibv_gid some;
	__be16 pkey;

	fact("count", "%d", device.phys_port_cnt);
	result("port_0", ibv_query_port(context, 0, &port));
	result("port_2", ibv_query_port(context, 2, &port));
	result("port_255", ibv_query_port(context, 255, &port));
	fact("gid_port_2", "%d", ibv_query_gid(context, 2, 0, &some));
	fact("gid_index_4096", "%d", ibv_query_gid(context, PORT, 4096, &some));
	fact("gid_index_-1", "%d", ibv_query_gid(context, PORT, -1, &some));
	fact("pkey_index_0", "%d", ibv_query_pkey(context, PORT, 0, &pkey));
	fact("pkey_0", "%#x", be16toh(pkey));
	fact("pkey_index_1", "%d", ibv_query_pkey(context, PORT, 1, &pkey));
	fact("pkey_port_2", "%d", ibv_query_pkey(context, 2, 0, &pkey));
}
