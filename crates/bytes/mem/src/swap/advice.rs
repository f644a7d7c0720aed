//! What a program has said about its mappings by `madvise` and `mlock`, so that an exchanged mapping keeps it.
//!
//! The kernel tells these flags in `/proc/self/smaps` only, which counts every page of every mapping. So the first page of the
//! range is given the flag: if the mapping had it, it stays one mapping, and if not, the page becomes a mapping of its own, which
//! `PROCMAP_QUERY` shows. The flag is taken back then. A mapping of one page tells nothing: it counts as one without flags, or
//! with those that it had when it was swapped in ([`KeptAdvice`]).
//!
//! Kept are `MADV_DONTFORK`, `MADV_DONTDUMP`, `MADV_HUGEPAGE`, `MADV_NOHUGEPAGE`, `MADV_MERGEABLE` and `mlock`. Shared memory
//! cannot have `MADV_MERGEABLE`, so an exchanged mapping is without it until its pages are private again; the kernel merges no
//! page that an adapter has pinned either. Nor can it have `MADV_WIPEONFORK`: such memory stays private ([`wipes_on_fork`]).

use super::kernel;
use super::pool::PAGE;
use super::vma::{Maps, Vma};
use rustix::mm::Advice;
use std::collections::BTreeMap;

/// The flags of a mapping.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AdviceFlags {
    /// A forked child does not have the mapping.
    pub(crate) dont_fork: bool,
    dont_dump: bool,
    /// `Some(true)`: huge pages are wanted, `Some(false)`: they are not.
    huge: Option<bool>,
    /// The kernel may merge pages of equal contents.
    mergeable: bool,
    locked: bool,
}

impl AdviceFlags {
    /// The flags of the part of `vma` from `at` on, which is about to be exchanged.
    /// `has_locked`: whether the process has locked memory at all. `None`: the mapping is one page.
    fn of(maps: &Maps, vma: &Vma, at: usize, has_locked: bool) -> Option<AdviceFlags> {
        let mut flags = AdviceFlags::default();
        let probe = Probe::new(maps, vma, at)?;
        flags.dont_fork = probe.had(Advice::LinuxDontFork, Advice::LinuxDoFork);
        flags.dont_dump = probe.had(Advice::LinuxDontDump, Advice::LinuxDoDump);
        // Of a file's or of huge pages the kernel accepts the advice, and ignores it.
        flags.mergeable = vma.inode == 0 && probe.had(Advice::LinuxMergeable, Advice::LinuxUnmergeable);
        if has_locked {
            kernel::unlock(at, vma.page);
            flags.locked = !probe.is_joined();
            if flags.locked {
                kernel::lock(at, vma.page, true);
            }
        }
        if vma.page == PAGE {
            // Last: no advice takes these back, so the page may stay a mapping of its own until it is exchanged.
            let is = |advice, huge| probe.has(advice).then_some(huge);
            flags.huge = is(Advice::LinuxHugepage, true).or_else(|| is(Advice::LinuxNoHugepage, false));
        }
        Some(flags)
    }
    /// Gives the flags to a mapping. A failure (too many mappings, too little memory to lock) leaves it without.
    pub(crate) fn apply(self, lo: usize, hi: usize) {
        let give = |advice| _ = kernel::advise(lo, hi - lo, advice);
        if self.dont_fork {
            give(Advice::LinuxDontFork);
        }
        self.apply_inherited(lo, hi);
        if self.locked {
            kernel::lock(lo, hi - lo, false);
        }
    }
    /// As [`AdviceFlags::apply`], for a mapping whose pages must not be touched.
    pub(crate) fn apply_untouched(self, lo: usize, hi: usize) {
        self.apply_inherited(lo, hi);
        if self.locked {
            kernel::lock(lo, hi - lo, true);
        }
    }
    /// Those flags that a forked child inherits.
    pub(crate) fn apply_inherited(self, lo: usize, hi: usize) {
        let give = |advice| _ = kernel::advise(lo, hi - lo, advice);
        if self.dont_dump {
            give(Advice::LinuxDontDump);
        }
        match self.huge {
            Some(true) => give(Advice::LinuxHugepage),
            Some(false) => give(Advice::LinuxNoHugepage),
            None => {}
        }
        // Shared memory ignores it.
        if self.mergeable {
            give(Advice::LinuxMergeable);
        }
    }
}

/// Whether a forked child finds zeros in the part of `vma` from `at` on (`MADV_WIPEONFORK`). Of a mapping of one page it is not
/// known, and the answer is no.
pub(crate) fn wipes_on_fork(maps: &Maps, vma: &Vma, at: usize) -> bool {
    let is_anonymous = !vma.shared && vma.inode == 0;
    is_anonymous
        && Probe::new(maps, vma, at).is_some_and(|probe| probe.had(Advice::LinuxWipeOnFork, Advice::LinuxKeepOnFork))
}

/// The flags that swapped ranges had when they were swapped in, if they had any.
#[derive(Debug)]
pub(crate) struct KeptAdvice(BTreeMap<usize, (usize, AdviceFlags)>);

impl KeptAdvice {
    pub(crate) const fn new() -> KeptAdvice {
        KeptAdvice(BTreeMap::new())
    }
    /// The flags of the part of `vma` from `at` on, which is about to be exchanged. `has_locked`: whether the process has locked
    /// memory at all.
    pub(crate) fn flags_of(&self, maps: &Maps, vma: &Vma, at: usize, has_locked: bool) -> AdviceFlags {
        // Kept at the address at which the page was swapped in.
        let key = if vma.is_pools() { vma.part_at(at).offset } else { at };
        let before =
            || self.0.range(..=key).next_back().filter(|(_, (end, _))| key < *end).map(|(_, (_, flags))| *flags);
        let Some(now) = AdviceFlags::of(maps, vma, at, has_locked) else { return before().unwrap_or_default() };
        let mergeable = now.mergeable || vma.is_pools() && before().is_some_and(|flags| flags.mergeable);
        AdviceFlags { mergeable, ..now }
    }
    /// Keeps the flags of a range that is swapped in.
    pub(crate) fn keep(&mut self, lo: usize, hi: usize, flags: AdviceFlags) {
        if flags != AdviceFlags::default() {
            self.0.insert(lo, (hi, flags));
        }
    }
    /// Forgets the flags of a range that is swapped out.
    pub(crate) fn forget(&mut self, lo: usize, hi: usize) {
        if self.0.is_empty() {
            return;
        }
        let first = self.0.range(..lo).next_back().filter(|(_, (end, _))| *end > lo).map_or(lo, |(start, _)| *start);
        while let Some((&start, &(end, flags))) = self.0.range(first..hi).find(|(_, (end, _))| *end > lo) {
            self.0.remove(&start);
            if start < lo {
                self.0.insert(start, (lo, flags));
            }
            if hi < end {
                self.0.insert(hi, (end, flags));
            }
        }
    }
}

/// A page of a mapping that has a neighbour in the same mapping.
struct Probe<'a> {
    maps: &'a Maps,
    at: usize,
    page: usize,
    /// Whether the neighbour is the page behind it, or the one before it.
    behind: bool,
}

impl<'a> Probe<'a> {
    fn new(maps: &'a Maps, vma: &Vma, at: usize) -> Option<Probe<'a>> {
        let behind = at + vma.page < vma.end;
        (behind || vma.start < at).then_some(Probe { maps, at, page: vma.page, behind })
    }
    fn advise(&self, advice: Advice) -> bool {
        kernel::advise(self.at, self.page, advice)
    }
    /// Whether the page has the flag that `advice` gives and `undo` takes.
    fn had(&self, advice: Advice, undo: Advice) -> bool {
        let had = self.has(advice);
        if !had {
            self.advise(undo);
        }
        had
    }
    /// Gives the page the flag. Returns whether its neighbour has it already.
    fn has(&self, advice: Advice) -> bool {
        // A refusal leaves the mapping whole: it says nothing.
        self.advise(advice) && self.is_joined()
    }
    fn is_joined(&self) -> bool {
        let joined = |vma: Vma| if self.behind { vma.end > self.at + self.page } else { vma.start < self.at };
        self.maps.at_or_after(self.at).is_some_and(joined)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::Memory;
    use super::*;

    fn flags_at(memory: &Memory, page: usize) -> AdviceFlags {
        let maps = Maps::open().expect("/proc/self/maps");
        let at = memory.page(page);
        AdviceFlags::of(&maps, &maps.at_or_after(at).expect("mapped"), at, true).expect("it has neighbours")
    }

    /// The flags that `advice` gives to new memory, asked for at the first, a middle and the last page.
    fn flags_after(advice: impl Fn(&Memory)) -> AdviceFlags {
        let flags = [0, 3, 7].map(|page| {
            let memory = Memory::new(8);
            advice(&memory);
            flags_at(&memory, page)
        });
        assert!(flags[0] == flags[1] && flags[0] == flags[2], "{flags:?}");
        flags[0]
    }

    #[test]
    fn each_flag_is_found_and_no_other() {
        let none = AdviceFlags::default();
        let advised = |advice| flags_after(|memory| _ = kernel::advise(memory.at, 8 * PAGE, advice));
        assert_eq!(flags_after(|_| ()), none);
        assert_eq!(advised(Advice::LinuxDontFork), AdviceFlags { dont_fork: true, ..none });
        assert_eq!(advised(Advice::LinuxDontDump), AdviceFlags { dont_dump: true, ..none });
        // A kernel without this refuses the advice.
        let merges = std::path::Path::new("/sys/kernel/mm/ksm").exists();
        assert_eq!(advised(Advice::LinuxMergeable), AdviceFlags { mergeable: merges, ..none });
        // A kernel without huge pages refuses the advice.
        let huge = |is| [Some(is), None];
        assert!(huge(true).contains(&advised(Advice::LinuxHugepage).huge));
        assert!(huge(false).contains(&advised(Advice::LinuxNoHugepage).huge));
        let locked = flags_after(|memory| kernel::lock(memory.at, 8 * PAGE, false));
        assert_eq!(locked, AdviceFlags { locked: true, ..none });
    }

    #[test]
    fn what_is_applied_is_found_again() {
        let flags = AdviceFlags { dont_fork: true, dont_dump: true, huge: Some(false), mergeable: false, locked: true };
        let memory = Memory::new(8);
        flags.apply(memory.at, memory.page(8));
        let found = flags_at(&memory, 0);
        assert_eq!((found.dont_fork, found.dont_dump, found.locked), (true, true, true));
    }

    #[test]
    fn kept_flags_are_those_of_the_ranges_that_are_still_swapped() {
        let (mut kept, flags) = (KeptAdvice::new(), AdviceFlags { dont_fork: true, ..AdviceFlags::default() });
        let kept_at = |kept: &KeptAdvice| -> Vec<usize> {
            let inside = |at: &usize| kept.0.iter().any(|(start, (end, _))| (*start..*end).contains(at));
            (0..20).filter(inside).collect()
        };
        kept.keep(2, 9, flags);
        kept.keep(12, 14, flags);
        kept.keep(15, 18, AdviceFlags::default());
        assert_eq!(kept_at(&kept), [2, 3, 4, 5, 6, 7, 8, 12, 13]);
        kept.forget(4, 6);
        assert_eq!(kept_at(&kept), [2, 3, 6, 7, 8, 12, 13]);
        kept.forget(8, 13);
        assert_eq!(kept_at(&kept), [2, 3, 6, 7, 13]);
        kept.forget(0, 20);
        assert!(kept.0.is_empty());
    }

    #[test]
    fn the_flags_are_as_before_the_question() {
        let memory = Memory::new(8);
        let maps = Maps::open().expect("/proc/self/maps");
        let before = maps.at_or_after(memory.at).expect("mapped");
        let probe = Probe::new(&maps, &before, memory.page(2)).expect("it has neighbours");
        assert!(!probe.had(Advice::LinuxDontFork, Advice::LinuxDoFork));
        let after = maps.at_or_after(memory.page(2)).expect("mapped");
        assert_eq!((before.start, before.end), (after.start, after.end));
    }
}
