//! The places of READs and ATOMICs.

use super::*;
use crate::responder::Responder;
use crate::responder::resource::EMPTY;

#[test]
fn a_wrapped_psn_names_the_youngest_request_that_has_it() {
    let mut resp = Responder::new(RecvQueue::None);
    resp.start(Psn::new(5), 4);
    // An atomic; then 2^24 PSNs of SENDs and WRITEs, which store nothing; then other atomics.
    for (psn, original) in [(5, 1), (9, 2), (5, 3), (6, 4)] {
        resp.reserve_place().expect("memory");
        resp.store(ResponderResource {
            kind: OpKind::FetchAdd,
            psn: Psn::new(psn),
            packets: 1,
            end: 1,
            original,
            ..EMPTY
        });
    }
    let original = |psn| resp.find(Psn::new(psn)).map(|(_, place)| resp.resources[place].original);
    assert_eq!([5, 6, 9].map(original), [Some(3), Some(4), Some(2)]);
    assert_eq!(original(7), None);
}
