use super::*;

fn parse(variables: &[(&str, &str)]) -> Result<OtlpConfig, OtlpConfigError> {
    let get = |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into());
    OtlpConfig::from_variables(get)
}

fn parse_headers(list: &str) -> Result<Vec<(String, String)>, OtlpConfigError> {
    let config = parse(&[("OTEL_EXPORTER_OTLP_HEADERS", list)])?;
    let pair = |(name, value): (&HeaderName, &HeaderValue)| {
        (name.to_string(), value.to_str().expect("ASCII").to_owned())
    };
    Ok(config.headers.iter().map(pair).collect())
}

#[test]
fn no_variables_mean_defaults() {
    assert_eq!(parse(&[]), Ok(OtlpConfig::default()));
    let empty = [("OTEL_EXPORTER_OTLP_HEADERS", ""), ("OTEL_EXPORTER_OTLP_COMPRESSION", "")];
    assert_eq!(parse(&empty), Ok(OtlpConfig::default()));
}

#[test]
fn headers_are_decoded_and_their_names_lowercased() {
    for (list, expected) in [
        ("api-key=abc", vec![("api-key", "abc")]),
        ("Authorization=Basic%20dTpw==", vec![("authorization", "Basic dTpw==")]),
        (" A = b , c=d%2Ce,", vec![("a", "b"), ("c", "d,e")]),
        ("a=1,A=2", vec![("a", "2")]),
        ("a=", vec![("a", "")]),
    ] {
        let expected: Vec<_> = expected.iter().map(|(n, v)| (n.to_string(), v.to_string())).collect();
        assert_eq!(parse_headers(list), Ok(expected), "{list}");
    }
}

#[test]
fn malformed_headers_are_errors_without_their_values() {
    for (list, why) in [
        ("a=b,SECRET", "entry 2 has no `=`"),
        ("=SECRET", "entry 1 has no valid header name"),
        ("SECRET SECRET=x", "entry 1 has no valid header name"),
        ("a=SECRET%2", "the value of `a` has a `%`"),
        ("a=SECRET%+1", "the value of `a` has a `%`"),
        ("a=SECRET%0D%0AHost:%20x", "the value of `a` has a character"),
        ("a=SECRET%ff", "the value of `a` has a character"),
        ("Content-Type=SECRET", "the header `content-type` is set by blkkin"),
        ("grpc-timeout=SECRET", "the header `grpc-timeout` is set by blkkin"),
    ] {
        let error = parse_headers(list).expect_err(list);
        assert_eq!(error.variable, "OTEL_EXPORTER_OTLP_HEADERS");
        assert!(error.why.contains(why), "{list}: {error}");
        assert!(!error.remedy.is_empty() && !error.to_string().contains("SECRET"), "{error}");
    }
}

#[test]
fn trace_variables_replace_general_ones() {
    let config = parse(&[
        ("OTEL_EXPORTER_OTLP_HEADERS", "a=1"),
        ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "b=2"),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "none"),
        ("OTEL_EXPORTER_OTLP_TRACES_COMPRESSION", "gzip"),
        ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/general.pem"),
        ("OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE", "/traces.pem"),
    ])
    .expect("valid variables");
    assert_eq!(config.headers.keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["b"]);
    assert_eq!(config.compression, Compression::Gzip);
    assert_eq!(config.tls.authorities.as_deref(), Some(Path::new("/traces.pem")));
}

#[test]
fn error_names_the_variable_that_was_used() {
    let error = parse(&[("OTEL_EXPORTER_OTLP_TRACES_COMPRESSION", "zstd")]).expect_err("an error");
    let text = "OTEL_EXPORTER_OTLP_TRACES_COMPRESSION: unknown compression `zstd`; write gzip or none";
    assert_eq!(error.to_string(), text);
}

#[test]
fn header_values_are_not_displayed() {
    let config = parse(&[("OTEL_EXPORTER_OTLP_HEADERS", "api-key=SECRET-TOKEN")]).expect("a header");
    assert!(!format!("{config:?}").contains("SECRET"), "{config:?}");
    assert_eq!(redact("no user has SECRET-TOKEN here", &config.headers), "no user has [redacted] here");
}

#[test]
fn client_certificate_needs_its_key() {
    let both =
        [("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", "c.pem"), ("OTEL_EXPORTER_OTLP_CLIENT_KEY", "k.pem")];
    let config = parse(&both).expect("valid variables");
    assert_eq!(config.tls.identity, Some(("c.pem".into(), "k.pem".into())));
    for one in both {
        let error = parse(&[one]).expect_err("an error");
        assert_eq!(error.variable, one.0);
        assert!(error.remedy.contains("CLIENT_CERTIFICATE and OTEL_EXPORTER_OTLP_CLIENT_KEY"), "{error}");
    }
}

/// Reads headers from a file that its group may read.
fn headers_of_file(text: &str) -> Result<HeaderMap, OtlpConfigError> {
    use std::os::unix::fs::PermissionsExt;
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), text).expect("a writable file");
    std::fs::set_permissions(file.path(), std::fs::Permissions::from_mode(0o640)).expect("own file");
    let mut config = parse(&[("OTEL_EXPORTER_OTLP_HEADERS", "replaced=1")]).expect("valid variables");
    config.read_headers(file.path()).map(|()| config.headers)
}

#[test]
fn headers_of_a_file_are_lines_and_replace_the_variable() {
    let headers = headers_of_file("# a comment\n\nApi-Key: SECRET%2=,x\r\nAuthorization: Basic dTpw==\n");
    let headers = headers.expect("valid lines");
    let values = ["api-key", "authorization"].map(|name| headers[name].to_str().expect("ASCII"));
    assert_eq!((headers.len(), values), (2, ["SECRET%2=,x", "Basic dTpw=="]));
    assert!(!format!("{headers:?}").contains("SECRET"), "{headers:?}");
}

#[test]
fn malformed_lines_are_errors_without_their_values() {
    for (text, why) in [
        ("a: b\nSECRET", "line 2 has no valid header name"),
        ("SECRET SECRET: x", "line 1 has no valid header name"),
        ("a: SECRET\u{7}", "the value of `a` has a character"),
        ("Content-Type: SECRET", "the header `content-type` is set by blkkin"),
    ] {
        let error = headers_of_file(text).expect_err(text);
        assert!(error.why.contains(why), "{text}: {error}");
        assert!(!error.to_string().contains("SECRET"), "{error}");
    }
}
