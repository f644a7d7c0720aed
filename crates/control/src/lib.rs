//! Control (being written).
