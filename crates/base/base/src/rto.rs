//! Which waits loss recovery has.

use core::str::FromStr;

/// The shortest waits of loss recovery, and which rules they follow; crate `transport` has the times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RtoMode {
    /// `shared`: for peers that sleep and share their processors, so that answers come milliseconds late: time-outs of 1 ms
    /// and more, probes after 200 us and more.
    #[default]
    Shared,
    /// `dedicated`: for peers that do not: time-outs of 100 us and more, probes after 20 us and more.
    Dedicated,
    /// `irn`: the time-outs of IRN (Mittal et al., SIGCOMM 2018), for simulations that compare with it: 100 us while at most
    /// three packets are in flight, else 320 us, and no probes. Selective repeat only. Unlike there they are doubled while the
    /// peer says nothing.
    Irn,
}

impl RtoMode {
    /// The words of the modes, in order.
    pub const NAMES: &'static [&'static str] = &["shared", "dedicated", "irn"];
    /// The words of a host's configuration: `irn` is for simulations.
    pub const SETTINGS: &'static [&'static str] = Self::NAMES.split_at(2).0;
}

impl FromStr for RtoMode {
    type Err = ();

    /// # Errors
    /// The text is none of [`RtoMode::NAMES`].
    fn from_str(text: &str) -> Result<RtoMode, ()> {
        match text {
            "shared" => Ok(RtoMode::Shared),
            "dedicated" => Ok(RtoMode::Dedicated),
            "irn" => Ok(RtoMode::Irn),
            _ => Err(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::RtoMode;

    #[test]
    fn each_word_has_a_mode_of_its_own() {
        let modes: Vec<_> = RtoMode::NAMES.iter().map(|name| name.parse()).collect();
        assert_eq!(modes, [Ok(RtoMode::Shared), Ok(RtoMode::Dedicated), Ok(RtoMode::Irn)]);
        assert_eq!("IRN".parse::<RtoMode>(), Err(()));
    }
}
