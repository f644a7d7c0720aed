/* Prints sizes and offsets of UMDK's structures. tests/layout.sh compares them with src/abi.rs. */
#include <stddef.h>
#include <stdio.h>
#include "urma_types.h"
#define S(t) printf("%s %zu\n", #t, sizeof(t))
#define O(t, f) printf("%s.%s %zu\n", #t, #f, offsetof(t, f))
int main(void)
{
    S(urma_jetty_id_t); S(urma_device_t); S(urma_device_cap_t); S(urma_device_attr_t); S(urma_context_t); S(urma_jfce_t);
    S(urma_jfc_cfg_t); S(urma_jfc_t); S(urma_jfs_cfg_t); S(urma_jfs_t); S(urma_jfr_cfg_t); S(urma_jfr_t); S(urma_jetty_cfg_t);
    S(urma_jetty_t); S(urma_rjfr_t); S(urma_rjetty_t); S(urma_target_jetty_t); S(urma_seg_cfg_t); S(urma_seg_t);
    S(urma_target_seg_t); S(urma_sge_t); S(urma_rw_wr_t); S(urma_send_wr_t); S(urma_jfs_wr_t); S(urma_jfr_wr_t); S(urma_cr_t);
    S(urma_async_event_t); S(urma_token_id_t); S(urma_eid_info_t);
    O(urma_device_cap_t, priority_info); O(urma_device_cap_t, rm_order_cap); O(urma_device_attr_t, port_attr);
    O(urma_jetty_t, handle); O(urma_jetty_cfg_t, shared); O(urma_jfr_cfg_t, token_value); O(urma_cr_t, user_data);
    O(urma_jfs_wr_t, next); O(urma_seg_t, attr); O(urma_target_seg_t, handle); O(urma_token_id_t, flag);
    return 0;
}
