//! The configuration file of `burst proxy` (TOML) and the directory file of peers.
//!
//! Unknown keys are errors that name the nearest key. Everything is checked here, once, before anything is changed on
//! the host.

use serde::Deserialize;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

/// Most ranges of ports in one policy (as in `csrc/steer.bpf.c`).
pub const RANGES: usize = 16;
/// Most workers: two listeners each (as in `csrc/steer.bpf.c`).
pub const WORKERS_MAX: u32 = 32;

/// What windows grow to without `window_max`.
const WINDOW_MAX: u32 = 4 << 20;

/// The file as written.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProxyConfig {
    /// This proxy's name; its certificate carries it.
    pub name: String,
    /// Where the control channel listens.
    pub listen: SocketAddr,
    /// Address of the RDMA device; default: that of `listen`.
    pub rdma: Option<IpAddr>,
    /// Directory with `ca.pem`, `NAME.pem` and `NAME.key`.
    pub keys: PathBuf,
    /// Threads that relay; default: half of the processors, at most 4.
    pub workers: Option<u32>,
    /// Bytes in flight of each stream and direction at first.
    #[serde(default = "default_window")]
    pub window: String,
    /// The most that they grow to; default: 4 MiB, or `window` if that is more.
    pub window_max: Option<String>,
    /// Memory for all streams.
    #[serde(default = "default_memory")]
    pub memory: String,
    /// Percent of what other users leave that the connections of one user may have.
    #[serde(default = "default_share")]
    pub user_share: u8,
    /// Unix socket of `burst proxy ls` and others.
    pub admin: Option<PathBuf>,
    /// File with more peers; watched.
    pub directory: Option<PathBuf>,
    /// Mark of intercepted connections, and number of the routing table.
    #[serde(default = "default_mark")]
    pub mark: u32,
    /// Milliseconds after which a stream whose peer does not answer goes by TCP.
    #[serde(default = "default_open")]
    pub open_ms: u64,
    /// Whether SYNs are held until the server has answered, where the kernel can.
    #[serde(default = "default_hold")]
    pub hold_syn: bool,
    /// What takes connections.
    #[serde(default)]
    pub intercept: InterceptBy,
    /// Whether queue pairs carry encrypted bytes.
    #[serde(default)]
    pub encrypt: EncryptLinks,
    /// Seconds after which streams of a peer that does not come back are reset.
    #[serde(default = "default_resume")]
    pub resume_s: u64,
    /// Known peers.
    #[serde(default)]
    pub peer: Vec<PeerEntry>,
    /// Connections to take.
    #[serde(default)]
    pub take: Vec<Take>,
    /// Servers to reach for peers.
    #[serde(default)]
    pub serve: Vec<Serve>,
}

fn default_window() -> String {
    "512KiB".into()
}

fn default_memory() -> String {
    "2GiB".into()
}

fn default_share() -> u8 {
    50
}

fn default_mark() -> u32 {
    0x51
}

fn default_open() -> u64 {
    3000
}

fn default_hold() -> bool {
    true
}

fn default_resume() -> u64 {
    15
}

/// Another proxy.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PeerEntry {
    /// Its name.
    pub name: String,
    /// Its control channel.
    pub address: SocketAddr,
    /// The addresses and prefixes that it may serve; default: any.
    pub serves: Option<Vec<String>>,
}

impl PeerEntry {
    fn check(&self) -> Result<(), String> {
        check_name(&self.name)?;
        self.allowed().map(drop)
    }

    /// What it may serve; `None`: anything.
    ///
    /// # Errors
    /// One sentence.
    pub fn allowed(&self) -> Result<Option<Vec<Prefix>>, String> {
        let read = |texts: &Vec<String>| texts.iter().map(|text| prefix(text)).collect();
        self.serves.as_ref().map(read).transpose().map_err(|e: String| format!("serves of peer {}: {e}", self.name))
    }
}

/// Connections to take.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Take {
    /// Destinations: addresses or prefixes.
    pub to: Vec<String>,
    /// Ports: `80,8000-8010`.
    pub ports: String,
    /// Control group (a directory of cgroup v2) whose programs' connections are taken; default: the root.
    pub cgroup: Option<PathBuf>,
    /// Network namespace; default: that of the proxy.
    pub namespace: Option<PathBuf>,
    /// `rdma`, or `tcp`: relay by TCP alone, for comparison.
    #[serde(default)]
    pub relay: RelayBy,
}

/// How taken connections travel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RelayBy {
    /// Over the peer's link.
    #[default]
    Rdma,
    /// Over a second TCP connection, by this proxy alone.
    Tcp,
}

/// What takes connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum InterceptBy {
    /// BPF programs where they can be loaded, else rules of nf_tables.
    #[default]
    Auto,
    /// BPF programs alone.
    Bpf,
    /// Rules of nf_tables alone.
    Nft,
}

/// Whether queue pairs carry encrypted bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EncryptLinks {
    /// Always, and connections that no peer can carry are refused instead of going by TCP.
    Only,
    /// Always: a peer that cannot is refused.
    On,
    /// If the peer asks for it.
    #[default]
    Agree,
    /// Never: a peer that asks for it is refused.
    Off,
}

impl EncryptLinks {
    /// Whether a peer that does not encrypt is refused.
    pub fn demands(self) -> bool {
        matches!(self, EncryptLinks::Only | EncryptLinks::On)
    }
}

/// Servers to reach for peers.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Serve {
    /// Their addresses or prefixes.
    pub to: Vec<String>,
    /// Their network namespace; default: that of the proxy.
    pub namespace: Option<PathBuf>,
}

/// A prefix: address and bits.
pub type Prefix = (IpAddr, u8);

/// What one rule takes: prefixes, and ranges of ports.
pub type Taken = (Vec<Prefix>, Vec<(u16, u16)>);

/// The file after its checks.
#[derive(Clone, Debug)]
pub struct Checked {
    /// As written.
    pub config: ProxyConfig,
    /// Number of workers.
    pub workers: u32,
    /// Bytes.
    pub window: u32,
    /// Bytes.
    pub window_max: u32,
    /// Bytes.
    pub memory: u64,
    /// For each `take`: prefixes and ranges of ports.
    pub takes: Vec<Taken>,
    /// For each `serve`: prefixes.
    pub serves: Vec<Vec<Prefix>>,
}

impl ProxyConfig {
    /// Reads and checks the file.
    ///
    /// # Errors
    /// One sentence.
    pub fn load(path: &Path) -> Result<Checked, String> {
        let text = std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
        Self::parse(&text).map_err(|e| format!("{}: {e}", path.display()))
    }

    /// Checks the text of a file.
    ///
    /// # Errors
    /// One sentence.
    pub fn parse(text: &str) -> Result<Checked, String> {
        let config: Self = toml::from_str(text).map_err(|e| one_line(&e))?;
        check_name(&config.name)?;
        config.peer.iter().try_for_each(PeerEntry::check)?;
        if config.mark == 0 || config.mark > 252 {
            let mark = config.mark;
            return Err(format!("mark = {mark}: from 1 to 252, because it is the number of a routing table as well"));
        }
        let workers = config.checked_workers()?;
        let (window, window_max) = config.checked_windows()?;
        let memory = size("memory", &config.memory)?;
        let least = crate::pool::WindowPool::region_memory(window, config.encrypt.demands()) * u64::from(workers);
        if memory < least {
            return Err(format!(
                "memory = \"{}\": with {workers} workers and windows of {window} bytes at least {least} bytes are needed",
                config.memory
            ));
        }
        let taken = config.take.iter().map(|take| Ok((prefixes(&take.to)?, ports(&take.ports)?)));
        let takes = taken.collect::<Result<Vec<_>, String>>()?;
        config.check_takes(&takes)?;
        let serves = config.serve.iter().map(|serve| prefixes(&serve.to)).collect::<Result<_, _>>()?;
        Ok(Checked { workers, window, window_max, memory, takes, serves, config })
    }

    /// A rule must not ask for what another rule or key forbids.
    fn check_takes(&self, takes: &[Taken]) -> Result<(), String> {
        check_overlap(&self.take, takes)?;
        if self.encrypt == EncryptLinks::Only && self.take.iter().any(|take| take.relay == RelayBy::Tcp) {
            return Err("relay = \"tcp\" with encrypt = \"only\": such connections would travel in clear".into());
        }
        Ok(())
    }

    /// The number of workers; what one user may have of each is checked, too.
    fn checked_workers(&self) -> Result<u32, String> {
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
        let workers = self.workers.unwrap_or((cores / 2).clamp(1, 4));
        if workers == 0 || workers > WORKERS_MAX {
            return Err(format!("workers = {workers}: between 1 and {WORKERS_MAX} are possible"));
        }
        if !(1..=100).contains(&self.user_share) {
            return Err(format!("user_share = {}: percent, from 1 to 100", self.user_share));
        }
        Ok(workers)
    }

    /// Bytes of first windows, and the most that they grow to.
    fn checked_windows(&self) -> Result<(u32, u32), String> {
        let window = window_size("window", &self.window)?;
        let most = self.window_max.as_ref().map(|text| window_size("window_max", text)).transpose()?;
        let window_max = most.unwrap_or(window.max(WINDOW_MAX));
        if window_max < window {
            return Err(format!("window_max = {window_max} bytes: it must not be less than window, {window} bytes"));
        }
        Ok((window, window_max))
    }
}

impl Checked {
    /// Address of the RDMA listener, without port.
    pub fn rdma(&self) -> IpAddr {
        self.config.rdma.unwrap_or(self.config.listen.ip())
    }

    /// Bytes of memory of one worker.
    pub fn memory_share(&self) -> u64 {
        self.memory / u64::from(self.workers)
    }

    /// Path of the admin socket.
    pub fn admin(&self) -> PathBuf {
        self.config.admin.clone().unwrap_or_else(|| default_admin(&self.config.name))
    }
}

/// The rules of one namespace: indices of `take` and `serve`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlaceRules {
    /// Of `take`.
    pub takes: Vec<usize>,
    /// Of `serve`.
    pub serves: Vec<usize>,
}

impl Checked {
    /// The rules by namespace; `None` is the process's own.
    pub fn places(&self) -> BTreeMap<Option<PathBuf>, PlaceRules> {
        let mut named: BTreeMap<Option<PathBuf>, PlaceRules> = BTreeMap::new();
        for (number, take) in self.config.take.iter().enumerate() {
            named.entry(take.namespace.clone()).or_default().takes.push(number);
        }
        for (number, serve) in self.config.serve.iter().enumerate() {
            named.entry(serve.namespace.clone()).or_default().serves.push(number);
        }
        named
    }

    /// Whether this file can take the place of `before` while the proxy runs.
    ///
    /// # Errors
    /// One sentence that names the first key that only a restart changes.
    pub fn check_reload(&self, before: &Self) -> Result<(), String> {
        let (new, old) = (&self.config, &before.config);
        let same = [
            ("name", new.name == old.name),
            ("listen", new.listen == old.listen),
            ("rdma", self.rdma() == before.rdma()),
            ("workers", self.workers == before.workers),
            ("window", self.window == before.window),
            ("window_max", self.window_max == before.window_max),
            ("memory", self.memory == before.memory),
            ("user_share", new.user_share == old.user_share),
            ("admin", self.admin() == before.admin()),
            ("directory", new.directory == old.directory),
            ("mark", new.mark == old.mark),
            ("hold_syn", new.hold_syn == old.hold_syn),
            ("intercept", new.intercept == old.intercept),
            ("encrypt", new.encrypt == old.encrypt),
        ];
        let changed = same.iter().find(|(_, is_same)| !is_same);
        changed.map_or(Ok(()), |(key, _)| Err(format!("{key} has changed, which needs a restart of the proxy")))
    }
}

/// The admin socket of a proxy with this name, if its file names none.
pub fn default_admin(name: &str) -> PathBuf {
    PathBuf::from(format!("/run/burst/proxy-{name}.sock"))
}

/// The peers of a directory file: `[[peer]]` as in the configuration.
///
/// # Errors
/// One sentence.
pub fn directory(text: &str) -> Result<Vec<PeerEntry>, String> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct PeerDirectory {
        #[serde(default)]
        peer: Vec<PeerEntry>,
    }
    let directory: PeerDirectory = toml::from_str(text).map_err(|e| one_line(&e))?;
    directory.peer.iter().try_for_each(PeerEntry::check)?;
    Ok(directory.peer)
}

fn one_line(error: &toml::de::Error) -> String {
    error.to_string().split('\n').map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" ")
}

fn check_name(name: &str) -> Result<(), String> {
    let good = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.';
    let ends = !name.starts_with(['-', '.']) && !name.ends_with(['-', '.']);
    if name.is_empty() || name.len() > 63 || !name.chars().all(good) || !ends {
        return Err(format!("name \"{name}\": a host name is needed, of letters, digits, '-' and '.'"));
    }
    Ok(())
}

fn size(key: &str, text: &str) -> Result<u64, String> {
    burst_grammar::bytes(text).map_err(|e| format!("{key} = \"{text}\": {e}"))
}

fn window_size(key: &str, text: &str) -> Result<u32, String> {
    let bytes = size(key, text)?;
    if !(4096..=64 << 20).contains(&bytes) || bytes % 4096 != 0 {
        return Err(format!("{key} = \"{text}\": a multiple of 4KiB, from 4KiB to 64MiB"));
    }
    Ok(bytes as u32)
}

/// Reads `10.0.0.0/8`, `10.0.0.1`, `fd00::/8`.
///
/// # Errors
/// One sentence.
pub fn prefix(text: &str) -> Result<Prefix, String> {
    let wrong = || format!("\"{text}\" is no address or prefix, such as 10.0.0.2 or fd00::/64");
    let (ip, bits) = text.split_once('/').map_or((text, None), |(ip, bits)| (ip, Some(bits)));
    let ip: IpAddr = ip.parse().map_err(|_| wrong())?;
    let most = if ip.is_ipv4() { 32 } else { 128 };
    let bits = bits.map_or(Ok(most), |bits| bits.parse::<u8>().map_err(|_| wrong()))?;
    if bits > most {
        return Err(wrong());
    }
    check_prefix((ip, bits))?;
    Ok((ip, bits))
}

/// Whether a prefix has no more bits than an address, none behind them, and IPv4 in its own form.
///
/// # Errors
/// One sentence.
pub fn check_prefix((ip, bits): Prefix) -> Result<(), String> {
    let most = if ip.is_ipv4() { 32 } else { 128 };
    if bits > most {
        return Err(format!("{ip}/{bits}: an address has {most} bits"));
    }
    if masked(ip, bits) != ip {
        return Err(format!("{ip}/{bits} has bits behind its prefix: write {}/{bits}", masked(ip, bits)));
    }
    match ip.to_canonical() {
        IpAddr::V4(v4) if ip.is_ipv6() && bits >= 96 => Err(format!("{ip}/{bits}: write {v4}/{}", bits - 96)),
        _ => Ok(()),
    }
}

/// Whether all addresses of a prefix lie within another one.
pub fn inside(prefix: Prefix, outer: Prefix) -> bool {
    prefix.1 >= outer.1 && within(prefix.0, outer)
}

/// An address without the bits behind a prefix of this length.
pub fn masked(ip: IpAddr, bits: u8) -> IpAddr {
    match ip {
        IpAddr::V4(v4) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0);
            IpAddr::V4((u32::from(v4) & mask).into())
        }
        IpAddr::V6(v6) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0);
            IpAddr::V6((u128::from(v6) & mask).into())
        }
    }
}

/// Whether an address lies within a prefix.
pub fn within(ip: IpAddr, prefix: Prefix) -> bool {
    ip.is_ipv4() == prefix.0.is_ipv4() && masked(ip, prefix.1) == prefix.0
}

fn prefixes(texts: &[String]) -> Result<Vec<Prefix>, String> {
    if texts.is_empty() {
        return Err("to = []: at least one address or prefix is needed".into());
    }
    texts.iter().map(|text| prefix(text)).collect()
}

fn ports(text: &str) -> Result<Vec<(u16, u16)>, String> {
    let wrong = || format!("ports = \"{text}\": ports and ranges are needed, such as 80,8000-8010");
    let mut ranges = Vec::new();
    for part in text.split(',').map(str::trim) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.trim().parse().map_err(|_| wrong())?, last.trim().parse().map_err(|_| wrong())?);
        if first == 0 || last < first {
            return Err(wrong());
        }
        ranges.push((first, last));
    }
    if ranges.len() > RANGES {
        return Err(format!("ports = \"{text}\": at most {RANGES} ranges are possible"));
    }
    Ok(ranges)
}

/// Whether a list of ports, which was checked, has a port.
pub fn names_port(list: &str, port: u16) -> bool {
    ports(list).is_ok_and(|ranges| ranges.iter().any(|(first, last)| (*first..=*last).contains(&port)))
}

/// Two policies of one namespace must not name the same prefix: one of them would be without effect.
fn check_overlap(takes: &[Take], checked: &[Taken]) -> Result<(), String> {
    for (n, (one, (prefixes, _))) in takes.iter().zip(checked).enumerate() {
        for (other, (others, _)) in takes.iter().zip(checked).take(n) {
            let same = prefixes.iter().find(|p| others.contains(p));
            if let (Some((ip, bits)), true) = (same, one.namespace == other.namespace) {
                return Err(format!(
                    "two rules [[take]] name {ip}/{bits} in one namespace: join their ports in one rule, because each \
                     prefix has one list of ports, and one of the two rules would be without effect"
                ));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reload_changes_policy_and_peers_and_nothing_that_needs_a_restart() {
        let text = "name='a'\nlisten='10.0.0.1:7400'\nkeys='k'\nworkers=1\n";
        let read = |more: &str| ProxyConfig::parse(&format!("{text}{more}")).unwrap();
        let before = read("[[take]]\nto=['10.0.0.2']\nports='80'");
        let policy = read(
            "open_ms=9\nresume_s=3\n[[peer]]\nname='c'\naddress='10.0.0.3:1'\n[[serve]]\nto=['10.0.0.1']\nnamespace='/n'",
        );
        assert_eq!(policy.check_reload(&before), Ok(()));
        let places: Vec<_> = policy.places().into_keys().collect();
        assert_eq!(places, [Some("/n".into())]);
        for (key, line) in
            [("mark", "mark=5"), ("window", "window='4KiB'"), ("encrypt", "encrypt='off'"), ("memory", "memory='1GiB'")]
        {
            let refused = read(line).check_reload(&before).unwrap_err();
            assert_eq!(refused, format!("{key} has changed, which needs a restart of the proxy"));
        }
    }

    const GOOD: &str = r#"
        name = "a"
        listen = "10.0.0.1:7400"
        keys = "/etc/burst/keys"
        [[peer]]
        name = "b"
        address = "10.0.0.2:7400"
        [[take]]
        to = ["10.0.0.2", "fd00::/64"]
        ports = "80, 8000-8010"
    "#;

    fn refused(change: &str, by: &str) -> String {
        assert!(GOOD.contains(change), "{change}");
        ProxyConfig::parse(&GOOD.replace(change, by)).unwrap_err()
    }

    #[test]
    fn a_good_file_is_taken() {
        let checked = ProxyConfig::parse(GOOD).unwrap();
        assert_eq!(checked.takes[0].0, [("10.0.0.2".parse().unwrap(), 32), ("fd00::".parse().unwrap(), 64)]);
        assert_eq!(checked.takes[0].1, [(80, 80), (8000, 8010)]);
        assert_eq!((checked.window, checked.window_max, checked.memory), (512 << 10, 4 << 20, 2 << 30));
        let large = GOOD.replace("keys =", "window = \"8MiB\"\nkeys =");
        assert_eq!(ProxyConfig::parse(&large).unwrap().window_max, 8 << 20);
        assert_eq!(checked.rdma().to_string(), "10.0.0.1");
    }

    #[test]
    fn bad_files_are_refused_with_the_reason() {
        assert!(refused("keys =", "kyes =").contains("kyes"));
        assert!(refused("name = \"a\"", "name = \"a b\"").contains("a b"));
        assert!(refused("10.0.0.2\"", "10.0.0.300\"").contains("10.0.0.300"));
        assert!(refused("10.0.0.2\", \"fd", "10.0.0.2/8\", \"fd").contains("10.0.0.0/8"));
        assert!(refused("80, 8000-8010", "80, 8010-8000").contains("8010-8000"));
        assert!(refused("name = \"a\"", "name = \"a\"\nworkers = 0").contains("workers = 0"));
        assert!(refused("name = \"a\"", "name = \"a\"\nwindow = \"5000\"").contains("5000"));
        assert!(refused("name = \"a\"", "name = \"a\"\nwindow_max = \"256KiB\"").contains("262144"));
        assert!(refused("name = \"a\"", "name = \"a\"\nwindow_max = \"1GiB\"").contains("window_max"));
        assert!(refused("name = \"a\"", "name = \"a\"\nworkers = 2\nmemory = \"15MiB\"").contains("16777216"));
        assert!(refused("name = \"a\"", "name = \"a\"\nmark = 0").contains("mark = 0"));
        let contradiction =
            GOOD.replace("80, 8000-8010\"", "80\"\nrelay = \"tcp\"").replace("keys =", "encrypt = \"only\"\nkeys =");
        assert!(ProxyConfig::parse(&contradiction).unwrap_err().contains("in clear"));
        let refused_way = refused("name = \"a\"", "name = \"a\"\nintercept = \"xdp\"");
        assert!(refused_way.contains("xdp") && refused_way.contains("`auto`, `bpf`, `nft`"), "{refused_way}");
        assert!(
            refused("80, 8000-8010\"", "80\"\n[[take]]\nto = [\"fd00::/64\"]\nports = \"1\"").contains("fd00::/64")
        );
    }

    #[test]
    fn prefixes_hold_what_they_name() {
        let inside = |ip: &str, text: &str| within(ip.parse().unwrap(), prefix(text).unwrap());
        assert!(inside("10.1.2.3", "10.0.0.0/8") && !inside("11.1.2.3", "10.0.0.0/8"));
        assert!(inside("1.2.3.4", "0.0.0.0/0") && !inside("::1", "0.0.0.0/0"));
        let subnet = |text: &str, outer: &str| super::inside(prefix(text).unwrap(), prefix(outer).unwrap());
        assert!(subnet("10.1.0.0/16", "10.0.0.0/8") && subnet("10.0.0.0/8", "10.0.0.0/8"));
        assert!(!subnet("10.0.0.0/8", "10.0.0.0/16") && !subnet("0.0.0.0/0", "10.0.0.0/8"));
        assert!(inside("fd00::1:2", "fd00::/64") && !inside("fd01::1", "fd00::/64"));
    }

    #[test]
    fn a_directory_file_lists_peers() {
        assert_eq!(directory("").unwrap(), []);
        assert_eq!(directory("[[peer]]\nname=\"c\"\naddress=\"1.2.3.4:5\"").unwrap()[0].name, "c");
        assert!(directory("[[peer]]\nname=\"c\"").is_err());
        let serves = |text: &str| directory(&format!("[[peer]]\nname='c'\naddress='1.2.3.4:5'\nserves=['{text}']"));
        assert_eq!(serves("10.0.0.0/8").unwrap()[0].allowed().unwrap().unwrap().len(), 1);
        assert!(serves("10.0.0.1/8").unwrap_err().contains("10.0.0.0/8"));
    }
}
