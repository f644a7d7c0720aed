//! `burst proxy keys`: a certificate authority in a directory, and a certificate for each named proxy.

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
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
    let mut made = Vec::new();
    let (certificate, key) = (directory.join("ca.pem"), directory.join("ca.key"));
    if !certificate.exists() {
        let pair = KeyPair::generate().map_err(|e| e.to_string())?;
        let mut parameters = CertificateParams::default();
        parameters.distinguished_name.push(DnType::CommonName, "burst proxy");
        parameters.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let own = parameters.self_signed(&pair).map_err(|e| e.to_string())?;
        write(&key, &pair.serialize_pem(), 0o600)?;
        write(&certificate, &own.pem(), 0o644)?;
        made.extend(["ca.pem".to_owned(), "ca.key".to_owned()]);
    }
    let read = |path: &Path| std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()));
    for name in names {
        if directory.join(format!("{name}.pem")).exists() {
            continue;
        }
        let authority_key = KeyPair::from_pem(&read(&key)?).map_err(|e| format!("{}: {e}", key.display()))?;
        let issuer = Issuer::from_ca_cert_pem(&read(&certificate)?, authority_key)
            .map_err(|e| format!("{}: {e}", certificate.display()))?;
        let pair = KeyPair::generate().map_err(|e| e.to_string())?;
        let mut parameters =
            CertificateParams::new(vec![name.clone()]).map_err(|e| format!("\"{name}\" is no host name: {e}"))?;
        parameters.distinguished_name.push(DnType::CommonName, name.as_str());
        parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let own = parameters.signed_by(&pair, &issuer).map_err(|e| e.to_string())?;
        write(&directory.join(format!("{name}.key")), &pair.serialize_pem(), 0o600)?;
        write(&directory.join(format!("{name}.pem")), &own.pem(), 0o644)?;
        made.extend([format!("{name}.pem"), format!("{name}.key")]);
    }
    Ok(made)
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
