//! The error of every call of this crate: a sentence for a person, and the errno that the same verbs call would report.

use burst_base::Reason;
use burst_base::verbs::WcStatus;
use burst_control::ControlError;
use burst_mem::swap::RegisterError;
use burst_shm::WriteError;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The daemon refused the request, or the connection to it failed.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The object belongs to the parent process: its queues cannot be used after fork (EIO).
    #[error("the object was made before fork, by the parent process")]
    Forked,
    /// The daemon's answer does not fit the request (EIO).
    #[error("the daemon's answer does not fit the request: {0}")]
    Unexpected(&'static str),
    /// An argument is out of range, or the object is not in a state for the call (EINVAL).
    #[error("{0}")]
    Invalid(&'static str),
    /// The memory cannot be registered.
    #[error("the memory cannot be registered: {0}")]
    Memory(#[from] RegisterError),
    /// A work queue has no room for the request (ENOMEM), or the request is too large for its entries (EINVAL).
    #[error("the work request cannot be posted: {}", post_text(.0))]
    Post(WriteError),
    /// A work request completed in error (EIO).
    #[error("work request {wr_id} failed: {status:?}{}", reason_text(.reason))]
    WorkRequest {
        /// The program's number of the request.
        wr_id: u64,
        /// The kind of failure.
        status: WcStatus,
        /// The daemon's reason.
        reason: Option<Reason>,
    },
    /// A system call failed.
    #[error("{0}")]
    System(#[from] std::io::Error),
    /// Nothing happened within the time given (ETIMEDOUT).
    #[error("nothing happened within {0:?}")]
    TimedOut(std::time::Duration),
    /// The peer or the network ended a connection or refused it (ECONNREFUSED).
    #[error("the connection failed: {0}")]
    Connection(String),
}

fn reason_text(reason: &Option<Reason>) -> String {
    reason.map_or_else(String::new, |r| format!(": {} {}", r.explanation(), r.cure()))
}

fn post_text(error: &WriteError) -> &'static str {
    match error {
        WriteError::Full => "the queue is full",
        WriteError::TooManySges => "it has more SGEs than the queue's entries",
        WriteError::InlineTooLong => "its inline data is longer than the queue's entries",
    }
}

impl From<WriteError> for ClientError {
    fn from(e: WriteError) -> ClientError {
        ClientError::Post(e)
    }
}

impl ClientError {
    /// The errno that a verbs call reports for this error.
    pub fn errno(&self) -> i32 {
        match self {
            ClientError::Control(e) => e.errno(),
            ClientError::Forked | ClientError::Unexpected(_) | ClientError::WorkRequest { .. } => libc::EIO,
            ClientError::Invalid(_) => libc::EINVAL,
            ClientError::Memory(RegisterError::Fault | RegisterError::Device) => libc::EFAULT,
            ClientError::Memory(RegisterError::BadRange) => libc::EINVAL,
            ClientError::Post(WriteError::Full) => libc::ENOMEM,
            ClientError::Post(WriteError::TooManySges | WriteError::InlineTooLong) => libc::EINVAL,
            ClientError::System(e) => e.raw_os_error().unwrap_or(libc::EIO),
            ClientError::TimedOut(_) => libc::ETIMEDOUT,
            ClientError::Connection(_) => libc::ECONNREFUSED,
        }
    }
}

/// Result of the calls of this crate.
pub type Result<T> = std::result::Result<T, ClientError>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_error_has_the_errno_of_the_verbs_call() {
        let refused = ControlError::Refused { errno: libc::EBUSY, sentence: "in use".into() };
        assert_eq!(ClientError::from(refused).errno(), libc::EBUSY);
        assert_eq!(ClientError::Forked.errno(), libc::EIO);
        assert_eq!(ClientError::from(WriteError::Full).errno(), libc::ENOMEM);
        assert_eq!(ClientError::from(WriteError::TooManySges).errno(), libc::EINVAL);
        assert_eq!(ClientError::from(std::io::Error::from_raw_os_error(libc::EMFILE)).errno(), libc::EMFILE);
    }
}
