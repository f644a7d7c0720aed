//! A request that waits for long, because the receiver is not ready or because its order holds it, harms no other one.

use crate::common::forge::{send, write};
use crate::common::*;
use burst_base::Nanos;
use burst_ubwire::{Dialect, OrderTag, ServiceMode, TaHeader, UbPacket};
use burst_urma::{CrStatus, JettyConfig, JettyState, JfsWr, TransMode, UrmaError};

#[test]
fn no_number_is_used_again_while_its_request_waits() {
    let mut world = World::new(2, 1 << 16, 1, |_| ());
    let Receiver { jfr, target, .. } = world.receiver();
    let jfc0 = world.jfc(0);
    let jetty = world.jetty(0, JettyConfig { depth: 4096, ..JettyConfig::new(jfc0, None) });
    let segment = world.import_all(0, 1);
    // The receiver is not ready for it.
    let wr = send(&world, 0, target, 99);
    world.post_sound(0, jetty, wr);
    let mut done = 0;
    let refused = loop {
        let wr = write(&world, 0, segment, 1000, 8);
        let posted = (0..200).find_map(|_| world.post(0, jetty, wr).err());
        world.run_for(Nanos(3_000_000));
        let crs = world.poll(0, jfc0);
        assert!(crs.iter().all(|cr| cr.user_ctx == 1 && cr.status == CrStatus::Success));
        done += crs.len();
        assert!(done < 1 << 16, "a number is used twice");
        if let Some(refused) = posted {
            break refused;
        }
    };
    // Two requests with one number would get each other's answers.
    assert_eq!((done, refused), ((1 << 15) - 1, UrmaError::Full));
    world.recv(1, jfr, 0, 64, 1);
    world.run_for(Nanos(3_000_000));
    assert_eq!(world.poll(0, jfc0).iter().map(|cr| cr.user_ctx).collect::<Vec<_>>(), [99]);
    let wr = write(&world, 0, segment, 1000, 8);
    world.post_sound(0, jetty, wr);
}

#[test]
fn a_rol_jetty_whose_peer_is_not_ready_ends_no_request_of_others() {
    let mut world = World::new(2, 1 << 16, 1, |_| ());
    let Receiver { jfr, target, .. } = world.receiver();
    let jfc0 = world.jfc(0);
    let rol = world.jetty(0, JettyConfig { service: ServiceMode::Rol, ..JettyConfig::new(jfc0, None) });
    let other_jfc = world.jfc(0);
    let other = world.jetty(0, JettyConfig::new(other_jfc, None));
    let segment = world.import_all(0, 1);
    world.recv(1, jfr, 0, 64, 1);
    for i in 0..3 {
        let wr = send(&world, 0, target, i);
        world.post_sound(0, rol, wr);
    }
    // The bystander writes once a millisecond for three seconds.
    let mut bad = Vec::new();
    for i in 0..3000u32 {
        let wr = write(&world, 0, segment, 1000, 8);
        world.post_sound(0, other, wr);
        world.run_for(Nanos(1_000_000));
        for cr in world.poll(0, other_jfc) {
            if cr.status != CrStatus::Success {
                bad.push((i, cr.status));
            }
        }
    }
    assert!(bad.is_empty());
}

#[test]
fn a_receiver_that_is_late_is_waited_for_in_the_default_order_of_rc() {
    for late_ms in [20, 300] {
        let mut world = World::new(2, 1 << 16, 1, |_| ());
        let (jfc0, jfc1) = (world.jfc(0), world.jfc(1));
        let jfr = world.jfr(1, jfc1);
        let rc = JettyConfig { mode: TransMode::Rc, service: ServiceMode::Rol, ..JettyConfig::new(jfc0, None) };
        let from = world.jetty(0, rc);
        let to = world.jetty(1, JettyConfig { jfc: jfc1, jfr: Some(jfr), ..rc });
        let (target, back) = (world.import_jetty(0, 1, to), world.import_jetty(1, 0, from));
        world.hosts[0].node.bind_jetty(from, target).expect("bound");
        world.hosts[1].node.bind_jetty(to, back).expect("bound");
        world.recv(1, jfr, 0, 64, 1);
        for i in 0..3 {
            let wr = send(&world, 0, target, i);
            world.post_sound(0, from, wr);
        }
        world.run_for(Nanos(late_ms * 1_000_000));
        world.recv(1, jfr, 0, 64, 2);
        world.recv(1, jfr, 0, 64, 3);
        world.run_for(Nanos(5_000_000_000));
        let got: Vec<_> = world.poll(0, jfc0).iter().map(|cr| cr.status).collect();
        assert_eq!(got, [CrStatus::Success; 3], "late by {late_ms} ms");
    }
}

#[test]
fn waiting_requests_of_one_rol_jetty_stop_no_other_one() {
    let mut world = World::new(2, 1 << 16, 1, |_| ());
    let Receiver { jfr, target, .. } = world.receiver();
    let jfc0 = world.jfc(0);
    let rol = world.jetty(0, JettyConfig { service: ServiceMode::Rol, ..JettyConfig::new(jfc0, None) });
    let other_jfc = world.jfc(0);
    let other = world.jetty(0, JettyConfig { service: ServiceMode::Rol, ..JettyConfig::new(other_jfc, None) });
    let segment = world.import_all(0, 1);
    let wr = write(&world, 0, segment, 1000, 8);
    world.post_sound(0, other, wr);
    world.run_for(Nanos(1_000_000));
    assert_eq!(world.poll(0, other_jfc).len(), 1);
    world.recv(1, jfr, 0, 64, 1);
    for i in 0..60 {
        let wr = send(&world, 0, target, i);
        world.post_sound(0, rol, wr);
    }
    world.run_for(Nanos(1_000_000));
    let wr = write(&world, 0, segment, 1000, 8);
    world.post_sound(0, other, wr);
    world.run_for(Nanos(20_000_000));
    let crs = world.poll(0, other_jfc);
    assert_eq!(crs.len(), 1, "another Jetty's WRITE waits for a Jetty that is not ready");
}

#[test]
fn a_loss_of_one_jetty_holds_no_completion_of_another_rol_jetty() {
    for service in [ServiceMode::Roi, ServiceMode::Rol] {
        let mut world = World::new(2, 1 << 16, 1, |_| ());
        let (jfc_a, jfc_b) = (world.jfc(0), world.jfc(0));
        let a = world.jetty(0, JettyConfig::new(jfc_a, None));
        let b = world.jetty(0, JettyConfig { service, ..JettyConfig::new(jfc_b, None) });
        let segment = world.import_all(0, 1);
        let wr = write(&world, 0, segment, 1000, 8);
        world.post_sound(0, b, wr);
        world.run_for(Nanos(1_000_000));
        assert_eq!(world.poll(0, jfc_b).len(), 1);
        world.filter = Some(Box::new(move |from, _, bytes| {
            let ta = UbPacket::parse(bytes, &Dialect::BURST).expect("a packet").head.ta;
            from == 0 && matches!(ta, Some(TaHeader::Request(r)) if r.base.rc_id == a)
        }));
        let wr = write(&world, 0, segment, 2000, 8);
        world.post_sound(0, a, wr);
        let wr = write(&world, 0, segment, 1000, 8);
        world.post_sound(0, b, wr);
        world.run_for(Nanos(20_000));
        let early = world.poll(0, jfc_b).len();
        world.run_for(Nanos(1_000_000));
        world.filter = None;
        while world.poll(0, jfc_b).len() + early == 0 {
            world.run_for(Nanos(1000));
        }
        assert_eq!(early, 1, "{service:?}");
    }
}

#[test]
fn a_request_whose_completion_waited_is_handed_back_with_its_outcome() {
    let mut world = World::new(2, 1 << 16, 1, |_| ());
    let Receiver { target, .. } = world.receiver();
    let jfc0 = world.jfc(0);
    let jetty = world.jetty(0, JettyConfig { rnr_retry: 5, ..JettyConfig::new(jfc0, None) });
    let segment = world.import_all(0, 1);
    let first = JfsWr { order: OrderTag::Relaxed, ..send(&world, 0, target, 10) };
    let strong =
        JfsWr { order: OrderTag::Strong, completion_order: true, user_ctx: 11, ..write(&world, 0, segment, 0, 8) };
    let plain = JfsWr { completion_order: true, user_ctx: 12, ..write(&world, 0, segment, 8, 8) };
    for wr in [first, strong, plain] {
        world.post(0, jetty, wr).expect("accepted");
    }
    world.run_for(Nanos(10_000));
    world.with(0, |node, env| node.modify_jetty(jetty, JettyState::Error, env.fx)).expect("ready");
    world.run_for(Nanos(3_000_000_000));
    let mut seen: Vec<_> = world.poll(0, jfc0).iter().map(|cr| (cr.user_ctx, cr.status)).collect();
    while let Some(cr) = world.hosts[0].node.flush_jetty(jetty) {
        seen.push((cr.user_ctx, cr.status));
    }
    seen.extend(world.poll(0, jfc0).iter().map(|cr| (cr.user_ctx, cr.status)));
    assert!(seen.iter().any(|s| s.0 == 12), "the request that was executed is reported");
    assert_eq!(world.hosts[0].node.delete_jetty(jetty), Ok(()));
}

#[test]
fn a_jetty_in_error_does_not_wait_for_its_peer() {
    let mut world = World::new(2, 1 << 16, 1, |_| ());
    let Receiver { target, .. } = world.receiver();
    let jfc0 = world.jfc(0);
    let jetty = world.jetty(0, JettyConfig::new(jfc0, None));
    let wr = send(&world, 0, target, 10);
    world.post_sound(0, jetty, wr);
    world.run_for(Nanos(1_000_000));
    world.with(0, |node, env| node.modify_jetty(jetty, JettyState::Error, env.fx)).expect("ready");
    world.run_for(Nanos(10_000_000_000));
    assert_eq!(world.hosts[0].node.delete_jetty(jetty), Ok(()));
}
