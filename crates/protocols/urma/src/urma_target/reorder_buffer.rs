//! The reorder buffer: payloads of packets that must wait, of all channels.

#[derive(Clone, Copy, Debug)]
struct HeldPacket {
    next: Option<u32>,
    offset: u32,
    len: u16,
}

/// Payloads that wait. A message holds the first one of its list.
#[derive(Debug)]
pub(crate) struct ReorderBuffer {
    mtu: usize,
    limit: usize,
    bytes: Vec<u8>,
    packets: Vec<HeldPacket>,
    free: Vec<u32>,
}

impl ReorderBuffer {
    pub(crate) const fn new(mtu: u16, limit: usize) -> Self {
        ReorderBuffer { mtu: mtu as usize, limit, bytes: Vec::new(), packets: Vec::new(), free: Vec::new() }
    }
    /// Packets held.
    pub(crate) fn len(&self) -> usize {
        self.packets.len() - self.free.len()
    }
    /// Keeps a payload in front of the list `head`; false without room.
    pub(crate) fn hold(&mut self, head: &mut Option<u32>, offset: u32, payload: &[u8]) -> bool {
        if payload.len() > self.mtu {
            return false;
        }
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.packets.len() < self.limit => {
                self.bytes.resize(self.bytes.len() + self.mtu, 0);
                self.packets.push(HeldPacket { next: None, offset: 0, len: 0 });
                (self.packets.len() - 1) as u32
            }
            None => return false,
        };
        let at = index as usize * self.mtu;
        self.bytes[at..at + payload.len()].copy_from_slice(payload);
        self.packets[index as usize] = HeldPacket { next: *head, offset, len: payload.len() as u16 };
        *head = Some(index);
        debug_assert!(self.len() <= self.limit, "more packets are held than there is room for");
        true
    }
    /// Takes the first packet of a list: offset and payload. The payload is valid until the next `hold`.
    pub(crate) fn take(&mut self, head: &mut Option<u32>) -> Option<(u32, &[u8])> {
        let index = (*head)?;
        let packet = self.packets[index as usize];
        *head = packet.next;
        debug_assert!(usize::from(packet.len) <= self.mtu && self.free.len() < self.packets.len());
        self.free.push(index);
        let at = index as usize * self.mtu;
        Some((packet.offset, &self.bytes[at..at + usize::from(packet.len)]))
    }
    /// How long a list is.
    pub(crate) fn list_len(&self, head: Option<u32>) -> u32 {
        let next = |index: &u32| self.packets[*index as usize].next;
        std::iter::successors(head, next).count() as u32
    }
    /// Frees a list; how long it was.
    pub(crate) fn drop_list(&mut self, head: &mut Option<u32>) -> u32 {
        let mut count = 0;
        while self.take(head).is_some() {
            count += 1;
        }
        debug_assert!(head.is_none(), "a list is dropped in part");
        count
    }
    /// Packets for which there is room.
    pub(crate) fn free(&self) -> usize {
        self.limit - self.len()
    }
    pub(crate) fn heap_bytes(&self) -> usize {
        self.bytes.capacity() + self.packets.capacity() * size_of::<HeldPacket>() + self.free.capacity() * 4
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reorder_buffer_is_bounded_and_freed() {
        let mut buffer = ReorderBuffer::new(4, 3);
        let (mut a, mut b) = (None, None);
        assert!(buffer.hold(&mut a, 0, &[1, 2]) && buffer.hold(&mut b, 9, &[3]) && buffer.hold(&mut a, 2, &[4]));
        assert!(!buffer.hold(&mut b, 1, &[5]));
        assert_eq!(buffer.take(&mut a), Some((2, &[4][..])));
        assert!(!buffer.hold(&mut b, 1, &[5; 5]), "longer than a packet");
        assert_eq!(buffer.take(&mut a), Some((0, &[1, 2][..])));
        assert_eq!(buffer.take(&mut a), None);
        assert_eq!(buffer.len(), 1);
        buffer.drop_list(&mut b);
        assert_eq!((buffer.len(), b), (0, None));
    }
}
