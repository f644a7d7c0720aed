//! The ICRC over memory of an application, mapped here or not.

use burst_span::{ProcessMemory, Span, Unreachable};
use burst_wire::Icrc;
use burst_wire::icrc::PseudoV4;
use std::net::Ipv4Addr;

fn start() -> Icrc {
    Icrc::ipv4(&PseudoV4::new(Ipv4Addr::LOCALHOST, Ipv4Addr::LOCALHOST, 1), 5_016, &[7; 12])
}

#[test]
fn local_and_remote_spans_agree_with_the_bytes() {
    let mut memory: Vec<u8> = (0..5_000u32).map(|i| (i * 31) as u8).collect();
    let expected = start().update(&memory);
    let (at, len) = (memory.as_mut_ptr(), memory.len() as u32);
    // SAFETY: `memory` outlives the span and is not touched through anything else meanwhile.
    let local = unsafe { Span::local(at, len) };
    let own = ProcessMemory::own().expect("own memory");
    for span in [local, own.span(at as u64, len)] {
        assert_eq!(start().update_span(&span), Ok(expected));
        let mut copy = vec![0; 5_000];
        assert_eq!(start().copy_span(&span, &mut copy), Ok(expected));
        assert_eq!(copy, memory);
        assert_eq!(start().copy_span(&span.sub(9, 0), &mut []), Ok(start()));
    }
}

#[test]
fn unmapped_memory_is_an_error() {
    let own = ProcessMemory::own().expect("own memory");
    let gone = own.span(8, 8);
    assert_eq!(start().update_span(&gone), Err(Unreachable::Gone));
    assert_eq!(start().copy_span(&gone, &mut [0; 8]), Err(Unreachable::Gone));
}
