//! A server that sends each message back, and a client, connected by the connection manager.
//!
//! usage: burst run -- echo serve [ADDRESS:PORT]      serves one client, then ends
//!        burst run -- echo ADDRESS:PORT [MESSAGE...]
#![forbid(unsafe_code)]

use burst_client::{ClientContext, CompletionQueue, Device, MemoryRegion, QpOptions};
use burst_client::{QueuePair, Result, WorkRequest, access};
use std::net::SocketAddr;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(10);
const ROOM: usize = 4096;

/// One end. Completions of sends and receives come in no fixed order, so each has its queue.
struct End {
    sends: CompletionQueue,
    receives: CompletionQueue,
    qp: QueuePair,
    buffer: MemoryRegion,
}

fn end(context: &ClientContext) -> Result<End> {
    let (pd, sends, receives) = (context.alloc_pd()?, context.create_cq(16)?, context.create_cq(16)?);
    let qp = pd.create_qp(&sends, &receives, &QpOptions::default())?;
    let buffer = pd.alloc_mr(ROOM, access::LOCAL_WRITE)?;
    Ok(End { sends, receives, qp, buffer })
}

fn serve(addr: SocketAddr) -> Result<()> {
    let context = Device::by_name("burst0")?.open()?;
    let listener = context.connection_manager()?.listen(addr)?;
    println!("listening at {}", listener.local_addr());
    let request = listener.next_request(LIMIT)?;
    let end = end(&context)?;
    // The receive is there before the client can send.
    end.qp.post_recv(0, &[end.buffer.slice(0..ROOM)?])?;
    let connection = request.accept(&end.qp, b"", LIMIT)?;
    loop {
        let received = end.receives.wait(LIMIT)?.ok()?;
        if received.byte_len == 0 {
            // The client's last message is empty.
            return connection.wait_disconnected(LIMIT);
        }
        let message = end.buffer.slice(0..received.byte_len as usize)?;
        end.qp.post_send(1, WorkRequest::Send(&[message]))?;
        end.sends.wait(LIMIT)?.ok()?;
        end.qp.post_recv(0, &[end.buffer.slice(0..ROOM)?])?;
    }
}

fn echo(addr: SocketAddr, messages: &[String]) -> Result<()> {
    let context = Device::by_name("burst0")?.open()?;
    let End { sends, receives, qp, buffer } = end(&context)?;
    let connection = context.connection_manager()?.connect(addr, &qp, b"", LIMIT)?;
    for message in messages {
        let len = message.len().min(ROOM / 2);
        buffer.write(0, &message.as_bytes()[..len])?;
        qp.post_recv(0, &[buffer.slice(ROOM / 2..ROOM)?])?;
        qp.post_send(1, WorkRequest::Send(&[buffer.slice(0..len)?]))?;
        sends.wait(LIMIT)?.ok()?;
        receives.wait(LIMIT)?.ok()?;
        let mut back = vec![0; len];
        buffer.read(ROOM / 2, &mut back)?;
        println!("{}", String::from_utf8_lossy(&back));
    }
    qp.post_send(2, WorkRequest::Send(&[]))?;
    sends.wait(LIMIT)?.ok()?;
    connection.disconnect()
}

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let address = |word: Option<&String>| word.map_or("0.0.0.0:0", |w| w).parse().expect("ADDRESS:PORT");
    match words.split_first() {
        Some((first, rest)) if first == "serve" => serve(address(rest.first())),
        first => echo(address(first.map(|f| f.0)), first.map_or(&[], |f| f.1)),
    }
}
