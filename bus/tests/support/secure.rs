//! Listeners of the test broker with TLS and with SASL, its users and their rights.
//!
//! `openssl` creates new certificates for each broker: an authority, and a certificate that it
//! signed for the name `localhost`. The certificate does not have the address, so a connection to
//! 127.0.0.1 has a wrong name. `StorageTool --add-scram` creates the users before the first start.
//! Rights are granted by a CreateAcls request encoded here, for which librdkafka's binding has no
//! call.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;

use blkkin_bus::kafka::Settings;

/// User of the broker, without any right until [`allow`] grants it.
pub(crate) const USER: &str = "blkkin-user";
/// Password of [`USER`]. Tests assert that no output contains it.
pub(crate) const PASSWORD: &str = "s3cret-Pa55-w0rd";

/// Secured listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Listener {
    Tls,
    Scram,
    ScramTls,
}

/// Secured listeners, in the order of [`Guard::ports`].
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

/// Certificates and ports of the secured listeners.
#[derive(Clone, Debug)]
pub(crate) struct Guard {
    folder: PathBuf,
    /// Ports, in the order of [`LISTENERS`].
    pub(crate) ports: [u16; 3],
}

impl Guard {
    /// Creates the certificates in `folder`.
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

    /// Returns the connection settings of a listener, for [`USER`].
    pub(crate) fn settings(&self, listener: Listener) -> Settings {
        let port = self.ports[LISTENERS.iter().position(|other| *other == listener).unwrap()];
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

    /// Returns the same settings as a properties file of Kafka's Java clients.
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

    /// Returns the path of the authority that signed the broker's certificate.
    pub(crate) fn authority(&self) -> String {
        self.path("ca.pem").display().to_string()
    }

    /// Returns the path of another authority.
    pub(crate) fn another_authority(&self) -> String {
        self.path("other.pem").display().to_string()
    }

    /// Returns the lines for the broker's configuration. Clients of a listener without SASL are
    /// anonymous, and have all rights.
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

    /// Returns the secured listeners for the broker's list of listeners.
    pub(super) fn listeners(&self) -> String {
        let each = LISTENERS.iter().zip(self.ports);
        each.map(|(one, port)| format!(",{}://localhost:{port}", name(*one))).collect()
    }

    /// Returns the arguments of `StorageTool format` that create the user.
    pub(super) fn format_arguments(&self) -> [String; 2] {
        ["--add-scram".to_owned(), format!("SCRAM-SHA-512=[name={USER},password={PASSWORD}]")]
    }

    fn openssl(&self, arguments: &str) -> Result<(), String> {
        let mut command = Command::new("openssl");
        let output = command.args(arguments.split(' ')).current_dir(&self.folder).output();
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

/// Resource type of a right (ResourceType.java).
#[derive(Clone, Copy, Debug)]
pub(crate) enum ResourceType {
    Topic = 2,
    Group = 3,
}

/// Operation of a right (AclOperation.java).
#[derive(Clone, Copy, Debug)]
pub(crate) enum Operation {
    All = 2,
    Read = 3,
    Write = 4,
    Create = 5,
    Describe = 8,
}

/// Grants [`USER`] an operation on a resource, or on all resources with a prefix if `resource` ends
/// in `*`. Sends CreateAcls, version 1 (CreateAclsRequest.json).
pub(crate) fn allow(port: u16, resource_type: ResourceType, resource: &str, operation: Operation) {
    let (resource, pattern) = match resource.strip_suffix('*') {
        Some(prefix) => (prefix, 4_u8),
        None => (resource, 3),
    };
    let text = |text: &str| [&(text.len() as u16).to_be_bytes()[..], text.as_bytes()].concat();
    let mut request = Vec::new();
    // API key, version, and correlation id 7.
    request.extend([0, 30, 0, 1, 0, 0, 0, 7]);
    request.extend(text("test"));
    request.extend(1_u32.to_be_bytes());
    request.push(resource_type as u8);
    request.extend(text(resource));
    request.push(pattern);
    request.extend(text(&format!("User:{USER}")));
    request.extend(text("*"));
    request.extend([operation as u8, 3]);
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    stream.write_all(&(request.len() as u32).to_be_bytes()).unwrap();
    stream.write_all(&request).unwrap();
    let mut length = [0; 4];
    stream.read_exact(&mut length).unwrap();
    let mut reply = vec![0; u32::from_be_bytes(length) as usize];
    stream.read_exact(&mut reply).unwrap();
    // Correlation id, throttle time, and one result with error code 0.
    assert_eq!((&reply[..4], &reply[8..14]), (&[0, 0, 0, 7][..], &[0, 0, 0, 1, 0, 0][..]), "{reply:?}");
}
