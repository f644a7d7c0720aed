//! The shape of a type, as serde sees it: fields, variants and primitive types by name, in the order in which they are encoded.
//!
//! [`Tracer`] is a `Deserializer` without input. It gives each visitor a made-up value (a number that no field has had, one
//! element for a sequence, the next unexplored variant for an enumeration) and writes down what it was asked for. Repeated
//! until every variant was given once, this describes a type completely, and gives a sample of each variant.

use serde::de::value::StrDeserializer;
use serde::de::{
    self, DeserializeOwned, DeserializeSeed, EnumAccess, IntoDeserializer, SeqAccess, VariantAccess, Visitor,
};
use std::collections::{HashMap, HashSet};

/// The failure while a value was generated.
pub type Error = de::value::Error;

/// The variants of each enumeration that were generated, and the text of the shape.
#[derive(Default)]
pub struct Tracer {
    explored: HashMap<&'static str, (usize, usize)>,
    /// The enumerations inside a variant, so that a variant is given again until those are explored.
    inside: HashMap<(&'static str, usize), HashSet<&'static str>>,
    /// The variants that are being made up, outermost first.
    path: Vec<(&'static str, usize)>,
    text: String,
    number: u8,
}

impl Tracer {
    fn write(&mut self, word: &str) {
        self.text.push_str(word);
        self.text.push(' ');
    }

    /// A number that differs from those of the fields before; never so large that a length or a count becomes too large.
    fn number(&mut self) -> u8 {
        self.number = self.number % 100 + 1;
        self.number
    }

    fn is_complete(&self) -> bool {
        self.explored.values().all(|(next, count)| next == count)
    }

    /// The variant to give: the next one that was never given, else one with such a variant inside, else the first.
    fn choose(&mut self, name: &'static str, count: usize) -> usize {
        for outer in &self.path {
            self.inside.entry(*outer).or_default().insert(name);
        }
        let (next, known) = self.explored.entry(name).or_insert((0, count));
        assert_eq!(*known, count, "two enumerations are named {name}");
        if *next < count {
            *next += 1;
            return *next - 1;
        }
        let incomplete = |inner: &&'static str| self.explored[*inner].0 < self.explored[*inner].1;
        let leads_on = |index: &usize| self.inside.get(&(name, *index)).is_some_and(|all| all.iter().any(incomplete));
        (0..count).find(leads_on).unwrap_or(0)
    }
}

/// The shape of `T`, and one sample of each variant in it.
pub fn shape_of<T: DeserializeOwned>() -> (String, Vec<T>) {
    let (mut tracer, mut samples) = (Tracer::default(), Vec::new());
    loop {
        samples.push(T::deserialize(&mut tracer).expect("a made-up value is taken"));
        tracer.write("\n");
        tracer.number = 0;
        if tracer.is_complete() {
            return (tracer.text, samples);
        }
        assert!(samples.len() < 10_000, "there is no end of variants");
    }
}

macro_rules! numbers {
    ($($method:ident $visit:ident $type:ident;)+) => {
        $(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
            self.write(stringify!($type));
            visitor.$visit(self.number() as $type)
        })+
    };
}

impl<'de> de::Deserializer<'de> for &mut Tracer {
    type Error = Error;

    numbers! {
        deserialize_i8 visit_i8 i8; deserialize_i16 visit_i16 i16; deserialize_i32 visit_i32 i32; deserialize_i64 visit_i64 i64;
        deserialize_u8 visit_u8 u8; deserialize_u16 visit_u16 u16; deserialize_u32 visit_u32 u32; deserialize_u64 visit_u64 u64;
        deserialize_f32 visit_f32 f32; deserialize_f64 visit_f64 f64; deserialize_char visit_char char;
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.write("bool");
        visitor.visit_bool(true)
    }
    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_string(visitor)
    }
    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.write("string");
        visitor.visit_str("word")
    }
    fn deserialize_bytes<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.write("bytes");
        visitor.visit_bytes(b"bytes")
    }
    fn deserialize_byte_buf<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_bytes(visitor)
    }
    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.write("option");
        visitor.visit_some(self)
    }
    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.write("unit");
        visitor.visit_unit()
    }
    fn deserialize_unit_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_unit(visitor)
    }
    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }
    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.write("sequence");
        visitor.visit_seq(Elements { tracer: self, left: 1 })
    }
    fn deserialize_tuple<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, Error> {
        self.write(&format!("tuple {len}"));
        visitor.visit_seq(Elements { tracer: self, left: len })
    }
    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.deserialize_tuple(len, visitor)
    }
    fn deserialize_map<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Error> {
        Err(de::Error::custom("no message has a map"))
    }
    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.write(&format!("struct {fields:?}"));
        visitor.visit_seq(Elements { tracer: self, left: fields.len() })
    }
    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        let index = self.choose(name, variants.len());
        self.write(&format!("variant {index} of {} {}", variants.len(), variants[index]));
        self.path.push((name, index));
        let made = visitor.visit_enum(Chosen { tracer: self, variant: variants[index] });
        self.path.pop();
        made
    }
    fn deserialize_identifier<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Error> {
        Err(de::Error::custom("identifiers are given with their variants"))
    }
    fn deserialize_ignored_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Error> {
        Err(de::Error::custom("nothing is ignored"))
    }
    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Error> {
        Err(de::Error::custom("postcard does not describe itself"))
    }
    fn is_human_readable(&self) -> bool {
        false
    }
}

struct Elements<'a> {
    tracer: &'a mut Tracer,
    left: usize,
}

impl<'de> SeqAccess<'de> for Elements<'_> {
    type Error = Error;
    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, Error> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        seed.deserialize(&mut *self.tracer).map(Some)
    }
}

struct Chosen<'a> {
    tracer: &'a mut Tracer,
    variant: &'static str,
}

impl<'de, 'a> EnumAccess<'de> for Chosen<'a> {
    type Error = Error;
    type Variant = Content<'a>;
    fn variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<(S::Value, Content<'a>), Error> {
        let name: StrDeserializer<'_, Error> = self.variant.into_deserializer();
        Ok((seed.deserialize(name)?, Content { tracer: self.tracer }))
    }
}

/// The contents of a variant.
pub struct Content<'a> {
    tracer: &'a mut Tracer,
}

impl<'de> VariantAccess<'de> for Content<'_> {
    type Error = Error;
    fn unit_variant(self) -> Result<(), Error> {
        Ok(())
    }
    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, Error> {
        seed.deserialize(self.tracer)
    }
    fn tuple_variant<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, Error> {
        de::Deserializer::deserialize_tuple(self.tracer, len, visitor)
    }
    fn struct_variant<V: Visitor<'de>>(self, fields: &'static [&'static str], visitor: V) -> Result<V::Value, Error> {
        de::Deserializer::deserialize_struct(self.tracer, "", fields, visitor)
    }
}
