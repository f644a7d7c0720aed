//! `burst proxy keys`: a certificate authority in a directory, and a certificate for each named proxy.

use rcgen::{
    BasicConstraints, Certificate, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Makes what is missing: `ca.pem` and `ca.key`, then `NAME.pem` and `NAME.key` for each name. Files that exist stay
/// as they are. Returns the files made.
///
/// # Errors
/// One sentence.
pub fn make(directory: &Path, names: &[String]) -> Result<Vec<String>, String> {
    std::fs::create_dir_all(directory).map_err(|e| format!("{}: {e}", directory.display()))?;
    let is_missing = |name: &&str| !directory.join(format!("{name}.pem")).exists();
    let mut made = Vec::new();
    for name in ["ca"].into_iter().chain(names.iter().map(String::as_str)).filter(is_missing) {
        if name == "ca" {
            make_authority(directory)?
        } else {
            make_certificate(directory, name)?
        }
        made.extend([format!("{name}.pem"), format!("{name}.key")]);
    }
    Ok(made)
}

fn make_authority(directory: &Path) -> Result<(), String> {
    let pair = KeyPair::generate().map_err(|e| e.to_string())?;
    let mut parameters = CertificateParams::default();
    parameters.distinguished_name.push(DnType::CommonName, "burst proxy");
    parameters.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let own = parameters.self_signed(&pair).map_err(|e| e.to_string())?;
    write_pair(directory, "ca", &pair, &own)
}

fn make_certificate(directory: &Path, name: &str) -> Result<(), String> {
    let failed = |file: &str, e: &dyn Display| format!("{}: {e}", directory.join(file).display());
    let read = |file: &str| std::fs::read_to_string(directory.join(file)).map_err(|e| failed(file, &e));
    let authority_key = KeyPair::from_pem(&read("ca.key")?).map_err(|e| failed("ca.key", &e))?;
    let issuer = Issuer::from_ca_cert_pem(&read("ca.pem")?, authority_key).map_err(|e| failed("ca.pem", &e))?;
    let pair = KeyPair::generate().map_err(|e| e.to_string())?;
    let mut parameters =
        CertificateParams::new(vec![name.to_owned()]).map_err(|e| format!("\"{name}\" is no host name: {e}"))?;
    parameters.distinguished_name.push(DnType::CommonName, name);
    parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    let own = parameters.signed_by(&pair, &issuer).map_err(|e| e.to_string())?;
    write_pair(directory, name, &pair, &own)
}

/// Writes the key first: a certificate without key would never be made again.
fn write_pair(directory: &Path, name: &str, pair: &KeyPair, own: &Certificate) -> Result<(), String> {
    write(&directory.join(format!("{name}.key")), &pair.serialize_pem(), 0o600)?;
    write(&directory.join(format!("{name}.pem")), &own.pem(), 0o644)
}

fn write(path: &Path, text: &str, mode: u32) -> Result<(), String> {
    let opened = OpenOptions::new().write(true).create_new(true).mode(mode).open(path);
    opened.and_then(|mut file| file.write_all(text.as_bytes())).map_err(|e| format!("{}: {e}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls::TlsKeys;

    #[test]
    fn keys_are_made_once_and_can_be_loaded() {
        let directory = std::env::temp_dir().join(format!("burst-keys-{}", std::process::id()));
        let names = ["a".to_owned(), "b".to_owned()];
        assert_eq!(make(&directory, &names[..1]).unwrap().len(), 4);
        assert_eq!(make(&directory, &names).unwrap(), ["b.pem", "b.key"], "a has its certificate");
        assert!(TlsKeys::load(&directory, "a").is_ok() && TlsKeys::load(&directory, "b").is_ok());
        let missing = TlsKeys::load(&directory, "c").err().unwrap();
        assert!(missing.contains("c.pem") && missing.contains("burst proxy keys"), "{missing}");
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
