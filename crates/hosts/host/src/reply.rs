//! The reply to a request: the response and the descriptors that go with it.

use burst_control::Response;
use std::os::fd::OwnedFd;

/// A response and its descriptors.
#[derive(Debug)]
pub struct ReplyParts {
    /// The response.
    pub response: Response,
    /// Descriptors that belong to the response.
    pub fds: Vec<OwnedFd>,
    /// Arena segments that the client does not have yet; the response may refer to them.
    pub segments: Vec<OwnedFd>,
}

impl ReplyParts {
    /// A response with descriptors.
    pub fn with_fds(response: Response, fds: Vec<OwnedFd>) -> ReplyParts {
        ReplyParts { response, fds, segments: Vec::new() }
    }
}

impl From<Response> for ReplyParts {
    fn from(response: Response) -> ReplyParts {
        ReplyParts { response, fds: Vec::new(), segments: Vec::new() }
    }
}
