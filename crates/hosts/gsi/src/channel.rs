//! Event channels of the connection manager: pipes of whole records. The records of one id can be taken out again, because
//! `rdma_destroy_id` and `rdma_migrate_id` must remove or move events that the program has not read.

use crate::entry::{CmEntry, CmSession};
use burst_control::cm::{CmEvent, CmEventKey, CmEventKind, CmId};
use burst_control::events::{BACKLOG_MAX, EventLost, EventPipe, EventSink};
use burst_ledger::{Account, Meter, Resource};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// Room of a channel's pipe in bytes, if the system grants it: 512 records.
const PIPE_BYTES: usize = 256 << 10;

/// Records of one write: PIPE_BUF.
pub(crate) const RECORDS_PER_WRITE: usize = 4096 / CmEvent::BYTES;

/// The record of an event in a channel.
type Record = [u8; CmEvent::BYTES];

/// An event that will be written to a channel at the end of the pass.
#[derive(Debug)]
pub(crate) struct PendingEvent {
    /// The id that the event counts for. If the id is destroyed before the event is written, the event is dropped.
    pub entry: Arc<CmEntry>,
    pub channel: Arc<CmChannel>,
    pub event: CmEvent,
}

/// The daemon's end of an event channel.
#[derive(Debug)]
pub struct CmChannel {
    pipe: EventPipe,
    /// The program's end, from which unread records are taken.
    read: OwnedFd,
    /// Admits one writer at a time, so that a migration keeps the order of records. Holds the length of this channel's backlog as
    /// it was last counted.
    gate: Mutex<usize>,
    unread: UnreadCmEvents,
    /// Whether the program has closed the channel.
    closed: AtomicBool,
    /// Whether a worker tries from time to time to write the backlog.
    is_retried: AtomicBool,
}

/// How many events wait in the backlogs of a program's channels, [`BACKLOG_MAX`] at most, and of all programs of its user, as
/// many as the user's share. A program that makes many channels, or a user who starts many programs, and reads none costs the
/// daemon no more memory than that.
#[derive(Clone, Debug, Default)]
pub(crate) struct UnreadCmEvents {
    of_program: Arc<AtomicUsize>,
    /// `None`: there are no users.
    of_user: Option<Meter>,
}

impl UnreadCmEvents {
    /// Those of a program of a user.
    pub(crate) fn of(account: &Account) -> UnreadCmEvents {
        let of_user = Some(Meter::new(account, Resource::UnreadEvent));
        UnreadCmEvents { of_program: Arc::default(), of_user }
    }
    pub(crate) fn of_program(&self) -> usize {
        self.of_program.load(Ordering::Relaxed)
    }
    fn has_room(&self) -> bool {
        self.of_program() < BACKLOG_MAX && self.of_user.as_ref().is_none_or(Meter::has_room)
    }
    fn change(&self, before: usize, after: usize) {
        // Relaxed: no other data depends on the sum. The addition may wrap for a moment.
        self.of_program.fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
        self.of_user.iter().for_each(|meter| meter.change(before as u64, after as u64));
    }
}

impl CmChannel {
    /// A channel of its own.
    ///
    /// # Errors
    /// When the process is out of descriptors.
    pub fn new() -> std::io::Result<CmChannel> {
        CmChannel::sharing(UnreadCmEvents::default())
    }

    /// A channel of a program, which shares the limit of the program's backlogs.
    ///
    /// # Errors
    /// As [`CmChannel::new`].
    pub fn of(session: &CmSession) -> std::io::Result<CmChannel> {
        CmChannel::sharing(session.unread.clone())
    }

    fn sharing(unread: UnreadCmEvents) -> std::io::Result<CmChannel> {
        // Editable: when this process has ended, the library opens the pipe again, so that it does not hang up for ever.
        let (pipe, read) = EventPipe::new_editable()?;
        // With a smaller pipe, records only go into the backlog earlier.
        let _ = rustix::pipe::fcntl_setpipe_size(&read, PIPE_BYTES);
        Ok(CmChannel {
            pipe,
            read,
            gate: Mutex::new(0),
            unread,
            closed: AtomicBool::new(false),
            is_retried: AtomicBool::new(false),
        })
    }

    /// A descriptor of the program's end, read-only. With a descriptor of the write end, a program could make that end
    /// blocking, and a worker that writes an event would stop.
    ///
    /// # Errors
    /// When the process is out of descriptors.
    pub fn end(&self) -> std::io::Result<OwnedFd> {
        burst_base::fault::check()?;
        self.read.try_clone()
    }

    fn enter(&self) -> MutexGuard<'_, usize> {
        self.gate.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Writes records, unless the backlog is full.
    fn put(&self, gate: &mut usize, records: &[u8]) -> Result<(), EventLost> {
        debug_assert!(
            records.len() <= 4096 && records.len().is_multiple_of(CmEvent::BYTES),
            "not whole records of one write"
        );
        if self.closed.load(Ordering::Relaxed) {
            return Ok(());
        }
        if self.pipe.has_backlog() && !self.unread.has_room() {
            return Err(EventLost);
        }
        let written = self.pipe.write(records);
        self.settle(gate);
        written
    }

    /// Closes the channel, because the program has closed it or has ended: drops the backlog and all later records. Without this,
    /// workers would retry for ever, because the pipe has a reader as long as this value lives.
    pub fn close(&self) {
        let mut gate = self.enter();
        self.closed.store(true, Ordering::Relaxed);
        self.pipe.drop_backlog();
        self.settle(&mut gate);
    }

    /// Brings the count of unread events up to date.
    fn settle(&self, gate: &mut usize) {
        let now = self.pipe.backlog_len();
        let before = std::mem::replace(gate, now);
        self.unread.change(before, now);
    }

    /// Writes whole records, at most PIPE_BUF bytes of them.
    ///
    /// # Errors
    /// [`EventLost`] when the program has not read for long.
    pub fn write(&self, records: &[u8]) -> Result<(), EventLost> {
        self.put(&mut self.enter(), records)
    }

    /// Writes at most [`RECORDS_PER_WRITE`] events, without those of destroyed ids. A thread that marks an id as destroyed and
    /// then takes its records out ([`CmChannel::take_records`]) has therefore taken all records that the id will ever have.
    pub(crate) fn write_events(&self, events: &[PendingEvent]) -> Result<(), EventLost> {
        assert!(events.len() <= RECORDS_PER_WRITE, "more events than one write takes");
        let mut records = [[0; CmEvent::BYTES]; RECORDS_PER_WRITE];
        let mut gate = self.enter();
        let mut count = 0;
        for (e, record) in events.iter().filter(|e| !e.entry.is_over()).zip(&mut records) {
            e.entry.note_record();
            e.event.write_to(record);
            count += 1;
        }
        if count == 0 { Ok(()) } else { self.put(&mut gate, records[..count].as_flattened()) }
    }

    /// Unread records of a destroyed id, of which the program has read `read`.
    pub fn unread_of(&self, entry: &CmEntry, read: u32) -> usize {
        let _gate = self.enter();
        entry.written().wrapping_sub(read) as usize
    }

    /// Whether the channel has a backlog.
    pub fn has_backlog(&self) -> bool {
        self.pipe.has_backlog()
    }

    /// Records in the pipe that the program has not read.
    pub fn unread(&self) -> usize {
        rustix::io::ioctl_fionread(&self.read).map_or(0, |bytes| bytes as usize / CmEvent::BYTES)
    }

    /// A worker is about to try the backlog from time to time. False: one does already.
    pub(crate) fn begin_retries(&self) -> bool {
        !self.is_retried.swap(true, Ordering::AcqRel)
    }

    /// Ends what [`CmChannel::begin_retries`] has begun, if there is no backlog. Whether it has ended.
    pub(crate) fn end_retries(&self) -> bool {
        if self.has_backlog() {
            return false;
        }
        // Pairs with the swap of a worker that has just left a backlog: either it begins, or its backlog is seen here.
        self.is_retried.swap(false, Ordering::AcqRel);
        !(self.has_backlog() && self.begin_retries())
    }

    /// Writes the backlog, as far as there is room.
    pub fn retry(&self) {
        let mut gate = self.enter();
        self.pipe.retry();
        self.settle(&mut gate);
    }

    /// Takes out up to `most` records that the program has not read and that are `wanted`, and returns them in order. The other
    /// records keep their order. The program must not read the channel during the call: it could find the pipe empty while
    /// records are being put back.
    pub fn take_records(&self, most: usize, wanted: impl Fn(&CmEventKey) -> bool) -> Vec<Record> {
        let mut gate = self.enter();
        let is_wanted = |record: &Record| CmEventKey::of(record).is_some_and(|whose| wanted(&whose));
        let mut taken = Vec::new();
        let mut take = |records: &[u8]| {
            let mut kept = Vec::new();
            for record in records.as_chunks().0 {
                if taken.len() < most && is_wanted(record) {
                    taken.push(*record);
                } else {
                    kept.extend_from_slice(record);
                }
            }
            (kept, taken.len() < most)
        };
        let (kept, mut more) = take(&self.all_in_pipe());
        self.pipe.put_back(kept.chunks(RECORDS_PER_WRITE * CmEvent::BYTES));
        if more {
            self.pipe.edit_backlog(|records| {
                if records.as_chunks().0.iter().any(is_wanted) {
                    (*records, more) = take(records);
                }
                more
            });
        }
        self.settle(&mut gate);
        taken
    }

    /// Reads all records from the pipe.
    fn all_in_pipe(&self) -> Vec<u8> {
        use rustix::io::ReadWriteFlags;
        // Only the records that are there now: a program that writes into its own pipe must not keep this loop running.
        let mut all = vec![0; self.unread() * CmEvent::BYTES];
        let mut read = 0;
        while read < all.len() {
            let mut slices = [std::io::IoSliceMut::new(&mut all[read..])];
            // No offset (-1), and RWF_NOWAIT whatever flags the program has set on its end.
            match rustix::io::preadv2(&self.read, &mut slices, u64::MAX, ReadWriteFlags::NOWAIT) {
                Ok(n) if n > 0 => read += n,
                _ => break,
            }
        }
        all.truncate(read);
        all
    }
}

impl CmEntry {
    /// Whether a record belongs to this id. A connect request belongs to the listener.
    pub fn is_of(&self, event: &CmEventKey) -> bool {
        self.id == if event.kind == CmEventKind::ConnectRequest { event.listener } else { event.id }
    }

    /// Events of this id that were written so far. As long as it is the same, [`CmEntry::move_records`] has nothing more to move.
    pub fn records(&self) -> u32 {
        self.written()
    }

    /// Later events of the id go to another channel. A worker may write some of the present pass to the former one.
    pub fn set_channel(&self, to: &Arc<CmChannel>) {
        *self.channel.lock().unwrap_or_else(|e| e.into_inner()) = to.clone();
    }

    /// Moves the unread records of the id from its former channel to another one, behind those that are there. Returns the ids of
    /// the connect requests that have moved, and the number of records that were lost. It looks at all records of the former
    /// channel, so no worker should wait for it.
    pub fn move_records(&self, from: &CmChannel, to: &CmChannel) -> (Vec<CmId>, u64) {
        debug_assert!(!std::ptr::eq(from, to), "records move to where they are");
        let (mut requests, mut lost) = (Vec::new(), 0);
        for record in from.take_records(usize::MAX, |e| self.is_of(e)) {
            lost += u64::from(to.write(&record).is_err());
            let event = CmEvent::from_bytes(&record);
            requests.extend(event.filter(|e| e.kind == CmEventKind::ConnectRequest).map(|e| e.id));
        }
        (requests, lost)
    }
}

impl Drop for CmChannel {
    fn drop(&mut self) {
        let counted = *self.enter();
        self.unread.change(counted, 0);
    }
}

impl AsFd for CmChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.read.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burst_ledger::{AccountId, Capacities, Ledger, Policy};

    fn read_one(channel: &CmChannel) -> Option<CmEvent> {
        let mut record = [0; CmEvent::BYTES];
        let mut slices = [std::io::IoSliceMut::new(&mut record)];
        let flags = rustix::io::ReadWriteFlags::NOWAIT;
        match rustix::io::preadv2(&channel.read, &mut slices, u64::MAX, flags) {
            Ok(CmEvent::BYTES) => CmEvent::from_bytes(&record),
            _ => None,
        }
    }

    #[test]
    fn an_id_is_read_when_every_record_of_it_was() {
        use burst_base::verbs::QpType;
        use burst_control::cm::PortSpace;
        let channel = Arc::new(CmChannel::new().expect("channel"));
        let session = Arc::new(CmSession::default());
        let entry = |id| Arc::new(CmEntry::new(session.clone(), id, PortSpace::Tcp, QpType::Rc, channel.clone()));
        let (one, other) = (entry(1), entry(2));
        let event = |entry: &Arc<CmEntry>| PendingEvent {
            entry: entry.clone(),
            channel: channel.clone(),
            event: CmEvent::new(CmEventKind::Established, entry.id),
        };
        assert_eq!(channel.unread_of(&one, 0), 0, "nothing was written");
        channel.write_events(&[event(&one), event(&other), event(&one)]).expect("kept");
        assert_eq!([0, 1, 2].map(|read| channel.unread_of(&one, read)), [2, 1, 0]);
        one.end();
        channel.write_events(&[event(&one), event(&other)]).expect("kept");
        assert_eq!(channel.unread_of(&one, 2), 0, "an id that is over gets no more");
        assert_eq!((channel.unread_of(&other, 2), channel.unread()), (0, 4));
    }

    #[test]
    fn a_migrated_id_takes_its_records_along_and_the_order_stays() {
        let channel = CmChannel::new().expect("channel");
        let event = |id: u32, status: i32| CmEvent { status, ..CmEvent::new(CmEventKind::Established, id) };
        // More than the pipe holds, so that there is a backlog.
        let total = 2_000;
        for n in 0..total {
            channel.write(&event(n % 3, n as i32).to_bytes()).expect("kept");
        }
        assert!(channel.has_backlog());
        let taken = channel.take_records(usize::MAX, |e| e.id == 1);
        let expected: Vec<i32> = (0..total).filter(|n| n % 3 == 1).map(|n| n as i32).collect();
        let statuses: Vec<i32> = taken.iter().filter_map(CmEvent::from_bytes).map(|e| e.status).collect();
        assert_eq!(statuses, expected);
        let mut left = Vec::new();
        while let Some(event) = read_one(&channel) {
            left.push(event.status);
            channel.retry();
        }
        let expected: Vec<i32> = (0..total).filter(|n| n % 3 != 1).map(|n| n as i32).collect();
        assert_eq!(left, expected);
    }

    #[test]
    fn events_that_are_written_while_an_id_moves_are_behind_those_that_moved() {
        use burst_base::verbs::QpType;
        use burst_control::cm::PortSpace;
        let [from, to] = [(); 2].map(|()| Arc::new(CmChannel::new().expect("channel")));
        let session = Arc::new(CmSession::default());
        let entry = |id| CmEntry::new(session.clone(), id, PortSpace::Tcp, QpType::Rc, from.clone());
        let [one, other] = [1, 2].map(|id| Arc::new(entry(id)));
        let write = |channel: &CmChannel, entry: &Arc<CmEntry>, status| {
            let event = CmEvent { status, ..CmEvent::new(CmEventKind::Established, entry.id) };
            let event = PendingEvent { entry: entry.clone(), channel: from.clone(), event };
            channel.write_events(&[event]).expect("kept");
        };
        (0..1000).for_each(|n| write(&from, if n % 2 == 0 { &one } else { &other }, n));
        let records = one.records();
        assert_eq!(one.move_records(&from, &to), (Vec::new(), 0));
        assert_eq!(one.records(), records, "nothing is left");
        // An event of the pass in which the channel changed, and a later one.
        write(&from, &one, 1000);
        one.set_channel(&to);
        assert_ne!(one.records(), records);
        one.move_records(&from, &to);
        write(&one.channel(), &one, 1001);
        let all = |channel: &CmChannel| {
            let mut read = Vec::new();
            while let Some(event) = read_one(channel) {
                read.push(event.status);
                channel.retry();
            }
            read
        };
        let moved: Vec<i32> = (0..=1000).step_by(2).chain([1001]).collect();
        assert_eq!(all(&to), moved);
        assert_eq!(all(&from), (1..1000).step_by(2).collect::<Vec<_>>());
    }

    /// Ten thousand ids with unread events may end one after the other.
    #[test]
    fn one_record_is_taken_without_moving_the_others() {
        let channel = CmChannel::new().expect("channel");
        for id in 0..10_000 {
            channel.write(&CmEvent::new(CmEventKind::AddrResolved, id).to_bytes()).expect("kept");
        }
        let backlog = channel.pipe.backlog_len();
        assert!(backlog > 9_000);
        assert_eq!(channel.take_records(1, |e| e.id == 7).len(), 1);
        assert_eq!(channel.pipe.backlog_len(), backlog, "it was in the pipe");
        assert_eq!(channel.take_records(1, |e| e.id == 9_990).len(), 1);
        assert_eq!(channel.pipe.backlog_len(), backlog - 1, "it was in the backlog");
        let mut left = Vec::new();
        while let Some(event) = read_one(&channel) {
            left.push(event.id);
            channel.retry();
        }
        let expected: Vec<CmId> = (0..10_000).filter(|id| ![7, 9_990].contains(id)).collect();
        assert_eq!(left, expected);
    }

    #[test]
    fn a_program_cannot_make_the_writer_wait() {
        use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
        let channel = CmChannel::new().expect("channel");
        let end = channel.end().expect("a descriptor");
        let flags = fcntl_getfl(&end).expect("flags");
        assert_eq!(flags & OFlags::RWMODE, OFlags::RDONLY, "it could write events, and set the mode of the other end");
        fcntl_setfl(&end, flags - OFlags::NONBLOCK).expect("its own");
        let record = CmEvent::new(CmEventKind::Established, 1).to_bytes();
        for _ in 0..2_000 {
            channel.write(&record).expect("kept");
        }
        assert!(channel.has_backlog());
    }

    /// Records are taken out while another thread continues to write.
    #[test]
    fn taking_records_out_has_an_end() {
        let channel = CmChannel::new().expect("channel");
        let record = CmEvent::new(CmEventKind::Established, 1).to_bytes();
        channel.write(&record).expect("kept");
        let more = || channel.pipe.write(&record).expect("kept");
        let taken = channel.take_records(usize::MAX, |_| {
            more();
            true
        });
        assert!(taken.len() <= 8, "{}", taken.len());
    }

    #[test]
    fn programs_of_one_user_share_the_limit_of_the_backlog() {
        let all = Policy { share_percent: 100, reserve_percent: 0 };
        let ledger = Ledger::new(Capacities::new(|_| BACKLOG_MAX as u64), all);
        let of_user = ledger.account(AccountId::User(1001), false);
        let sessions = [0; 3].map(|_| CmSession::of(crate::entry::CmProgram::default(), &of_user, Arc::default()));
        let channels = [0, 1, 2].map(|n| CmChannel::of(&sessions[n]).expect("channel"));
        let record = CmEvent::new(CmEventKind::Established, 1).to_bytes();
        let lost = |channel: &CmChannel| (0..30_000).filter(|_| channel.write(&record) == Err(EventLost)).count();
        assert_eq!((lost(&channels[0]), lost(&channels[1])), (0, 0));
        assert!(lost(&channels[2]) > 20_000, "a third program of the user reads no events, either");
        assert_eq!(of_user.used(Resource::UnreadEvent), BACKLOG_MAX as u64);
        channels.iter().for_each(CmChannel::close);
        assert_eq!(of_user.used(Resource::UnreadEvent), 0);
    }

    #[test]
    fn roots_programs_that_read_nothing_leave_other_users_their_part() {
        let ledger = Ledger::new(Capacities::new(|_| 1000), Policy { share_percent: 50, reserve_percent: 10 });
        let [root, other] = [0, 1001].map(|uid| ledger.account(AccountId::User(uid), uid == 0));
        let record = CmEvent::new(CmEventKind::Established, 1).to_bytes();
        let channel = |account| {
            CmChannel::of(&CmSession::of(crate::entry::CmProgram::default(), account, Arc::default())).expect("channel")
        };
        let fill = |channel: &CmChannel| (0..30_000).filter(|_| channel.write(&record).is_ok()).count();
        let channels = [0; 4].map(|_| channel(&root));
        channels.iter().for_each(|channel| assert!(fill(channel) > 0));
        // Each further channel finds its pipe full by one event, which it keeps.
        assert_eq!(root.used(Resource::UnreadEvent), 503);
        let of_other = channel(&other);
        fill(&of_other);
        assert_eq!(other.used(Resource::UnreadEvent), (1000 - 100 - 503) / 2);
    }

    #[test]
    fn channels_of_a_program_share_the_limit_of_the_backlog() {
        let session = CmSession::default();
        let channels = [0; 3].map(|_| CmChannel::of(&session).expect("channel"));
        let record = CmEvent::new(CmEventKind::Established, 1).to_bytes();
        let lost = |channel: &CmChannel| (0..30_000).filter(|_| channel.write(&record) == Err(EventLost)).count();
        assert_eq!((lost(&channels[0]), lost(&channels[1])), (0, 0));
        assert!(lost(&channels[2]) > 20_000, "the third is not read, either");
        let sum = || session.backlog_len();
        assert_eq!(sum(), BACKLOG_MAX);
        assert!(CmChannel::new().expect("channel").write(&record).is_ok(), "other programs have a limit of their own");
        // Reading makes room.
        while read_one(&channels[0]).is_some() {
            channels[0].retry();
        }
        assert!(sum() < BACKLOG_MAX - 25_000 && channels[2].write(&record).is_ok());
        // After the program has gone, channels that workers still hold have no backlog.
        channels.iter().for_each(CmChannel::close);
        assert_eq!((sum(), channels.iter().any(CmChannel::has_backlog)), (0, false));
        assert_eq!((lost(&channels[1]), sum()), (0, 0));
    }
}
