//! Segments: sealed memfds, mapped; allocation of queues inside them (daemon side).
