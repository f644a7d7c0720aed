//! One control channel: messages over TLS 1.3, both ends with certificates of one CA, on a socket that does not block.

use crate::message::{ControlMessage, MESSAGE_BYTES};
use burst_relay::{ChannelSecret, EXPORT_BYTES, EXPORT_LABEL};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, ClientConnection, Connection, RootCertStore, ServerConfig, ServerConnection};
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// Bytes read from a channel before others have their turn.
pub(crate) const TURN_BYTES: usize = 1 << 20;
/// Most bytes of a record (RFC 8446, 5.1), and those of head, type and tag that it has beside.
const RECORD_BYTES: u64 = 16 << 10;
const RECORD_OVERHEAD: u64 = 5 + 1 + 16;

/// The keys of this proxy.
#[derive(Clone)]
pub struct TlsKeys {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
}

impl TlsKeys {
    /// Reads `ca.pem`, `NAME.pem` and `NAME.key`.
    ///
    /// # Errors
    /// One sentence that names the file.
    pub fn load(directory: &Path, name: &str) -> Result<Self, String> {
        let certificate = |file: &str| {
            let path = directory.join(file);
            CertificateDer::from_pem_file(&path)
                .map_err(|e| format!("{}: {e} (burst proxy keys makes it)", path.display()))
        };
        let (authority, own) = (certificate("ca.pem")?, certificate(&format!("{name}.pem"))?);
        let path = directory.join(format!("{name}.key"));
        let key = || PrivateKeyDer::from_pem_file(&path).map_err(|e| format!("{}: {e}", path.display()));
        let mut roots = RootCertStore::empty();
        roots.add(authority).map_err(|e| format!("ca.pem: {e}"))?;
        let roots = Arc::new(roots);
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let wrong = |e: rustls::Error| format!("{name}.pem and {name}.key: {e}");
        let client = ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(wrong)?
            .with_root_certificates(roots.clone())
            .with_client_auth_cert(vec![own.clone()], key()?)
            .map_err(wrong)?;
        let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider.clone())
            .build()
            .map_err(|e| format!("ca.pem: {e}"))?;
        let server = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(wrong)?
            .with_client_cert_verifier(verifier)
            .with_single_cert(vec![own], key()?)
            .map_err(wrong)?;
        Ok(Self { client: Arc::new(client), server: Arc::new(server) })
    }
}

/// A channel.
pub struct ControlChannel {
    socket: TcpStream,
    tls: Connection,
    /// Bytes of messages that are not whole yet.
    incoming: Vec<u8>,
    /// The peer's number, once it is known.
    pub peer: Option<usize>,
    /// Whom this side dialled.
    pub dialled: Option<usize>,
    /// The TCP connection is not established yet.
    pub connecting: bool,
    /// When it was accepted or dialled.
    pub opened: Instant,
    /// Who has opened it, if others have.
    pub source: Option<IpAddr>,
    /// When bytes came last: a long message takes a while on a slow network.
    pub heard: Instant,
    /// The peer has introduced itself.
    pub introduced: bool,
    /// Bytes that the socket has not taken, and how many may wait.
    waiting: u64,
    waiting_max: u64,
}

impl ControlChannel {
    /// Of a socket that connects to the peer with this name. `waiting_max`: most bytes that may wait until the peer reads.
    ///
    /// # Errors
    /// The name is no host name.
    pub fn dial(socket: TcpStream, keys: &TlsKeys, name: &str, peer: usize, waiting_max: u64) -> Result<Self, String> {
        let server = ServerName::try_from(name.to_owned()).map_err(|e| e.to_string())?;
        let tls = ClientConnection::new(keys.client.clone(), server).map_err(|e| e.to_string())?;
        let mut channel = Self::new(socket, tls.into(), waiting_max);
        channel.dialled = Some(peer);
        channel.connecting = true;
        Ok(channel)
    }

    /// Of an accepted socket; see [`ControlChannel::dial`].
    ///
    /// # Errors
    /// Of rustls.
    pub fn accept(socket: TcpStream, source: IpAddr, keys: &TlsKeys, waiting_max: u64) -> Result<Self, String> {
        let tls = ServerConnection::new(keys.server.clone()).map_err(|e| e.to_string())?;
        Ok(Self { source: Some(source), ..Self::new(socket, tls.into(), waiting_max) })
    }

    fn new(socket: TcpStream, mut tls: Connection, waiting_max: u64) -> Self {
        // What waits is counted here: a message is taken whole or not at all.
        tls.set_buffer_limit(None);
        Self {
            socket,
            tls,
            incoming: Vec::new(),
            peer: None,
            dialled: None,
            connecting: false,
            opened: Instant::now(),
            source: None,
            heard: Instant::now(),
            introduced: false,
            waiting: 0,
            waiting_max,
        }
    }

    /// The socket.
    pub fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// Whether the certificate that the peer has shown carries the name.
    pub fn shows(&self, name: &str) -> bool {
        let Some([first, ..]) = self.tls.peer_certificates() else { return false };
        let (Ok(certificate), Ok(name)) = (webpki::EndEntityCert::try_from(first), ServerName::try_from(name)) else {
            return false;
        };
        certificate.verify_is_valid_for_subject_name(&name).is_ok()
    }

    /// What only both ends of this channel know (RFC 8446, 7.5).
    ///
    /// # Errors
    /// The handshake is not complete.
    pub fn secret(&self) -> Result<ChannelSecret, String> {
        let exported = self.tls.export_keying_material([0; EXPORT_BYTES], EXPORT_LABEL, None);
        exported.map(|bytes| ChannelSecret::new(&bytes)).map_err(|e| e.to_string())
    }

    /// Appends a message; it leaves with the next [`ControlChannel::write`].
    ///
    /// # Errors
    /// A sentence; among others, that the peer does not read.
    pub fn push(&mut self, message: &ControlMessage) -> Result<(), String> {
        let mut bytes = vec![0; 4];
        bytes = postcard::to_extend(message, bytes).map_err(|e| e.to_string())?;
        let len = bytes.len() - 4;
        if len > MESSAGE_BYTES {
            return Err(format!("a message of {len} bytes is too long"));
        }
        if self.waiting > self.waiting_max {
            return Err("it does not read what it is sent".into());
        }
        bytes[..4].copy_from_slice(&(len as u32).to_le_bytes());
        let count = bytes.len() as u64;
        self.waiting += count + count.div_ceil(RECORD_BYTES) * RECORD_OVERHEAD;
        self.tls.writer().write_all(&bytes).map_err(|e| e.to_string())
    }

    /// Writes what waits, as far as the socket takes it.
    ///
    /// # Errors
    /// A sentence: the channel is broken.
    pub fn write(&mut self) -> Result<(), String> {
        while !self.connecting && self.tls.wants_write() {
            match self.tls.write_tls(&mut self.socket) {
                Ok(written) => self.waiting = self.waiting.saturating_sub(written as u64),
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(e) => return Err(e.to_string()),
            }
        }
        if !self.connecting {
            self.waiting = 0;
        }
        Ok(())
    }

    /// Reads what has come, at most about 1 MiB; appends whole messages. True if there may be more.
    ///
    /// # Errors
    /// A sentence: the channel is broken or has ended. The messages before are in `to`.
    pub fn read(&mut self, to: &mut Vec<ControlMessage>) -> Result<bool, String> {
        let mut chunk = [0; 16 << 10];
        let mut turn = 0;
        while turn < TURN_BYTES {
            match self.tls.read_tls(&mut self.socket) {
                Ok(0) => return Err("the peer closed it".into()),
                Ok(_) => self.heard = Instant::now(),
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(e) => return Err(e.to_string()),
            }
            if let Err(e) = self.tls.process_new_packets() {
                // The alert names the reason.
                let _ = self.tls.write_tls(&mut self.socket);
                return Err(e.to_string());
            }
            loop {
                match self.tls.reader().read(&mut chunk) {
                    Ok(0) => return Err("the peer closed it".into()),
                    Ok(got) => {
                        turn += got;
                        self.incoming.extend_from_slice(&chunk[..got]);
                    }
                    Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                    Err(e) => return Err(e.to_string()),
                }
            }
            self.take_messages(to)?;
        }
        Ok(true)
    }

    fn take_messages(&mut self, to: &mut Vec<ControlMessage>) -> Result<(), String> {
        let mut at = 0;
        while let Some(head) = self.incoming.get(at..at + 4) {
            let len = u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize;
            if len > MESSAGE_BYTES {
                return Err(format!("it sent a message of {len} bytes"));
            }
            let Some(body) = self.incoming.get(at + 4..at + 4 + len) else { break };
            to.push(postcard::from_bytes(body).map_err(|e| format!("it sent a message that cannot be read: {e}"))?);
            at += 4 + len;
        }
        self.incoming.drain(..at);
        Ok(())
    }
}
