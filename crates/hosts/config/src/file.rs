//! The TOML file: found, read, flattened to `table.key`, and checked for unknown keys.

use crate::Env;
use crate::keys::KEYS;
use crate::value::ValueKind;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// System-wide file.
const SYSTEM_FILE: &str = "/etc/burst/burstd.toml";
/// Maximum size of a file in bytes; a configuration needs a fraction of it.
const FILE_MAX: u64 = 1 << 20;

/// A file's settings, as text; empty when there is no file.
#[derive(Debug, Default)]
pub struct ConfigFile {
    path: String,
    values: BTreeMap<String, Vec<String>>,
}

impl ConfigFile {
    /// The name of the file and the values that it sets a key to.
    pub fn get(&self, name: &str) -> Option<(&str, Vec<String>)> {
        self.values.get(name).map(|v| (self.path.as_str(), v.clone()))
    }
}

/// Reads the chosen file (which must exist), else the user's, else the system's, if there.
pub fn read(chosen: Option<PathBuf>, env: Env) -> Result<ConfigFile, String> {
    if let Some(path) = chosen {
        return read_file(&path);
    }
    let directory = env("XDG_CONFIG_HOME").map(PathBuf::from);
    let directory = directory.or_else(|| env("HOME").map(|h| Path::new(&h).join(".config")));
    let user = directory.map(|h| h.join("burst/burstd.toml"));
    let found = user.into_iter().chain([PathBuf::from(SYSTEM_FILE)]).find(|p| p.is_file());
    found.map_or_else(|| Ok(ConfigFile::default()), |path| read_file(&path))
}

fn read_file(path: &Path) -> Result<ConfigFile, String> {
    let shown = path.display();
    let length = std::fs::metadata(path).map_err(|e| format!("{shown}: {e}"))?.len();
    if length > FILE_MAX {
        return Err(format!("{shown}: longer than {FILE_MAX} bytes"));
    }
    let text = std::fs::read_to_string(path).map_err(|e| format!("{shown}: {e}"))?;
    let values = parse(&text).map_err(|why| format!("{shown}: {why}"))?;
    Ok(ConfigFile { path: shown.to_string(), values })
}

/// Flattens the TOML tables and refuses keys that are not in [`KEYS`].
fn parse(text: &str) -> Result<BTreeMap<String, Vec<String>>, String> {
    let table: toml::Table = text.parse().map_err(|e: toml::de::Error| {
        let line = e.span().map_or(1, |s| text[..s.start].matches('\n').count() + 1);
        format!("line {line}: {}", e.message().lines().next().unwrap_or("not TOML"))
    })?;
    let mut flat = BTreeMap::new();
    for (name, value) in &table {
        match value {
            toml::Value::Table(inner) => {
                for (key, value) in inner {
                    flat.insert(format!("{name}.{key}"), texts(&format!("{name}.{key}"), value)?);
                }
            }
            _ => drop(flat.insert(name.clone(), texts(name, value)?)),
        }
    }
    match flat.keys().find(|k| !KEYS.iter().any(|key| key.name == k.as_str())) {
        None => Ok(flat),
        Some(wrong) => {
            if let Some(sentence) = crate::removed::refusal(wrong, wrong, None) {
                return Err(sentence);
            }
            let near = burst_grammar::nearest(wrong, KEYS.iter().map(|k| k.name)).unwrap_or_default();
            Err(format!("unknown key {wrong:?}; the nearest valid one is {near:?}"))
        }
    }
}

/// A value as the text that a flag would have.
fn texts(name: &str, value: &toml::Value) -> Result<Vec<String>, String> {
    let one = |v: &toml::Value| match v {
        toml::Value::String(s) => Ok(s.clone()),
        toml::Value::Integer(n) => Ok(n.to_string()),
        _ => Err(format!("{name}: a string or a whole number is expected")),
    };
    let many = KEYS.iter().any(|k| k.name == name && k.many);
    let switch = KEYS.iter().any(|k| k.name == name && matches!(k.kind, ValueKind::Switch));
    match value {
        toml::Value::Boolean(on) if switch => Ok(vec![if *on { "on" } else { "off" }.to_owned()]),
        toml::Value::Array(items) if many && !items.is_empty() => items.iter().map(one).collect(),
        toml::Value::Array(_) if many => Err(format!("{name}: the list is empty")),
        toml::Value::Table(_) => {
            let near = burst_grammar::nearest(name, KEYS.iter().map(|k| k.name)).unwrap_or_default();
            Err(format!("unknown key {name:?}; the nearest valid one is {near:?}"))
        }
        other => one(other).map(|text| vec![text]),
    }
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn flat_and_nested_keys() {
        let flat = parse("workers = 2\nport = [\"udp\", \"udp:dev=eth0\"]\n[log]\nlevel = \"warn\"\n").unwrap();
        assert_eq!(flat["workers"], ["2"]);
        assert_eq!(flat["port"], ["udp", "udp:dev=eth0"]);
        assert_eq!(flat["log.level"], ["warn"]);
    }

    #[test]
    fn wrong_keys_name_the_nearest() {
        for (text, wrong, near) in [
            ("wrokers = 2", "wrokers", "workers"),
            ("[log]\nlevle = \"info\"", "log.levle", "log.level"),
            ("[log.level]\nx = 1", "log.level", "log.level"),
        ] {
            let why = parse(text).unwrap_err();
            assert!(why.contains(wrong) && why.contains(&format!("nearest valid one is {near:?}")), "{why}");
        }
    }

    #[test]
    fn wrong_shapes_are_one_sentence() {
        for text in ["workers = 1.5", "workers = [1]", "port = []", "socket = ", "workers = true", "= 3"] {
            let why = parse(text).unwrap_err();
            assert!(!why.contains('\n') && !why.is_empty(), "{text}: {why}");
        }
        assert!(parse("\n\nsocket = ").unwrap_err().starts_with("line 3"));
    }
}
