//! Two queue pairs of one process exchange a WRITE, a READ and a SEND over `burst0`, and check the bytes.
//!
//! usage: burst run -- write [DEVICE]
#![forbid(unsafe_code)]

use burst_client::{Device, QpOptions, Result, WorkRequest, access};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(10);
const BYTES: usize = 100_000;

fn main() -> Result<()> {
    let name = std::env::args().nth(1).unwrap_or_else(|| "burst0".into());
    let context = Device::by_name(&name)?.open()?;
    let pd = context.alloc_pd()?;
    let cq = context.create_cq(64)?;
    let a = pd.create_qp(&cq, &cq, &QpOptions::default())?;
    let b = pd.create_qp(&cq, &cq, &QpOptions::default())?;
    a.connect(&b.endpoint()?)?;
    b.connect(&a.endpoint()?)?;

    let all = access::LOCAL_WRITE | access::REMOTE_WRITE | access::REMOTE_READ | access::REMOTE_ATOMIC;
    let ours = pd.alloc_mr(2 * BYTES, all)?;
    let theirs = pd.alloc_mr(BYTES, all)?;
    let sent: Vec<u8> = (0..BYTES).map(|i| (i * 7 % 251) as u8).collect();
    ours.write(0, &sent)?;

    // WRITE to the peer's memory, then READ it back into the second half of ours.
    a.post_send(1, WorkRequest::Write(&[ours.slice(0..BYTES)?], theirs.remote(0..BYTES)?))?;
    a.post_send(2, WorkRequest::Read(&[ours.slice(BYTES..2 * BYTES)?], theirs.remote(0..BYTES)?))?;
    for want in [1, 2] {
        assert_eq!(cq.wait(LIMIT)?.ok()?.wr_id, want);
    }
    let mut back = vec![0; BYTES];
    ours.read(BYTES, &mut back)?;
    assert_eq!(back, sent, "the bytes that came back");

    // A message: the receive is posted first. Its completion and the sender's come in either order.
    theirs.write(0, &[0; 16])?;
    b.post_recv(3, &[theirs.slice(0..16)?])?;
    a.post_send(4, WorkRequest::SendWithImm(&[ours.slice(0..16)?], 0x1234))?;
    for _ in 0..2 {
        let done = cq.wait(LIMIT)?.ok()?;
        assert!(done.wr_id == 4 || (done.wr_id, done.byte_len, done.imm) == (3, 16, Some(0x1234)), "{done:?}");
    }
    let mut message = [0; 16];
    theirs.read(0, &mut message)?;
    assert_eq!(message, sent[..16], "the message");

    // A counter in the peer's memory: the old value comes back, the sum stays there.
    theirs.word(64)?.store(40, std::sync::atomic::Ordering::Relaxed);
    a.post_send(5, WorkRequest::FetchAdd(&[ours.slice(0..8)?], theirs.remote(64..72)?, 2))?;
    cq.wait(LIMIT)?.ok()?;
    let values = [ours.word(0)?, theirs.word(64)?].map(|w| w.load(std::sync::atomic::Ordering::Relaxed));
    assert_eq!(values, [40, 42]);
    println!("{BYTES} bytes written and read back, a message received, a counter added to");
    Ok(())
}
