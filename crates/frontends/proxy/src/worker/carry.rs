//! What a batch becomes on each carrier: WRITEs before a message of a queue pair, or one message with all data inside for
//! the control channel.

use crate::pool::{WindowPool, WindowSlot};
use crate::rdma::Write;
use burst_relay::{Batch, Frame, FrameReader, HEADER_BYTES, Stream};

/// The WRITEs of a batch. Places of streams that are gone are left out: the peer ignores them.
///
/// # Errors
/// The ring of a stream is not registered: the peer must not be told of bytes that were not written.
pub(super) fn writes<'a>(
    batch: &Batch,
    pool: &WindowPool,
    stream: impl Fn(u32) -> Option<(&'a Stream, WindowSlot)>,
) -> std::io::Result<Vec<Write>> {
    let one = |place: &burst_relay::BatchPlace| {
        let (stream, slot) = stream(place.stream)?;
        let window = stream.peer_window_at(place.offset)?;
        let Some((local, lkey)) = pool.ring_address(slot, place.offset) else {
            return Some(Err(std::io::Error::other("a ring is not registered")));
        };
        let remote = window.address + place.offset % u64::from(window.len);
        Some(Ok(Write { local, remote, len: place.len, lkey, rkey: window.rkey }))
    };
    batch.places.iter().filter_map(one).collect()
}

/// A batch with the data of its places inside, for the control channel.
pub(super) fn whole<'a>(
    batch: &Batch,
    pool: &mut WindowPool,
    stream: impl Fn(u32) -> Option<(&'a Stream, WindowSlot)>,
) -> Vec<u8> {
    if batch.places.is_empty() {
        return batch.bytes.clone();
    }
    let mut bytes = batch.bytes[..HEADER_BYTES].to_vec();
    let mut frames = FrameReader::new(&batch.bytes[HEADER_BYTES..]);
    // Written by this process: it can be read.
    while let Ok(Some((id, frame))) = frames.next_frame() {
        let Frame::Placed { offset, len } = frame else {
            frame.write(id, &mut bytes);
            continue;
        };
        if let Some((_, slot)) = stream(id) {
            Frame::Data { offset, bytes: pool.ring(slot, offset, len as usize) }.write(id, &mut bytes);
        }
    }
    bytes
}
