//! Random numbers of a host: keys, queue pair numbers and tokens that other programs must not guess.
//!
//! A daemon takes them from the system. A simulation takes them from a seed, so that a run can be repeated.

use burst_base::rng::Rng;

/// Where a host takes random numbers from.
#[derive(Clone, Debug)]
pub enum RandomSource {
    /// The system's generator (getrandom).
    System,
    /// A seeded generator. Its numbers can be guessed: for simulations and tests only.
    Seeded(Rng),
}

impl RandomSource {
    /// The system's generator, or a generator with `seed`.
    pub fn new(seed: Option<u64>) -> RandomSource {
        seed.map_or(RandomSource::System, |seed| RandomSource::Seeded(Rng::new(seed)))
    }

    /// 64 random bits.
    ///
    /// # Errors
    /// A sentence when the system has no random numbers.
    pub fn number(&mut self) -> Result<u64, String> {
        match self {
            RandomSource::Seeded(rng) => Ok(rng.next_u64()),
            RandomSource::System => {
                let mut bytes = [0; 8];
                match rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty()) {
                    Ok(8) => Ok(u64::from_ne_bytes(bytes)),
                    _ => Err("the system gives no random numbers".into()),
                }
            }
        }
    }

    /// The source as a function, for numbers of which each is needed at once.
    ///
    /// # Panics
    /// The function panics if the system has no random numbers. That cannot happen to a host that has started, because the start
    /// needs them, too.
    pub fn into_fn(mut self) -> Box<dyn FnMut() -> u64 + Send> {
        Box::new(move || self.number().expect("the system had random numbers at the start"))
    }

    /// A source for another user, whose numbers are independent of this source's.
    #[must_use]
    pub fn fork(&mut self) -> RandomSource {
        match self {
            RandomSource::System => RandomSource::System,
            RandomSource::Seeded(rng) => RandomSource::Seeded(rng.fork()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_numbers_and_the_system_does_not() {
        let numbers = |seed| {
            let mut source = RandomSource::new(seed);
            (0..4).map(|_| source.number().expect("a number")).collect::<Vec<_>>()
        };
        assert_eq!(numbers(Some(7)), numbers(Some(7)));
        assert_ne!(numbers(Some(7)), numbers(Some(8)));
        assert_ne!(numbers(None), numbers(None));
    }

    #[test]
    fn a_function_gives_the_numbers_of_its_source() {
        let mut source = RandomSource::new(Some(7));
        let mut function = source.clone().into_fn();
        (0..4).for_each(|_| assert_eq!(function(), source.number().expect("a number")));
        let (mut one, mut other) = (RandomSource::System.into_fn(), RandomSource::System.into_fn());
        assert_ne!(one(), other());
    }

    #[test]
    fn a_fork_is_independent() {
        let mut source = RandomSource::new(Some(7));
        let mut fork = source.fork();
        assert_ne!(source.number(), fork.number());
    }
}
