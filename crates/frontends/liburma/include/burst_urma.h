/* Loads and stores of remote segments: functions of Burst's liburma.so.0 beside those of UMDK's interface (docs/urma-programs.md). */
#ifndef BURST_URMA_H
#define BURST_URMA_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct urma_target_seg;
struct burst_urma_aperture;

/*
 * Explicit accesses: one packet asks, one answers, without a work request and without a channel. They return when the answer is
 * there: 0, or an errno: EINVAL (length, alignment, operation), EPERM (outside of the segment), EAGAIN (64 under way to this
 * peer), EACCES (the peer refuses: token, range or right), EIO (the peer could not), ETIMEDOUT (no answer: a store or an atomic
 * may have been executed or not; never twice).
 */

/* Reads 1 to 64 bytes at va of an imported segment. */
int burst_urma_load(struct urma_target_seg *seg, uint64_t va, void *to, uint32_t len);
/* Writes 1 to 64 bytes. */
int burst_urma_store(struct urma_target_seg *seg, uint64_t va, const void *from, uint32_t len);
/* Changes eight aligned bytes: opcode is one of UMDK's, URMA_OPC_CAS (operand: compared with, swap: the new value), URMA_OPC_SWAP or
 * URMA_OPC_FADD to URMA_OPC_FXOR. old may be null. */
int burst_urma_atomic(struct urma_target_seg *seg, uint64_t va, uint32_t opcode, uint64_t operand, uint64_t swap, uint64_t *old);

/*
 * An aperture: memory of this process that shows a part of an imported segment. A first load of a page fetches it; stores stay
 * here until they are flushed. See docs/urma-programs.md for what other hosts see, and when.
 */
#define BURST_URMA_WRITE 1u

/* Maps len bytes at va. flags: BURST_URMA_WRITE or 0. Null with errno if it is refused. The segment must not be unimported before the
 * aperture is unmapped. */
struct burst_urma_aperture *burst_urma_map(struct urma_target_seg *seg, uint64_t va, uint64_t len, uint32_t flags);
/* Where the first byte is. */
void *burst_urma_address(struct burst_urma_aperture *aperture);
/* Writes the bytes that were changed in a range back to the segment; returns when they are there: 0 or an errno. */
int burst_urma_flush(struct burst_urma_aperture *aperture, uint64_t offset, uint64_t len);
/* Flushes a range and forgets it: the next load of each page fetches it anew. */
int burst_urma_invalidate(struct burst_urma_aperture *aperture, uint64_t offset, uint64_t len);
/* Flushes everything and ends the mapping, which is gone whatever is returned. No thread may use it any more. */
int burst_urma_unmap(struct burst_urma_aperture *aperture);

#ifdef __cplusplus
}
#endif

#endif
