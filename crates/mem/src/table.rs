//! (being written) the memory region table.

/// What a region is made of.
#[derive(Debug)]
pub struct MrSpec;
/// Keys to regions.
#[derive(Debug)]
pub struct MrTable;
