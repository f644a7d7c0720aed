//! A growing table whose keys detect reuse: connections come and go, and events and lists may name one that has gone.

/// Bits of an index, and of the generation, which differs for objects that had the same index one after the other.
const INDEX_BITS: u32 = 24;
const GENERATION_BITS: u32 = 20;

/// Names an object of a [`ConnTable`] for as long as it is there, and no other one for 2^20 insertions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TableKey {
    index: u32,
    generation: u32,
}

impl TableKey {
    /// Bits of [`TableKey::to_bits`].
    pub(super) const BITS: u32 = INDEX_BITS + GENERATION_BITS;

    pub(super) fn to_bits(self) -> u64 {
        u64::from(self.generation) << INDEX_BITS | u64::from(self.index)
    }

    /// The key of which [`TableKey::to_bits`] gave the low bits.
    pub(super) fn from_bits(bits: u64) -> Self {
        let low = |bits: u64, count: u32| (bits & ((1 << count) - 1)) as u32;
        Self { index: low(bits, INDEX_BITS), generation: low(bits >> INDEX_BITS, GENERATION_BITS) }
    }
}

/// Generations of keys. All tables of a worker use one sequence: a link and its table take the place of earlier ones, whose keys
/// may still be in lists.
#[derive(Debug, Default)]
pub(super) struct Generations(u32);

impl Generations {
    fn take(&mut self) -> u32 {
        self.0 = (self.0 + 1) & ((1 << GENERATION_BITS) - 1);
        self.0
    }
}

/// Objects by key. A free place is used again at once.
#[derive(Debug)]
pub(super) struct ConnTable<T> {
    places: Vec<Option<(TableKey, T)>>,
    free: Vec<u32>,
}

/// The objects of a table that has ended.
pub(super) type TakenObjects<T> = std::iter::Flatten<std::vec::IntoIter<Option<(TableKey, T)>>>;

impl<T> Default for ConnTable<T> {
    fn default() -> Self {
        Self { places: Vec::new(), free: Vec::new() }
    }
}

impl<T> ConnTable<T> {
    /// Adds an object.
    pub(super) fn insert(&mut self, generations: &mut Generations, object: T) -> TableKey {
        let index = self.free.pop().unwrap_or_else(|| {
            self.places.push(None);
            (self.places.len() - 1) as u32
        });
        assert!(index < 1 << INDEX_BITS, "descriptors end long before");
        let key = TableKey { index, generation: generations.take() };
        let before = self.places[index as usize].replace((key, object));
        debug_assert!(before.is_none(), "a free place is empty");
        key
    }

    /// The object, if it is still there.
    pub(super) fn get(&self, key: TableKey) -> Option<&T> {
        self.places.get(key.index as usize)?.as_ref().filter(|(own, _)| *own == key).map(|(_, object)| object)
    }

    /// The object, if it is still there.
    pub(super) fn get_mut(&mut self, key: TableKey) -> Option<&mut T> {
        self.places.get_mut(key.index as usize)?.as_mut().filter(|(own, _)| *own == key).map(|(_, object)| object)
    }

    /// Takes an object out.
    pub(super) fn remove(&mut self, key: TableKey) -> Option<T> {
        let (_, object) = self.places.get_mut(key.index as usize)?.take_if(|(own, _)| *own == key)?;
        self.free.push(key.index);
        Some(object)
    }

    /// How many objects there are.
    pub(super) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// All objects, by index.
    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.places.iter().flatten().map(|(_, object)| object)
    }

    /// All objects, by index.
    pub(super) fn into_all(self) -> TakenObjects<T> {
        self.places.into_iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_names_its_object_only() {
        let (mut table, mut generations) = (ConnTable::default(), Generations::default());
        let (first, second) = (table.insert(&mut generations, 'a'), table.insert(&mut generations, 'b'));
        assert_eq!((table.get(first), table.get(second)), (Some(&'a'), Some(&'b')));
        assert_eq!(table.remove(first), Some('a'));
        assert_eq!((table.remove(first), table.get(first), table.len()), (None, None, 1));
        let third = table.insert(&mut generations, 'c');
        assert_eq!((third.index, table.get(first)), (first.index, None));
        assert_eq!(table.get_mut(third), Some(&mut 'c'));
        assert_eq!(table.iter().collect::<String>(), "cb");
        assert_eq!(TableKey::from_bits(third.to_bits() | 3 << TableKey::BITS), third);
        assert_eq!(table.into_all().collect::<Vec<_>>(), [(third, 'c'), (second, 'b')]);
    }

    #[test]
    fn a_table_that_takes_the_place_of_another_has_other_keys() {
        let mut generations = Generations::default();
        let before = ConnTable::default().insert(&mut generations, 'a');
        let mut table = ConnTable::default();
        let key = table.insert(&mut generations, 'b');
        assert_eq!((key.index, table.get(before), table.get(key)), (before.index, None, Some(&'b')));
    }

    #[test]
    fn generations_wrap() {
        let (mut table, mut generations) = (ConnTable::default(), Generations((1 << GENERATION_BITS) - 1));
        let key = table.insert(&mut generations, ());
        assert_eq!((key.generation, TableKey::from_bits(key.to_bits())), (0, key));
        assert!(table.get(key).is_some());
    }
}
