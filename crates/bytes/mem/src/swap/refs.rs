//! Number of registrations of each page: an interval map with counts.
//!
//! Intervals do not overlap; an interval is split where a registration begins or ends inside it. A second
//! registration with the bounds of the first only increments a count, without allocation. Two steps end a registration:
//! [`PageCounts::sub`] decrements, then [`PageCounts::sub_next`] takes out the intervals whose count is zero, one by one.
use std::collections::BTreeMap;

/// An interval of addresses, keyed by its first address.
#[derive(Clone, Copy, Debug)]
struct CountedInterval {
    end: usize,
    count: u32,
}

/// Number of registrations by range of pages.
#[derive(Debug)]
pub(crate) struct PageCounts(BTreeMap<usize, CountedInterval>);

impl PageCounts {
    pub(crate) const fn new() -> PageCounts {
        PageCounts(BTreeMap::new())
    }
    /// Adds one to every page of `[lo, hi)`.
    pub(crate) fn add(&mut self, lo: usize, hi: usize) {
        debug_assert!(lo < hi);
        self.split(lo);
        self.split(hi);
        let mut at = lo;
        while at < hi {
            match self.0.range_mut(at..hi).next() {
                Some((&start, interval)) if start == at => {
                    interval.count += 1;
                    at = interval.end;
                }
                next => {
                    let end = next.map_or(hi, |(&start, _)| start);
                    self.0.insert(at, CountedInterval { end, count: 1 });
                    at = end;
                }
            }
        }
    }
    /// Subtracts one from every page of `[lo, hi)` that is counted.
    pub(crate) fn sub(&mut self, lo: usize, hi: usize) {
        self.split(lo);
        self.split(hi);
        for (_, interval) in self.0.range_mut(lo..hi) {
            debug_assert!(interval.count > 0, "a page that is not counted");
            interval.count = interval.count.saturating_sub(1);
        }
    }
    /// Removes the first run of pages in `[lo, hi)` whose count is zero, and returns it.
    pub(crate) fn sub_next(&mut self, lo: usize, hi: usize) -> Option<(usize, usize)> {
        let (&start, first) = self.0.range(lo..hi).find(|(_, i)| i.count == 0)?;
        let mut end = first.end;
        self.0.remove(&start);
        while end < hi && self.0.get(&end).is_some_and(|i| i.count == 0) {
            end = self.0.remove(&end).map_or(hi, |i| i.end);
        }
        self.join(lo);
        self.join(hi);
        debug_assert!(lo <= start && start < end && end <= hi);
        Some((start, end))
    }
    /// First and end address of the interval that contains `at`, or of the next one.
    pub(crate) fn at_or_after(&self, at: usize) -> Option<(usize, usize)> {
        let before = self.0.range(..=at).next_back().filter(|(_, i)| i.end > at);
        before.or_else(|| self.0.range(at..).next()).map(|(&start, i)| (start, i.end))
    }
    /// Whether a page of `[lo, hi)` is counted.
    pub(crate) fn counts(&self, lo: usize, hi: usize) -> bool {
        self.at_or_after(lo).is_some_and(|(start, _)| start < hi)
    }
    /// Makes `at` a boundary.
    fn split(&mut self, at: usize) {
        if let Some((_, before)) = self.0.range_mut(..at).next_back()
            && before.end > at
        {
            let rest = *before;
            debug_assert!(rest.end > at);
            before.end = at;
            self.0.insert(at, rest);
        }
    }
    /// Removes the boundary `at` if both sides count the same.
    fn join(&mut self, at: usize) {
        let Some(after) = self.0.get(&at).copied() else { return };
        if let Some((_, before)) = self.0.range_mut(..at).next_back()
            && before.end == at
            && before.count == after.count
        {
            before.end = after.end;
            self.0.remove(&at);
        }
    }
    #[cfg(test)]
    pub(crate) fn count(&self, at: usize) -> u32 {
        self.0.range(..=at).next_back().filter(|(_, i)| i.end > at).map_or(0, |(_, i)| i.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_interval_at_an_address_is_the_one_that_contains_it_or_the_next() {
        let mut refs = PageCounts::new();
        assert_eq!(refs.at_or_after(0), None);
        refs.add(10, 20);
        refs.add(30, 40);
        let cases = [(0, (10, 20)), (10, (10, 20)), (19, (10, 20)), (20, (30, 40)), (30, (30, 40)), (39, (30, 40))];
        for (at, interval) in cases {
            assert_eq!(refs.at_or_after(at), Some(interval), "{at}");
        }
        assert_eq!(refs.at_or_after(40), None);
        // One that begins inside divides the first.
        refs.add(15, 35);
        assert_eq!((refs.at_or_after(14), refs.at_or_after(15)), (Some((10, 15)), Some((15, 20))));
        assert_eq!((refs.at_or_after(25), refs.at_or_after(34)), (Some((20, 30)), Some((30, 35))));
    }

    proptest! {
        #[test]
        fn counts_like_an_array(ops in prop::collection::vec((0usize..40, 1usize..20), 1..60)) {
            let mut refs = PageCounts::new();
            let mut model = [0u32; 64];
            let mut live: Vec<(usize, usize)> = Vec::new();
            for (i, (lo, len)) in ops.into_iter().enumerate() {
                if i % 3 == 2 && !live.is_empty() {
                    let (lo, hi) = live.swap_remove(lo % live.len());
                    refs.sub(lo, hi);
                    model[lo..hi].iter_mut().for_each(|c| *c -= 1);
                    let mut freed = Vec::new();
                    while let Some((a, b)) = refs.sub_next(lo, hi) {
                        freed.extend(a..b);
                    }
                    let expect: Vec<usize> = (lo..hi).filter(|p| model[*p] == 0).collect();
                    prop_assert_eq!(freed, expect);
                } else {
                    refs.add(lo, lo + len);
                    model[lo..lo + len].iter_mut().for_each(|c| *c += 1);
                    live.push((lo, lo + len));
                }
                for (page, count) in model.iter().enumerate() {
                    prop_assert_eq!(refs.count(page), *count);
                }
            }
        }
    }
}
