/* Compiles only if UMDK's structures have the sizes and offsets that src/abi.rs asserts. Run by tests/test_urma.py. */
#include <stddef.h>
#include "urma_types.h"

_Static_assert(sizeof(urma_jetty_id_t) == 24, "urma_jetty_id_t");
_Static_assert(sizeof(urma_device_t) == 4184, "urma_device_t");
_Static_assert(sizeof(urma_device_cap_t) == 304, "urma_device_cap_t");
_Static_assert(sizeof(urma_device_attr_t) == 496, "urma_device_attr_t");
_Static_assert(sizeof(urma_context_t) == 104, "urma_context_t");
_Static_assert(sizeof(urma_jfce_t) == 24, "urma_jfce_t");
_Static_assert(sizeof(urma_jfc_cfg_t) == 32, "urma_jfc_cfg_t");
_Static_assert(sizeof(urma_jfc_t) == 248, "urma_jfc_t");
_Static_assert(sizeof(urma_jfs_cfg_t) == 40, "urma_jfs_cfg_t");
_Static_assert(sizeof(urma_jfs_t) == 256, "urma_jfs_t");
_Static_assert(sizeof(urma_jfr_cfg_t) == 48, "urma_jfr_cfg_t");
_Static_assert(sizeof(urma_jfr_t) == 264, "urma_jfr_t");
_Static_assert(sizeof(urma_jetty_cfg_t) == 80, "urma_jetty_cfg_t");
_Static_assert(sizeof(urma_jetty_t) == 344, "urma_jetty_t");
_Static_assert(sizeof(urma_rjfr_t) == 40, "urma_rjfr_t");
_Static_assert(sizeof(urma_rjetty_t) == 48, "urma_rjetty_t");
_Static_assert(sizeof(urma_target_jetty_t) == 64, "urma_target_jetty_t");
_Static_assert(sizeof(urma_seg_cfg_t) == 48, "urma_seg_cfg_t");
_Static_assert(sizeof(urma_seg_t) == 48, "urma_seg_t");
_Static_assert(sizeof(urma_target_seg_t) == 88, "urma_target_seg_t");
_Static_assert(sizeof(urma_sge_t) == 32, "urma_sge_t");
_Static_assert(sizeof(urma_rw_wr_t) == 48, "urma_rw_wr_t");
_Static_assert(sizeof(urma_send_wr_t) == 40, "urma_send_wr_t");
_Static_assert(sizeof(urma_jfs_wr_t) == 80, "urma_jfs_wr_t");
_Static_assert(sizeof(urma_jfr_wr_t) == 32, "urma_jfr_wr_t");
_Static_assert(sizeof(urma_cr_t) == 80, "urma_cr_t");
_Static_assert(sizeof(urma_async_event_t) == 32, "urma_async_event_t");
_Static_assert(sizeof(urma_token_id_t) == 40, "urma_token_id_t");
_Static_assert(sizeof(urma_eid_info_t) == 24, "urma_eid_info_t");
_Static_assert(offsetof(urma_device_cap_t, priority_info) == 172, "urma_device_cap_t.priority_info");
_Static_assert(offsetof(urma_device_cap_t, rm_order_cap) == 148, "urma_device_cap_t.rm_order_cap");
_Static_assert(offsetof(urma_device_attr_t, port_attr) == 324, "urma_device_attr_t.port_attr");
_Static_assert(offsetof(urma_jetty_t, handle) == 120, "urma_jetty_t.handle");
_Static_assert(offsetof(urma_jetty_cfg_t, shared) == 48, "urma_jetty_cfg_t.shared");
_Static_assert(offsetof(urma_jfr_cfg_t, token_value) == 32, "urma_jfr_cfg_t.token_value");
_Static_assert(offsetof(urma_cr_t, user_data) == 72, "urma_cr_t.user_data");
_Static_assert(offsetof(urma_jfs_wr_t, next) == 72, "urma_jfs_wr_t.next");
_Static_assert(offsetof(urma_seg_t, attr) == 40, "urma_seg_t.attr");
_Static_assert(offsetof(urma_target_seg_t, handle) == 80, "urma_target_seg_t.handle");
_Static_assert(offsetof(urma_token_id_t, flag) == 32, "urma_token_id_t.flag");

_Static_assert(sizeof(urma_jfc_opt_t) == 80 && sizeof(urma_jfs_opt_t) == 80 && sizeof(urma_jfr_opt_t) == 80, "urma_*_opt_t");
_Static_assert(offsetof(urma_jfc_t, urma_jfc_opt) == 168 && offsetof(urma_jfc_opt_t, is_actived) == 8, "urma_jfc_opt");
_Static_assert(offsetof(urma_jfs_t, urma_jfs_opt) == 176 && offsetof(urma_jfr_t, urma_jfr_opt) == 184, "urma_jfs_opt, urma_jfr_opt");
_Static_assert(offsetof(urma_jetty_t, urma_jetty_opt) == 224 && sizeof(urma_jetty_opt_t) == 120, "urma_jetty_opt");
_Static_assert(sizeof(urma_jetty_grp_cfg_t) == 88 && sizeof(urma_jetty_grp_t) == 280, "urma_jetty_grp_t");
_Static_assert(offsetof(urma_jetty_grp_t, jetty_cnt) == 120 && offsetof(urma_jetty_grp_t, handle) == 176, "urma_jetty_grp_t");
_Static_assert(sizeof(urma_jetty_attr_t) == 12 && sizeof(urma_jfr_attr_t) == 12 && sizeof(urma_jfs_attr_t) == 8, "attributes");
_Static_assert(sizeof(urma_notifier_t) == 24 && sizeof(urma_notify_t) == 24 && sizeof(urma_net_addr_t) == 48, "urma_notify_t");
