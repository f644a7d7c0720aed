//! Names with values, in the order in which they came.
//!
//! A handful each: a list is small code, and `burst` is to stay small (the wheel is to have at most 12 MB).

use serde::{Deserialize, Serialize};

/// Names with values. A name stands once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pairs<V>(Vec<(String, V)>);

impl<V> Default for Pairs<V> {
    fn default() -> Self {
        Pairs(Vec::new())
    }
}

impl<V> Pairs<V> {
    /// The value of a name.
    pub fn get(&self, name: &str) -> Option<&V> {
        self.0.iter().find(|(own, _)| own == name).map(|(_, value)| value)
    }

    /// Sets the value of a name.
    pub fn insert(&mut self, name: &str, value: V) {
        match self.0.iter_mut().find(|(own, _)| own == name) {
            Some((_, old)) => *old = value,
            None => self.0.push((name.to_owned(), value)),
        }
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &V)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value))
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_stands_once() {
        let mut pairs = Pairs::default();
        for (name, value) in [("a", 1), ("b", 2), ("a", 3)] {
            pairs.insert(name, value);
        }
        assert_eq!((pairs.get("a"), pairs.get("b"), pairs.get("c"), pairs.len()), (Some(&3), Some(&2), None, 2));
        assert_eq!(pairs.iter().collect::<Vec<_>>(), [("a", &3), ("b", &2)]);
    }
}
