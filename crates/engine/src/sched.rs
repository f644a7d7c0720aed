//! Whose turn it is: contexts first, queue pairs second.
//!
//! Each context has a queue of ready queue pairs; contexts with a non-empty queue stand in line themselves. One turn
//! goes to the first queue pair of the first context; then both go to the back. So a process with a thousand queue
//! pairs gets no more than one with a single queue pair (SRNIC's ready queues, one level higher).

use std::collections::VecDeque;

/// The ready queues. Handles are table indices of the worker.
#[derive(Debug, Default)]
pub struct Scheduler {
    ready: Vec<VecDeque<u32>>,
    line: VecDeque<u32>,
    in_line: Vec<bool>,
}

impl Scheduler {
    /// Makes room for context `context`.
    pub fn add_context(&mut self, context: u32) {
        let len = context as usize + 1;
        if self.ready.len() < len {
            self.ready.resize_with(len, VecDeque::new);
            self.in_line.resize(len, false);
        }
    }
    /// Forgets what context `context` had ready.
    pub fn remove_context(&mut self, context: u32) {
        self.ready[context as usize].clear();
    }
    /// Queue pair `qp` of `context` is ready. The caller sees to it that it is queued once.
    pub fn push(&mut self, context: u32, qp: u32) {
        self.ready[context as usize].push_back(qp);
        if !self.in_line[context as usize] {
            self.in_line[context as usize] = true;
            self.line.push_back(context);
        }
    }
    /// The next turn.
    pub fn take_turn(&mut self) -> Option<u32> {
        while let Some(context) = self.line.pop_front() {
            let queue = &mut self.ready[context as usize];
            let qp = queue.pop_front();
            if queue.is_empty() {
                self.in_line[context as usize] = false;
            } else {
                self.line.push_back(context);
            }
            if qp.is_some() {
                return qp;
            }
        }
        None
    }
    /// Whether nobody is ready.
    pub fn is_empty(&self) -> bool {
        self.line.is_empty()
    }
    /// Takes a queue pair out wherever it stands (when it is destroyed).
    pub fn remove(&mut self, context: u32, qp: u32) {
        self.ready[context as usize].retain(|q| *q != qp);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contexts_alternate_whatever_their_size() {
        let mut s = Scheduler::default();
        s.add_context(0);
        s.add_context(1);
        for qp in 0..4 {
            s.push(0, qp);
        }
        s.push(1, 100);
        s.push(1, 101);
        let order: Vec<_> = std::iter::from_fn(|| s.take_turn()).collect();
        assert_eq!(order, [0, 100, 1, 101, 2, 3]);
        assert!(s.is_empty());
    }

    #[test]
    fn removed_are_skipped() {
        let mut s = Scheduler::default();
        s.add_context(3);
        s.push(3, 7);
        s.push(3, 8);
        s.remove(3, 7);
        assert_eq!(s.take_turn(), Some(8));
        s.push(3, 9);
        s.remove_context(3);
        assert_eq!(s.take_turn(), None);
        s.push(3, 10);
        assert_eq!(s.take_turn(), Some(10));
    }
}
