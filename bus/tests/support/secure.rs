//! Listeners of the test broker with TLS and with SASL, its users and their rights.
//!
//! Certificates are made by `openssl`, new each time: an authority, and a certificate that it signed for `localhost`, by name and
//! not by address, so that the address is a name that does not match. Users are there from the broker's first moment
//! (`StorageTool --add-scram`). Rights are asked for by the one request that librdkafka's binding has no call for.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;

use blkkin_bus::kafka::Settings;

/// A user that the broker knows, and may do nothing until told.
pub(crate) const USER: &str = "blkkin-user";
/// Looked for in whatever is printed: it must not be there.
pub(crate) const PASSWORD: &str = "s3cret-Pa55-w0rd";

/// How a listener is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Listener {
    Tls,
    Scram,
    ScramTls,
}

/// All of them.
pub(crate) const LISTENERS: [Listener; 3] = [Listener::Tls, Listener::Scram, Listener::ScramTls];

impl Listener {
    fn protocol(self) -> &'static str {
        match self {
            Listener::Tls => "SSL",
            Listener::Scram => "SASL_PLAINTEXT",
            Listener::ScramTls => "SASL_SSL",
        }
    }
}

/// What makes a broker a guarded one.
#[derive(Clone, Debug)]
pub(crate) struct Guard {
    folder: PathBuf,
    /// Of [`LISTENERS`], in their order.
    pub(crate) ports: [u16; 3],
}

impl Guard {
    /// Makes certificates in this folder; or why not.
    pub(crate) fn new(folder: &Path, ports: [u16; 3]) -> Result<Guard, String> {
        let guard = Guard { folder: folder.to_owned(), ports };
        for name in ["ca", "other"] {
            guard.openssl(&format!(
                "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 -subj /CN={name} -keyout {name}.key -out {name}.pem"
            ))?;
        }
        guard.openssl("req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=broker -keyout broker.key -out broker.csr")?;
        guard.write("names", "subjectAltName=DNS:localhost\n")?;
        guard.openssl("x509 -req -in broker.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 30 -extfile names -out broker.crt")?;
        let read = |name: &str| fs::read_to_string(guard.path(name)).map_err(|error| error.to_string());
        guard.write("broker.pem", &(read("broker.key")? + &read("broker.crt")?))?;
        Ok(guard)
    }

    /// How to reach a listener, as who may.
    pub(crate) fn settings(&self, listener: Listener) -> Settings {
        let port = self.ports[LISTENERS.iter().position(|one| *one == listener).unwrap()];
        let mut settings = Settings::new(format!("localhost:{port}"));
        let mut set = |name: &str, value: &str| settings.extra.insert(name.to_owned(), value.to_owned());
        set("security.protocol", listener.protocol());
        if listener != Listener::Scram {
            set("ssl.ca.location", &self.authority());
        }
        if listener != Listener::Tls {
            set("sasl.mechanism", "SCRAM-SHA-512");
            set("sasl.username", USER);
            set("sasl.password", PASSWORD);
        }
        settings
    }

    /// The same as a file of properties, as Kafka's own clients have them.
    pub(crate) fn java_properties(&self, listener: Listener) -> String {
        let Settings { brokers, extra, .. } = self.settings(listener);
        let mut lines =
            format!("bootstrap.servers={brokers}\nsecurity.protocol={}\n", extra["security.protocol"]);
        if listener != Listener::Scram {
            lines += &format!("ssl.truststore.type=PEM\nssl.truststore.location={}\n", self.authority());
        }
        if listener != Listener::Tls {
            let module = "org.apache.kafka.common.security.scram.ScramLoginModule";
            lines += "sasl.mechanism=SCRAM-SHA-512\n";
            lines +=
                &format!("sasl.jaas.config={module} required username=\"{USER}\" password=\"{PASSWORD}\";\n");
        }
        lines
    }

    /// The authority that signed the broker's certificate.
    pub(crate) fn authority(&self) -> String {
        self.path("ca.pem").display().to_string()
    }

    /// One that did not.
    pub(crate) fn another_authority(&self) -> String {
        self.path("other.pem").display().to_string()
    }

    /// For the broker's file. Who comes by the listener without SASL is nobody, and may do everything; so may who comes by TLS.
    pub(super) fn properties(&self, internal: u16) -> String {
        let mut lines = String::new();
        let mut add = |line: String| {
            lines.push_str(&line);
            lines.push('\n');
        };
        let all = LISTENERS.iter().zip(self.ports);
        let named: Vec<_> = all.map(|(one, port)| format!("{}://localhost:{port}", name(*one))).collect();
        let named = format!("PLAINTEXT://127.0.0.1:{internal},{}", named.join(","));
        add(format!("advertised.listeners={named}"));
        let map: Vec<_> = LISTENERS.iter().map(|one| format!("{}:{}", name(*one), one.protocol())).collect();
        add(format!(
            "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,{}",
            map.join(",")
        ));
        add("authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer".to_owned());
        add("super.users=User:ANONYMOUS".to_owned());
        add("ssl.keystore.type=PEM".to_owned());
        add(format!("ssl.keystore.location={}", self.path("broker.pem").display()));
        add("sasl.enabled.mechanisms=SCRAM-SHA-512".to_owned());
        for one in [Listener::Scram, Listener::ScramTls] {
            let key = format!("listener.name.{}.scram-sha-512.sasl.jaas.config", name(one).to_lowercase());
            add(format!("{key}=org.apache.kafka.common.security.scram.ScramLoginModule required;"));
        }
        lines
    }

    /// The listeners beside the first.
    pub(super) fn listeners(&self) -> String {
        let each = LISTENERS.iter().zip(self.ports);
        each.map(|(one, port)| format!(",{}://localhost:{port}", name(*one))).collect()
    }

    /// For the tool that makes the broker's store.
    pub(super) fn format_words(&self) -> [String; 2] {
        ["--add-scram".to_owned(), format!("SCRAM-SHA-512=[name={USER},password={PASSWORD}]")]
    }

    fn openssl(&self, words: &str) -> Result<(), String> {
        let mut command = Command::new("openssl");
        let output = command.args(words.split(' ')).current_dir(&self.folder).output();
        let output = output.map_err(|error| format!("openssl: {error}"))?;
        if output.status.success() {
            Ok(())
        } else {
            Err(String::from_utf8_lossy(&output.stderr).into_owned())
        }
    }

    fn write(&self, name: &str, text: &str) -> Result<(), String> {
        fs::write(self.path(name), text).map_err(|error| error.to_string())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }
}

fn name(listener: Listener) -> &'static str {
    match listener {
        Listener::Tls => "TLS",
        Listener::Scram => "SCRAM",
        Listener::ScramTls => "SCRAMTLS",
    }
}

/// What a right is about (ResourceType.java).
#[derive(Clone, Copy, Debug)]
pub(crate) enum About {
    Topic = 2,
    Group = 3,
}

/// What may be done (AclOperation.java).
#[derive(Clone, Copy, Debug)]
pub(crate) enum Right {
    All = 2,
    Read = 3,
    Write = 4,
    Create = 5,
    Describe = 8,
}

/// Lets [`USER`] do something with whatever is named so, or begins so where the name ends in `*`: CreateAcls, version 1, as
/// CreateAclsRequest.json has it.
pub(crate) fn allow(port: u16, about: About, resource: &str, right: Right) {
    let (resource, pattern) = match resource.strip_suffix('*') {
        Some(prefix) => (prefix, 4_u8),
        None => (resource, 3),
    };
    let text = |text: &str| [&(text.len() as u16).to_be_bytes()[..], text.as_bytes()].concat();
    let mut request = Vec::new();
    // The request's kind, its version, our number for it.
    request.extend([0, 30, 0, 1, 0, 0, 0, 7]);
    request.extend(text("test"));
    request.extend(1_u32.to_be_bytes());
    request.push(about as u8);
    request.extend(text(resource));
    request.push(pattern);
    request.extend(text(&format!("User:{USER}")));
    request.extend(text("*"));
    request.extend([right as u8, 3]);
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    stream.write_all(&(request.len() as u32).to_be_bytes()).unwrap();
    stream.write_all(&request).unwrap();
    let mut length = [0; 4];
    stream.read_exact(&mut length).unwrap();
    let mut answer = vec![0; u32::from_be_bytes(length) as usize];
    stream.read_exact(&mut answer).unwrap();
    // Our number, a time to wait, one result: its error code is 0.
    assert_eq!((&answer[..4], &answer[8..14]), (&[0, 0, 0, 7][..], &[0, 0, 0, 1, 0, 0][..]), "{answer:?}");
}
