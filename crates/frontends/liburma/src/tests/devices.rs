//! The devices in lists, and their entity ids.
//!
//! SAFETY: as for the other tests: all pointers are of objects that the tests have made and not deleted yet.

use crate::device::*;
use crate::eids::addresses;
use std::ffi::CStr;
use std::ptr::null_mut;

#[test]
fn a_second_device_has_the_first_address_alone() {
    // SAFETY: see the abstract.
    unsafe {
        let mut count = 0;
        let list = urma_get_device_list(&raw mut count);
        let devices = [*list, *list.add(1), *list.add(2)];
        urma_free_device_list(list);
        assert_eq!((count, devices[2]), (2, null_mut()));
        let names = devices[..2].iter().map(|device| CStr::from_ptr((**device).name.as_ptr()).to_str().unwrap());
        assert_eq!(names.collect::<Vec<_>>(), ["burst0", "bonding_dev_0"]);
        let named = [c"burst0", c"bonding_dev_0"].map(|name| urma_get_device_by_name(name.as_ptr()));
        assert_eq!(named, devices[..2]);
        let found = addresses();
        let eids = |device| {
            let mut count = 0;
            let list = urma_get_eid_list(device, &raw mut count);
            let eids: Vec<_> = (0..count as usize).map(|i| ((*list.add(i)).eid.0, (*list.add(i)).index)).collect();
            urma_free_eid_list(list);
            eids
        };
        let all: Vec<_> = found.iter().zip(0..).map(|(address, i)| (eid_of(*address).0, i)).collect();
        assert_eq!((eids(devices[0]), eids(devices[1])), (all.clone(), all[..1].to_vec()));
        assert_eq!(urma_get_device_by_eid(eid_of(found[0]), 0), devices[0], "not the second one");
        assert!(urma_create_context(devices[1], 1).is_null(), "it has one");
    }
}
