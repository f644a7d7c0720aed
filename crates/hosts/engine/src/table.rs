//! Tables of a worker: objects by the numbers that the control thread gives out.

/// Puts `value` at `index` of a table of options.
pub(crate) fn put<T>(table: &mut Vec<Option<T>>, index: u32, value: T) {
    let index = index as usize;
    if table.len() <= index {
        table.resize_with(index + 1, || None);
    }
    assert!(table[index].is_none(), "slot {index} is in use");
    table[index] = Some(value);
}

/// Returns the memory behind the last entry in use.
pub(crate) fn shrink<T>(table: &mut Vec<Option<T>>) {
    let used = table.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
    debug_assert!(table[used..].iter().all(Option::is_none), "an object behind the last one");
    table.truncate(used);
    table.shrink_to_fit();
}

/// Takes the entry at `index` out of a table of options.
pub(crate) fn take<T>(table: &mut [Option<T>], index: u32) -> Option<T> {
    table.get_mut(index as usize).and_then(Option::take)
}
