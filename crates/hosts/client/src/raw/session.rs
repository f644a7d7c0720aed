//! The connection manager's connection to the daemon: one for all ids of a process, beside the connections of its contexts.
//!
//! A request waits for the daemon's answer, one caller at a time ([`CmControl::call`]). A command has no answer and goes by a
//! ring in shared memory ([`CmControl::send`]), which waits for nothing while the daemon is awake.

use super::lock::{ControlLock, HeldSignals};
use super::place::HostPlace;
use crate::error::{ClientError, Result};
use burst_control::client::ClientReply;
use burst_control::cm::{CmCommand, CmReply};
use burst_control::{Client, CommandSender, ControlError, Request, Response};
use burst_shm::life::LifePage;
use std::os::fd::OwnedFd;

/// A connection to the daemon for connection management.
#[derive(Debug)]
pub struct CmControl {
    life: LifePage,
    client: ControlLock<Client>,
    sender: CommandSender,
}

impl CmControl {
    /// Connects to a host.
    ///
    /// # Errors
    /// When no daemon answers.
    pub fn open(place: &HostPlace) -> Result<CmControl> {
        let held = HeldSignals::hold();
        let mut client = place.connect(&super::program_name(), &held)?;
        let life = LifePage::new().map_err(std::io::Error::from)?;
        let sender = client.command_sender()?;
        Ok(CmControl { life, client: ControlLock::new(client, |client| client)?, sender })
    }

    /// Whether this process opened the connection: false in a child after fork.
    pub fn is_alive(&self) -> bool {
        self.life.is_alive()
    }

    /// Whether the daemon still has its end of the connection open.
    pub fn is_connected(&self) -> bool {
        self.sender.is_connected()
    }

    fn check_alive(&self) -> Result<()> {
        if self.is_alive() { Ok(()) } else { Err(ClientError::Forked) }
    }

    /// Sends a request and waits for the answer.
    ///
    /// # Errors
    /// The daemon's refusal; [`ClientError::Forked`].
    pub fn call(&self, request: &Request) -> Result<ClientReply> {
        Ok(self.client.lock_alive(&self.life)?.call(request, &[])?)
    }

    /// Sends commands as one request, which the daemon carries out in order, and gives the last one's answer.
    ///
    /// # Errors
    /// The first refusal.
    pub fn ask(&self, commands: Vec<CmCommand>) -> Result<CmReply> {
        let Response::Cm(replies) = self.call(&Request::Cm { commands })?.response else {
            return Err(ClientError::Unexpected("no answer of the connection manager"));
        };
        let mut last = Err(ClientError::Unexpected("an empty answer of the connection manager"));
        for reply in replies {
            if let CmReply::Failed { errno, sentence } = reply {
                return Err(ControlError::Refused { errno, sentence }.into());
            }
            last = Ok(reply);
        }
        last
    }

    /// Sends commands and does not wait, unless the ring of commands is full; failures become events.
    ///
    /// # Errors
    /// When the daemon has ended; [`ClientError::Forked`].
    pub fn send(&self, commands: &[CmCommand]) -> Result<()> {
        while !self.try_send(commands)? {
            self.client.lock_alive(&self.life)?.flush_commands()?;
        }
        Ok(())
    }

    /// Sends commands if the ring has room. A handler of a signal that forks in between would leave two processes which write
    /// to it.
    fn try_send(&self, commands: &[CmCommand]) -> Result<bool> {
        let _held = HeldSignals::hold();
        self.check_alive()?;
        Ok(self.sender.send(commands)?)
    }

    /// Opens event channel number `channel` (chosen by the program): the read end of its pipe.
    ///
    /// # Errors
    /// As [`CmControl::call`].
    pub fn open_channel(&self, channel: u32) -> Result<OwnedFd> {
        let mut reply = self.call(&Request::CmChannel { channel })?;
        reply.fds.pop().ok_or(ClientError::Unexpected("an event channel without a descriptor"))
    }
}
