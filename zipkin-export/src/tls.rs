//! Certificates and keys of TLS connections.
//!
//! *In*: paths of PEM files. *Out*: [`TlsFiles`] for both transports, read and checked before the
//! first connection. *Invariant*: a key is read only from a file that not every user can read
//! ([`crate::secret_file`]), and its content is in no error text.

use std::error::Error;
use std::path::{Path, PathBuf};

use tonic::transport::{ClientTlsConfig, Endpoint, Identity};
use ureq::tls::{Certificate, ClientCert, PemItem, PrivateKey, RootCerts, parse_pem};

use crate::open_error::OpenError;
use crate::secret_file;
use crate::url::ServerUrl;

/// PEM files of TLS connections.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// Trusted certificate authorities. None means the public ones (webpki-roots).
    pub authorities: Option<PathBuf>,
    /// The client's certificate with its chain, and its key. None means no client certificate.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// Content of the files.
#[derive(Default)]
pub(crate) struct TlsMaterial {
    /// Trusted certificate authorities.
    pub(crate) authorities: Option<Vec<u8>>,
    /// The client's certificate with its chain, and its key.
    pub(crate) identity: Option<(Vec<u8>, Vec<u8>)>,
}

impl TlsFiles {
    /// Replaces each missing file with that of `other`.
    pub(crate) fn or(&self, other: &TlsFiles) -> TlsFiles {
        let identity = self.identity.as_ref().or(other.identity.as_ref());
        let authorities = self.authorities.as_ref().or(other.authorities.as_ref());
        TlsFiles { authorities: authorities.cloned(), identity: identity.cloned() }
    }

    /// Reads and checks the files.
    pub(crate) fn read(&self) -> Result<TlsMaterial, OpenError> {
        let authorities = self.authorities.as_deref().map(|path| {
            certificates(
                path,
                "certificate authorities",
                "set OTEL_EXPORTER_OTLP_CERTIFICATE or --tls-ca to a PEM file",
            )
        });
        let identity = self.identity.as_ref().map(|(certificate, key)| identity(certificate, key));
        Ok(TlsMaterial { authorities: authorities.transpose()?, identity: identity.transpose()? })
    }
}

impl TlsMaterial {
    /// Returns the trusted authorities for ureq.
    pub(crate) fn root_certs(&self) -> RootCerts {
        let authorities = self.authorities.as_ref();
        authorities.map_or(RootCerts::WebPki, |pem| RootCerts::new_with_certs(&parse(pem)))
    }

    /// Returns the client's certificate for ureq.
    pub(crate) fn client_cert(&self) -> Option<ClientCert> {
        let (certificate, key) = self.identity.as_ref()?;
        // Checked when it was read.
        Some(ClientCert::new_with_certs(&parse(certificate), PrivateKey::from_pem(key).ok()?))
    }
}

/// Returns a remedy for a failed connection to this server, if TLS can be the reason.
pub(crate) fn remedy(url: &ServerUrl, why: &str) -> Option<&'static str> {
    let mentions = |texts: &[&str]| url.is_tls() && texts.iter().any(|text| why.contains(text));
    // Texts of rustls: InvalidCertificate, and AlertReceived with alerts of RFC 8446.
    if mentions(&["invalid peer certificate"]) {
        return Some(
            "set OTEL_EXPORTER_OTLP_CERTIFICATE or --tls-ca to the PEM file of its certificate authority",
        );
    }
    if mentions(&[
        "CertificateRequired",
        "BadCertificate",
        "UnknownCA",
        "CertificateUnknown",
        "HandshakeFailure",
    ]) {
        return Some("set --tls-certificate and --tls-key to a client certificate that it accepts");
    }
    // With TLS 1.3 a server refuses a client certificate after the handshake. The alert is lost if
    // the request is still being sent. std and h2 spell the errors with different capitals.
    let why = why.to_lowercase();
    let closed = ["broken pipe", "connection reset", "connection closed", "peer disconnected"];
    (url.is_tls() && closed.iter().any(|text| why.contains(text))).then_some(
        "check that it runs; if it requires a client certificate, set --tls-certificate and --tls-key",
    )
}

/// Reads a PEM file that has at least one certificate.
fn certificates(path: &Path, what: &'static str, remedy: &'static str) -> Result<Vec<u8>, OpenError> {
    let error = |why: String| OpenError::Tls { path: path.to_owned(), what, why, remedy };
    let pem = std::fs::read(path).map_err(|e| error(e.to_string()))?;
    if let Some(malformed) = parse_pem(&pem).find_map(Result::err) {
        return Err(error(malformed.to_string()));
    }
    if parse(&pem).is_empty() {
        return Err(error("it has no certificate".to_owned()));
    }
    Ok(pem)
}

/// Reads and checks a certificate with its key.
fn identity(certificate: &Path, key: &Path) -> Result<(Vec<u8>, Vec<u8>), OpenError> {
    let remedy = "set OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE or --tls-certificate to a PEM file";
    let pair = (certificates(certificate, "client certificate", remedy)?, private_key(key)?);
    // rustls checks that they belong together. ureq does so at the first connection, and panics.
    let tls = ClientTlsConfig::new().identity(Identity::from_pem(&pair.0, &pair.1));
    Endpoint::from_static("https://localhost").tls_config(tls).map_err(|error| OpenError::Tls {
        path: certificate.to_owned(),
        what: "client certificate",
        why: root_cause(&error),
        remedy: "set --tls-certificate and --tls-key to a certificate (X.509 version 3) and its key",
    })?;
    Ok(pair)
}

/// Reads a PEM file with a private key.
fn private_key(path: &Path) -> Result<Vec<u8>, OpenError> {
    let error = |why, remedy| OpenError::Tls { path: path.to_owned(), what: "private key", why, remedy };
    let pem = secret_file::read(path).map_err(|(why, remedy)| error(why, remedy))?;
    match PrivateKey::from_pem(&pem) {
        Ok(_) => Ok(pem),
        Err(_) => Err(error(
            "it has no private key in PEM format".to_owned(),
            "set --tls-key to one that needs no password",
        )),
    }
}

/// Returns the text of the innermost error: the outer ones of tonic state only "transport error".
pub(crate) fn root_cause(error: &dyn Error) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

fn parse(pem: &[u8]) -> Vec<Certificate<'static>> {
    let certificate = |item| match item {
        Ok(PemItem::Certificate(certificate)) => Some(certificate),
        _ => None,
    };
    parse_pem(pem).filter_map(certificate).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_without_a_certificate_or_key_are_errors() {
        let folder = tempfile::tempdir().expect("a folder");
        let [missing, empty] = ["missing.pem", "empty.pem"].map(|name| folder.path().join(name));
        std::fs::write(&empty, "no PEM").expect("a file");
        for (path, why) in [(missing, "No such file"), (empty.clone(), "it has no certificate")] {
            let files = TlsFiles { authorities: Some(path), identity: None };
            let error = files.read().err().expect("an error").to_string();
            assert!(error.contains(why) && error.contains("OTEL_EXPORTER_OTLP_CERTIFICATE"), "{error}");
        }
        let error = private_key(&empty).expect_err("an error").to_string();
        assert!(error.contains("every user can read it; chmod o-r"), "{error}");
    }

    #[test]
    fn a_connection_that_a_server_closed_may_lack_a_certificate() {
        let url = |text: &str| ServerUrl::parse(text, "/").expect("a URL");
        let (tls, plain) = (url("https://localhost:1"), url("http://localhost:1"));
        for why in
            ["stream closed because of a broken pipe", "Broken pipe (os error 32)", "connection closed"]
        {
            assert!(remedy(&tls, why).is_some_and(|text| text.contains("--tls-certificate")), "{why}");
            assert_eq!(remedy(&plain, why), None);
        }
        assert_eq!(remedy(&tls, "Connection refused"), None);
    }

    #[test]
    fn own_files_come_before_general_ones() {
        let general = TlsFiles { authorities: Some("a".into()), identity: Some(("b".into(), "c".into())) };
        let own = TlsFiles { authorities: Some("own".into()), identity: None };
        assert_eq!(own.or(&general), TlsFiles { authorities: Some("own".into()), ..general });
    }
}
