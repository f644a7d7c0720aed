//! Paired queue ends in one process, for the simulator and for tests: real rings, no descriptors.
//!
//! The functions panic when a limit is exceeded, or when there is no memory.
use crate::area::Area;
use crate::arena::Segment;
use crate::cq::{CqConsumer, CqProducer, CqSpec};
use crate::doorbell::{DoorbellDrain, Doorbells};
use crate::layout::ContextPage;
use crate::rq::{RqConsumer, RqProducer, RqSpec, SrqConsumer};
use crate::sq::{SqConsumer, SqProducer, SqSpec};
use std::cell::RefCell;
use std::sync::Arc;

/// Areas of up to this many bytes share a segment: a process may have 65,530 mappings, and simulated hosts have more queues.
const SHARED_MAX: usize = 16 << 10;
const SEGMENT: usize = 1 << 20;
/// Areas begin at multiples of a cache line, in bytes.
const ALIGN: usize = 64;

thread_local! {
    /// The segment that small areas of this thread come from, and its first free byte.
    static SMALL: RefCell<Option<(Arc<Segment>, usize)>> = const { RefCell::new(None) };
}

/// An area of `bytes` zero bytes in memory of this process. The memory of an area that ends is not used again.
pub fn area(bytes: usize) -> Area {
    if bytes > SHARED_MAX {
        return Area::new(&segment(bytes), 0, bytes).expect("inside");
    }
    SMALL.with_borrow_mut(|small| {
        let (shared, used) =
            small.take_if(|(_, used)| *used + bytes <= SEGMENT).unwrap_or_else(|| (segment(SEGMENT), 0));
        let area = Area::new(&shared, used, bytes).expect("inside");
        *small = Some((shared, (used + bytes).next_multiple_of(ALIGN)));
        area
    })
}

fn segment(bytes: usize) -> Arc<Segment> {
    Arc::new(Segment::anonymous(bytes).expect("memory for a queue"))
}
/// Both ends of a new send queue.
pub fn sq(max_wr: u32, max_sge: u32, max_inline: u32) -> (SqProducer, SqConsumer) {
    let spec = SqSpec::new(max_wr, max_sge, max_inline).expect("within limits");
    let area = area(spec.bytes());
    (SqProducer::new(area.clone(), spec).expect("fits"), SqConsumer::new(area, spec).expect("fits"))
}
/// Both ends of a new receive queue.
pub fn rq(max_wr: u32, max_sge: u32) -> (RqProducer, RqConsumer) {
    let spec = RqSpec::new(max_wr, max_sge).expect("within limits");
    let area = area(spec.bytes());
    (RqProducer::new(area.clone(), spec).expect("fits"), RqConsumer::new(area, spec).expect("fits"))
}
/// Both ends of a new shared receive queue.
pub fn srq(max_wr: u32, max_sge: u32) -> (RqProducer, SrqConsumer) {
    let spec = RqSpec::new(max_wr, max_sge).expect("within limits");
    let area = area(spec.bytes());
    (RqProducer::new(area.clone(), spec).expect("fits"), SrqConsumer::new(area, spec).expect("fits"))
}
/// Both ends of a new completion queue.
pub fn cq(cqe: u32) -> (CqProducer, CqConsumer) {
    let spec = CqSpec::new(cqe).expect("within limits");
    let area = area(spec.bytes());
    (CqProducer::new(area.clone(), spec).expect("fits"), CqConsumer::new(area, spec).expect("fits"))
}
/// The doorbells of a new context and one worker's end of them.
pub fn doorbells(worker: usize) -> (Doorbells, DoorbellDrain) {
    let area = area(size_of::<ContextPage>());
    (Doorbells::new(area.clone()).expect("fits"), DoorbellDrain::new(area, worker).expect("fits"))
}
