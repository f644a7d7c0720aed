//! What the node reports, sorted by who wants to know: completions by event channel, asynchronous events by context.
//!
//! Channels and contexts have numbers that are never used again, so that news of an object that was deleted reach nobody else.
//! A descriptor is readable while its queue holds something. It is only read and written under the lock of the host, and it is
//! taken out of here before it is closed: nobody writes into a descriptor that the program got since.

use crate::descriptors::{ring, sleep};
use burst_base::{Nanos, Reason};
use burst_urma::{UrmaEffects, UrmaEvent};
use std::collections::{HashMap, VecDeque};

/// Classes of objects, numbered as the events that name them.
pub const CLASS_JFC: u32 = 0;
pub const CLASS_JFS: u32 = 1;
pub const CLASS_JFR: u32 = 2;
pub const CLASS_JETTY: u32 = 4;
/// Event: a JFR has fewer receives than its limit.
pub const JFR_LIMIT: u32 = 3;

/// A queue with the eventfd that tells of it.
struct News<T> {
    fd: i32,
    queue: VecDeque<T>,
}

impl<T> News<T> {
    fn new(fd: i32) -> News<T> {
        News { fd, queue: VecDeque::new() }
    }
    fn push(&mut self, item: T) {
        self.queue.push_back(item);
        ring(self.fd);
    }
    fn pop(&mut self) -> Option<T> {
        let next = self.queue.pop_front();
        self.settle();
        next
    }
    fn retain(&mut self, keep: impl FnMut(&T) -> bool) {
        let before = self.queue.len();
        self.queue.retain(keep);
        if self.queue.len() < before {
            self.settle();
        }
    }
    /// Nothing is left: the descriptor is not readable any more.
    fn settle(&self) {
        // The program may have made it a descriptor that blocks; nobody else reads it between the two calls.
        if self.queue.is_empty() && sleep(&[self.fd], Nanos(0)) {
            let mut count = [0u8; 8];
            // SAFETY: the buffer has eight bytes.
            unsafe { libc::read(self.fd, count.as_mut_ptr().cast(), count.len()) };
        }
    }
}

/// An object of the interface with its owner.
struct OwnedObject {
    pointer: u64,
    context: u64,
}

/// An asynchronous event: its number, and the object that it names.
type AsyncEvent = (u32, u64);

/// What the node reports.
#[derive(Default)]
pub struct Reports {
    /// Queues that are armed, and the number of their event channel.
    armed: HashMap<u32, u64>,
    channels: HashMap<u64, News<u32>>,
    contexts: HashMap<u64, News<AsyncEvent>>,
    /// The program's objects by class and number in the node.
    objects: HashMap<(u32, u32), OwnedObject>,
    last_number: u64,
    pub counts: HashMap<Reason, u64>,
}

impl UrmaEffects for Reports {
    fn count(&mut self, reason: Reason) {
        *self.counts.entry(reason).or_default() += 1;
    }
    fn completion(&mut self, jfc: u32) {
        if self.armed.is_empty() {
            return;
        }
        if let Some(channel) = self.armed.remove(&jfc).and_then(|number| self.channels.get_mut(&number)) {
            channel.push(jfc);
        }
    }
    fn event(&mut self, event: UrmaEvent) {
        let (kind, class, id) = match event {
            UrmaEvent::JfcError(id) => (CLASS_JFC, CLASS_JFC, id),
            UrmaEvent::JfrError(id) => (CLASS_JFR, CLASS_JFR, id),
            UrmaEvent::JfrLimit(id) => (JFR_LIMIT, CLASS_JFR, id),
            UrmaEvent::JettyError(id) => {
                let class = self.sender_class(id);
                (class, class, id)
            }
        };
        let Some(object) = self.objects.get(&(class, id)) else { return };
        if let Some(context) = self.contexts.get_mut(&object.context) {
            context.push((kind, object.pointer));
        }
    }
}

impl Reports {
    fn number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }
    /// A context whose events a descriptor tells of: its number.
    pub fn open_context(&mut self, fd: i32) -> u64 {
        let number = self.number();
        self.contexts.insert(number, News::new(fd));
        number
    }
    /// Its descriptor is not used any more.
    pub fn close_context(&mut self, number: u64) {
        self.contexts.remove(&number);
    }
    /// The oldest event of a context.
    pub fn next_event(&mut self, context: u64) -> Option<AsyncEvent> {
        self.contexts.get_mut(&context)?.pop()
    }
    /// An event channel with its descriptor: its number.
    pub fn open_channel(&mut self, fd: i32) -> u64 {
        let number = self.number();
        self.channels.insert(number, News::new(fd));
        number
    }
    /// Its descriptor is not used any more.
    pub fn close_channel(&mut self, number: u64) {
        self.channels.remove(&number);
    }
    /// The next completion queue of an event channel that has news.
    pub fn next_queue(&mut self, channel: u64) -> Option<u32> {
        self.channels.get_mut(&channel)?.pop()
    }
    /// The next record of a queue is reported to an event channel.
    pub fn arm(&mut self, jfc: u32, channel: u64) {
        self.armed.insert(jfc, channel);
    }
    /// An object has got a number in the node.
    pub fn add_object(&mut self, class: u32, id: u32, pointer: u64, context: u64) {
        self.objects.insert((class, id), OwnedObject { pointer, context });
    }
    /// An object is deleted: its number and its address may be another one's next.
    pub fn remove_object(&mut self, class: u32, id: u32) {
        let Some(object) = self.objects.remove(&(class, id)) else { return };
        if let Some(context) = self.contexts.get_mut(&object.context) {
            context.retain(|(_, pointer)| *pointer != object.pointer);
        }
        if class == CLASS_JFC {
            self.armed.remove(&id);
            self.channels.values_mut().for_each(|channel| channel.retain(|queue| *queue != id));
        }
    }
    /// The program's object; 0 if there is none.
    pub fn pointer_of(&self, class: u32, id: u32) -> u64 {
        self.objects.get(&(class, id)).map_or(0, |object| object.pointer)
    }
    /// Whether a number among those that send is a Jetty's or a JFS's.
    pub fn sender_class(&self, id: u32) -> u32 {
        if self.objects.contains_key(&(CLASS_JETTY, id)) { CLASS_JETTY } else { CLASS_JFS }
    }
    /// All objects of a class.
    pub fn objects_of(&self, class: u32) -> impl Iterator<Item = u64> {
        self.objects.iter().filter(move |(key, _)| key.0 == class).map(|(_, object)| object.pointer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn eventfd() -> i32 {
        // SAFETY: makes a descriptor; no memory is passed.
        unsafe { libc::eventfd(0, libc::EFD_NONBLOCK) }
    }
    fn is_readable(fd: i32) -> bool {
        sleep(&[fd], Nanos(0))
    }

    #[test]
    fn nothing_is_written_into_the_descriptor_of_a_context_or_channel_that_is_gone() {
        let fds = [eventfd(), eventfd(), eventfd()];
        let mut reports = Reports::default();
        let (first, second) = (reports.open_context(fds[0]), reports.open_context(fds[1]));
        let channel = reports.open_channel(fds[2]);
        reports.add_object(CLASS_JETTY, 1024, 0xa, first);
        reports.add_object(CLASS_JFR, 1024, 0xb, second);
        reports.arm(7, channel);
        reports.close_context(second);
        reports.close_channel(channel);
        assert_ne!(reports.open_channel(fds[2]), channel, "numbers are never used again");
        reports.event(UrmaEvent::JfrLimit(1024));
        reports.completion(7);
        assert!(!is_readable(fds[1]) && !is_readable(fds[2]), "the program may have got the number for a file");
        reports.event(UrmaEvent::JettyError(1024));
        reports.event(UrmaEvent::JettyError(1025));
        assert!(is_readable(fds[0]));
        assert_eq!((reports.next_event(first), reports.next_event(first)), (Some((4, 0xa)), None));
        assert!(!is_readable(fds[0]));
        for fd in fds {
            // SAFETY: a descriptor of this test.
            unsafe { libc::close(fd) };
        }
    }

    #[test]
    fn jfrs_and_jetties_of_one_number_are_two_objects() {
        let fd = eventfd();
        let mut reports = Reports::default();
        let context = reports.open_context(fd);
        reports.add_object(CLASS_JFS, 1024, 0xa, context);
        reports.add_object(CLASS_JFR, 1024, 0xb, context);
        reports.event(UrmaEvent::JettyError(1024));
        reports.event(UrmaEvent::JfrLimit(1024));
        assert_eq!((reports.next_event(context), reports.next_event(context)), (Some((1, 0xa)), Some((3, 0xb))));
        reports.event(UrmaEvent::JfrError(1024));
        reports.remove_object(CLASS_JFR, 1024);
        assert_eq!((reports.pointer_of(CLASS_JFR, 1024), reports.pointer_of(CLASS_JFS, 1024)), (0, 0xa));
        assert_eq!(reports.next_event(context), None);
        assert!(!is_readable(fd));
        // SAFETY: the descriptor of this test.
        unsafe { libc::close(fd) };
    }
}
