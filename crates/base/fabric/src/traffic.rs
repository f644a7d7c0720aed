//! Traffic of publications: sizes of messages, and permutations.
//!
//! A table of sizes has cumulative shares, linear between points; two points of one size are a step.

use burst_base::rng::Rng;

/// A published table.
#[derive(Clone, Copy, Debug)]
pub struct PublishedTable {
    /// Its name in scenarios.
    pub name: &'static str,
    /// Bytes, and the share of messages that are at most that long, in percent.
    pub steps: &'static [(u64, f64)],
}

/// The published tables.
pub const TABLES: [PublishedTable; 4] = [
    // ns2-xpass, workload_cachefollower.
    PublishedTable {
        name: "cache-follower",
        steps: &[
            (70, 1.0),
            (150, 1.5),
            (150, 4.0),
            (300, 8.0),
            (350, 10.0),
            (350, 19.0),
            (450, 20.0),
            (500, 28.0),
            (600, 30.0),
            (700, 35.0),
            (1_100, 40.0),
            (2_000, 42.0),
            (10_000, 48.0),
            (30_000, 50.0),
            (100_000, 52.0),
            (200_000, 60.0),
            (400_000, 68.0),
            (600_000, 70.0),
            (1_500_000, 70.1),
            (2_000_000, 80.0),
            (2_400_000, 90.0),
            (3_000_000, 100.0),
        ],
    },
    // HPCC's repository, WebSearch_distribution.
    PublishedTable {
        name: "web-search",
        steps: &[
            (1, 0.0),
            (10_000, 15.0),
            (20_000, 20.0),
            (30_000, 30.0),
            (50_000, 40.0),
            (80_000, 53.0),
            (200_000, 60.0),
            (1_000_000, 70.0),
            (2_000_000, 80.0),
            (5_000_000, 90.0),
            (10_000_000, 97.0),
            (30_000_000, 100.0),
        ],
    },
    // HPCC's repository, FbHdp_distribution.
    PublishedTable {
        name: "hadoop",
        steps: &[
            (1, 0.0),
            (100, 1.0),
            (200, 2.0),
            (300, 5.0),
            (350, 15.0),
            (400, 20.0),
            (500, 30.0),
            (600, 40.0),
            (700, 50.0),
            (1_000, 60.0),
            (2_000, 67.0),
            (7_000, 70.0),
            (30_000, 72.0),
            (50_000, 82.0),
            (80_000, 87.0),
            (120_000, 90.0),
            (300_000, 95.0),
            (1_000_000, 97.5),
            (2_000_000, 99.0),
            (10_000_000, 100.0),
        ],
    },
    // conweave's repository, AliStorage2019.
    PublishedTable {
        name: "ali-storage",
        steps: &[
            (1, 0.0),
            (4_000, 22.93),
            (8_000, 69.21),
            (16_000, 80.61),
            (32_000, 90.47),
            (64_000, 93.53),
            (128_000, 96.77),
            (256_000, 97.53),
            (2_000_000, 100.0),
        ],
    },
];

/// A distribution of sizes.
#[derive(Clone, Debug, PartialEq)]
pub struct SizeTable {
    /// Bytes, and the share of messages that are at most that long, from 0 to 1.
    steps: Vec<(u64, f64)>,
}

impl SizeTable {
    /// A table of bytes and cumulative shares, the last of which is 1.
    ///
    /// # Errors
    /// A sentence that names the first row which is less than the one before.
    pub fn new(steps: &[(u64, f64)]) -> Result<SizeTable, String> {
        if let Some(at) =
            steps.windows(2).position(|w| w[0].0 > w[1].0 || w[0].1.partial_cmp(&w[1].1).is_none_or(|o| o.is_gt()))
        {
            return Err(format!("row {} is less than row {}", at + 2, at + 1));
        }
        match steps.last() {
            Some((_, share)) if (*share - 1.0).abs() < 1e-9 => Ok(SizeTable { steps: steps.to_vec() }),
            _ => Err("the last row does not have the share 1".into()),
        }
    }

    /// The published table of this name.
    pub fn published(name: &str) -> Option<SizeTable> {
        let table = TABLES.iter().find(|table| table.name == name)?;
        Some(SizeTable { steps: table.steps.iter().map(|(bytes, percent)| (*bytes, percent / 100.0)).collect() })
    }

    /// The size below which lies this share of messages, `share` from 0 to 1.
    pub fn sample(&self, share: f64) -> u64 {
        let at = self.steps.partition_point(|step| step.1 < share);
        let Some((bytes, end)) = self.steps.get(at).copied() else { return self.steps.last().map_or(1, |step| step.0) };
        let Some((low, begin)) = at.checked_sub(1).map(|before| self.steps[before]) else { return bytes };
        if end <= begin {
            return bytes;
        }
        low + ((bytes - low) as f64 * ((share - begin) / (end - begin))) as u64
    }

    /// The mean in bytes.
    pub fn mean(&self) -> f64 {
        let first = self.steps.first().map_or(0.0, |step| step.0 as f64 * step.1);
        first + self.steps.windows(2).map(|w| (w[0].0 + w[1].0) as f64 / 2.0 * (w[1].1 - w[0].1)).sum::<f64>()
    }

    /// The squared coefficient of variation: variance over the square of the mean.
    pub fn cv_squared(&self) -> f64 {
        let second = |a: f64, b: f64| (a * a + a * b + b * b) / 3.0;
        let first = self.steps.first().map_or(0.0, |step| (step.0 as f64) * (step.0 as f64) * step.1);
        let pairs = self.steps.windows(2).map(|w| second(w[0].0 as f64, w[1].0 as f64) * (w[1].1 - w[0].1));
        (first + pairs.sum::<f64>()) / (self.mean() * self.mean()) - 1.0
    }
}

/// To which host each of `hosts` hosts sends: a permutation in which no host has itself. It is one cycle, all cycles being
/// equally likely (S. Sattolo, Information Processing Letters 22, 1986).
pub fn permutation(hosts: u32, rng: &mut Rng) -> Vec<u32> {
    let mut all: Vec<u32> = (0..hosts).collect();
    for at in (1..all.len()).rev() {
        // The remainder prefers none of so few hosts by more than 2^-50.
        all.swap(at, (rng.next_u64() % at as u64) as usize);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permutations_have_no_fixed_points() {
        let mut rng = Rng::new(1);
        for hosts in [2, 3, 7, 64, 1_000] {
            let all = permutation(hosts, &mut rng);
            assert!(all.iter().enumerate().all(|(from, to)| from as u32 != *to), "{all:?}");
            let mut sorted = all;
            sorted.sort_unstable();
            assert_eq!(sorted, (0..hosts).collect::<Vec<_>>());
        }
    }

    #[test]
    fn all_cycles_are_equally_likely() {
        let mut rng = Rng::new(2);
        let mut seen = std::collections::BTreeMap::new();
        for _ in 0..6_000 {
            *seen.entry(permutation(4, &mut rng)).or_insert(0u32) += 1;
        }
        // Six cycles of four hosts, each 1,000 times with a deviation of 29.
        assert!(seen.len() == 6 && seen.values().all(|count| count.abs_diff(1_000) < 150), "{seen:?}");
    }

    #[test]
    fn means_are_the_published_ones() {
        for (name, mean, cv_squared) in [
            ("cache-follower", 712_574.0, 2.03),
            ("web-search", 1_711_250.0, 5.4),
            ("hadoop", 120_421.0, 31.0),
            ("ali-storage", 40_870.0, 22.0),
        ] {
            let table = SizeTable::published(name).expect("a table");
            assert!((table.mean() / mean - 1.0).abs() < 1e-3, "{name}: {}", table.mean());
            assert!((table.cv_squared() / cv_squared - 1.0).abs() < 0.03, "{name}: {}", table.cv_squared());
        }
    }

    #[test]
    fn samples_have_the_mean() {
        let table = SizeTable::published("cache-follower").expect("a table");
        let mean = (0..100_000).map(|k| table.sample((f64::from(k) + 0.5) / 1e5) as f64).sum::<f64>() / 1e5;
        assert!((mean / table.mean() - 1.0).abs() < 1e-3, "{mean}");
        assert_eq!((table.sample(0.0), table.sample(1.0)), (70, 3_000_000));
    }

    #[test]
    fn a_table_that_falls_is_refused() {
        assert_eq!(SizeTable::new(&[(10, 0.5), (5, 1.0)]).unwrap_err(), "row 2 is less than row 1");
        assert_eq!(SizeTable::new(&[(10, 0.5), (20, 0.4), (30, 1.0)]).unwrap_err(), "row 2 is less than row 1");
        assert!(SizeTable::new(&[(10, 0.5)]).is_err() && SizeTable::new(&[(10, f64::NAN), (20, 1.0)]).is_err());
    }
}
