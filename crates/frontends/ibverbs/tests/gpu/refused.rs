//! A daemon whose key `gpu` is off has no copiers: programs see that, and why.

use crate::fake::{cuda, lock};
use crate::pair::*;
use crate::receiving::RIGHTS;
use burst_ibverbs::boundary::{self, Errno};
use burst_ibverbs::pd_mr::{ibv_dereg_mr, ibv_reg_dmabuf_mr, ibv_reg_mr};
use burst_ibverbs::sys::*;
use std::process::Command;

/// Set for the process whose daemon has no copiers.
const WITHOUT: &str = "BURST_TEST_WITHOUT_COPIERS";

#[test]
fn without_copiers() {
    if std::env::var_os(WITHOUT).is_none() {
        return;
    }
    let (_one, Some(cuda), Some(open)) = (lock(), cuda(), Open::new()) else { return };
    let device = cuda.alloc(4096);
    let errno = |mr: *mut ibv_mr| mr.is_null().then(boundary::errno);
    // SAFETY: a live PD; the library checks the rest.
    unsafe {
        assert_eq!(errno(ibv_reg_mr(open.pd, device as *mut _, 4096, RIGHTS)), Some(Errno(libc::EFAULT)));
        assert_eq!(
            errno(ibv_reg_dmabuf_mr(open.pd, 0, 0, 0, -1, 0)),
            Some(boundary::EOPNOTSUPP),
            "what programs probe for"
        );
        assert_eq!(errno(ibv_reg_dmabuf_mr(open.pd, 0, 4096, device, 0, RIGHTS)), Some(boundary::EOPNOTSUPP));
    }
    let mut bytes = vec![0u8; 4096];
    // SAFETY: a live region.
    assert_eq!(unsafe { ibv_dereg_mr(open.mr(&mut bytes)) }, 0, "host memory is as ever");
    println!("\nrefused");
}

#[test]
fn a_daemon_has_copiers_only_if_its_key_is_on() {
    if cuda().is_none() || Open::new().is_none() {
        return;
    }
    let output = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "refused::without_copiers", "--nocapture"])
        .envs([(WITHOUT, "1"), ("BURST_GPU", "off"), ("BURST_EXPLAIN", "1")])
        .output()
        .expect("a process");
    let [out, why] = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(output.status.success() && out.contains("refused"), "{out}{why}");
    assert!(why.contains("the key gpu is off"), "{why}");
}
