//! Random numbers of a host: keys, queue pair numbers and tokens that other programs must not guess.
//!
//! A daemon takes them from the system. A simulation takes them from a seed, so that a run can be repeated.

use burst_base::rng::Rng;

/// Numbers that are taken from the system at a time. One system call for each would be a fifth of what a queue pair costs in
/// process.
const ASKED: usize = 32;

/// Numbers of the system's generator that were not used yet. A copy has none: no number is used twice.
#[derive(Default)]
pub struct SystemNumbers {
    numbers: [u64; ASKED],
    left: usize,
}

impl Clone for SystemNumbers {
    fn clone(&self) -> SystemNumbers {
        SystemNumbers::default()
    }
}

impl std::fmt::Debug for SystemNumbers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SystemNumbers").finish_non_exhaustive()
    }
}

impl SystemNumbers {
    fn next(&mut self) -> Result<u64, String> {
        if self.left == 0 {
            let mut bytes = [0; ASKED * 8];
            // Up to 256 bytes come whole.
            match rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty()) {
                Ok(count) if count == bytes.len() => {}
                _ => return Err("the system gives no random numbers".into()),
            }
            let (eights, _) = bytes.as_chunks();
            self.numbers.iter_mut().zip(eights).for_each(|(number, eight)| *number = u64::from_ne_bytes(*eight));
            self.left = ASKED;
        }
        self.left -= 1;
        // Forgotten here, as it is known elsewhere from now on.
        Ok(std::mem::take(&mut self.numbers[self.left]))
    }
}

/// Where a host takes random numbers from.
#[derive(Clone, Debug)]
pub enum RandomSource {
    /// The system's generator (getrandom).
    System(Box<SystemNumbers>),
    /// A seeded generator. Its numbers can be guessed: for simulations and tests only.
    Seeded(Rng),
}

impl RandomSource {
    /// The system's generator, or a generator with `seed`.
    pub fn new(seed: Option<u64>) -> RandomSource {
        seed.map_or_else(RandomSource::system, |seed| RandomSource::Seeded(Rng::new(seed)))
    }

    fn system() -> RandomSource {
        RandomSource::System(Box::default())
    }

    /// 64 random bits.
    ///
    /// # Errors
    /// A sentence when the system has no random numbers.
    pub fn number(&mut self) -> Result<u64, String> {
        match self {
            RandomSource::Seeded(rng) => Ok(rng.next_u64()),
            RandomSource::System(numbers) => numbers.next(),
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
            RandomSource::System(_) => RandomSource::system(),
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
        let (mut one, mut other) = (RandomSource::system().into_fn(), RandomSource::system().into_fn());
        assert_ne!(one(), other());
    }

    #[test]
    fn the_systems_numbers_are_used_once_also_by_copies() {
        let mut source = RandomSource::new(None);
        let mut seen = std::collections::HashSet::from([source.number()]);
        let mut copies = [source.clone(), source.fork(), source];
        let drawn = copies.iter_mut().flat_map(|s| (0..3 * ASKED).map(|_| s.number()).collect::<Vec<_>>());
        assert!(drawn.into_iter().all(|number| number.is_ok() && seen.insert(number)));
    }

    #[test]
    fn a_fork_is_independent() {
        let mut source = RandomSource::new(Some(7));
        let mut fork = source.fork();
        assert_ne!(source.number(), fork.number());
    }
}
