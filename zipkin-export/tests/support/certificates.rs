//! Certificates for TLS, created by `openssl` for each test.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::fs;
use std::path::PathBuf;
use std::process::Command;

/// Certificates for 127.0.0.1 and localhost and for a client, and the authority that signed both.
/// Another authority signed the certificate of a stranger.
pub(crate) struct Certificates {
    folder: tempfile::TempDir,
}

impl Certificates {
    /// Creates them; the error states what is missing.
    pub(crate) fn new() -> Result<Certificates, String> {
        let certificates = Certificates { folder: tempfile::tempdir().unwrap() };
        let names = "subjectAltName=IP:127.0.0.1,DNS:localhost\n";
        fs::write(certificates.path("names"), names).unwrap();
        let key = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes";
        certificates.openssl(&format!("req -x509 {key} -days 30 -subj /CN=ca -keyout ca.key -out ca.pem"))?;
        certificates.openssl(&format!("req {key} -subj /CN=collector -keyout server.key -out server.csr"))?;
        certificates.openssl(
            "x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 30 -extfile names -out server.pem",
        )?;
        certificates.openssl(&format!(
            "req -x509 {key} -days 30 -subj /CN=stranger -keyout stranger.key -out stranger.pem"
        ))?;
        certificates.openssl(&format!("req {key} -subj /CN=client -keyout client.key -out client.csr"))?;
        certificates.openssl(
            "x509 -req -in client.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 30 -extfile names -out client.pem",
        )?;
        Ok(certificates)
    }

    /// Returns the certificate authority.
    pub(crate) fn authority(&self) -> PathBuf {
        self.path("ca.pem")
    }

    /// Returns the server's certificate.
    pub(crate) fn certificate(&self) -> PathBuf {
        self.path("server.pem")
    }

    /// Returns the server's key.
    pub(crate) fn key(&self) -> PathBuf {
        self.path("server.key")
    }

    /// Returns the certificate and the key of `client` or `stranger`.
    pub(crate) fn identity(&self, name: &str) -> (PathBuf, PathBuf) {
        (self.path(&format!("{name}.pem")), self.path(&format!("{name}.key")))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn openssl(&self, arguments: &str) -> Result<(), String> {
        let mut command = Command::new("openssl");
        command.args(arguments.split_whitespace()).current_dir(self.folder.path());
        let output = command.output().map_err(|error| format!("openssl cannot be run: {error}"))?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "openssl {arguments}: {stderr}");
        Ok(())
    }
}
