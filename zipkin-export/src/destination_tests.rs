use super::*;

#[test]
fn url_without_path_gets_zipkins_path() {
    for (given, posted) in [
        ("http://localhost:9411", "http://localhost:9411/api/v2/spans"),
        ("http://localhost:9411/", "http://localhost:9411/api/v2/spans"),
        ("HTTPS://zipkin.example", "https://zipkin.example/api/v2/spans"),
        ("http://[::1]:9411", "http://[::1]:9411/api/v2/spans"),
        ("http://h/?tenant=a", "http://h/api/v2/spans?tenant=a"),
        ("http://h:9411/zipkin/api/v2/spans", "http://h:9411/zipkin/api/v2/spans"),
        ("http://h/other?k=v", "http://h/other?k=v"),
        ("http://h/?format=proto3&tenant=a", "http://h/api/v2/spans?tenant=a"),
        ("http://h?format=proto3", "http://h/api/v2/spans"),
    ] {
        match Destination::parse(given) {
            Ok(Destination::Http(url, Format::Proto3)) => assert_eq!(url.uri().to_string(), posted),
            other => panic!("{given}: {other:?}"),
        }
    }
}

#[test]
fn other_values_are_paths() {
    for given in ["trace.json", "/tmp/a b.json", "./localhost:9411", "a/b:7/c", "C:x", "a://b", "x/://y"] {
        match Destination::parse(given) {
            Ok(Destination::File(path)) => assert_eq!(path, PathBuf::from(given)),
            Err(DestinationError::Scheme(scheme)) => assert_eq!((given, &*scheme), ("a://b", "a")),
            other => panic!("{given}: {other:?}"),
        }
    }
}

#[test]
fn ambiguous_value_is_an_error_with_a_remedy() {
    for (given, remedy) in [
        ("", "zipkin=trace.json"),
        ("ftp://h/x", "write http://"),
        ("localhost:9411", "write http://localhost:9411 or ./localhost:9411"),
        ("zipkin:9411/api/v2/spans", "write http://zipkin:9411/api/v2/spans"),
        ("traces/", "traces/trace.json"),
        ("http://", "is not a URL"),
        ("http://a b", "is not a URL"),
        ("http://h:99999", "is not a URL"),
    ] {
        let error = Destination::parse(given).expect_err(given).to_string();
        assert!(error.contains(remedy), "{given}: {error}");
    }
}

#[test]
fn passwords_are_not_displayed() {
    let url = Destination::parse("https://me:secret@h:1/p?key=secret").map(|d| d.to_string());
    assert_eq!(url.as_deref(), Ok("zipkin=https://h:1/p"));
}

#[test]
fn loopback_is_recognised_by_name_and_address() {
    for (url, loopback) in [
        ("http://localhost:1", true),
        ("http://127.0.0.9:1", true),
        ("http://[::1]:1", true),
        ("http://10.0.0.1:1", false),
        ("http://localhost.example", false),
    ] {
        let Ok(Destination::Http(parsed, _)) = Destination::parse(url) else { panic!("{url}") };
        assert_eq!(parsed.is_loopback(), loopback, "{url}");
    }
}

fn read(word: &str) -> Destination {
    let (kind, value) = word.split_once('=').expect("a word");
    Destination::read(kind, value).expect("a kind").expect("a place")
}

#[test]
fn each_kind_is_parsed_and_displayed() {
    for (word, shown) in [
        ("zipkin=http://h:9411?format=json", "zipkin=http://h:9411/api/v2/spans"),
        ("otlp=http://h:4318", "otlp=http://h:4318/v1/traces"),
        ("otlp=grpc://h:4317", "otlp=grpc://h:4317"),
        ("otlp=grpcs://h:4317", "otlp=grpcs://h:4317"),
        ("zipkin-kafka=a:1,b:2", "zipkin-kafka=a:1,b:2/zipkin"),
        ("zipkin-kafka=a:1/own?format=json", "zipkin-kafka=a:1/own"),
        ("zipkin=x.json", "zipkin=x.json"),
    ] {
        assert_eq!(read(word).to_string(), shown);
    }
    assert!(matches!(read("zipkin=http://h?format=json"), Destination::Http(_, Format::Json)));
    assert_eq!(Destination::read("html", "x"), None);
    for (kind, value) in [("otlp", "h:4318"), ("zipkin-kafka", "h"), ("zipkin", "http://h?format=xml")] {
        assert!(Destination::read(kind, value).expect("a kind").is_err(), "{kind}={value}");
    }
}

#[test]
fn name_identifies_the_destination_and_is_stable() {
    let named = |word| read(word).name();
    assert_eq!(named("zipkin=http://h:9411"), "zipkin-http-h-9411-api-v2-spans");
    assert_eq!(named("zipkin=http://h:9411?format=json"), "zipkin-http-h-9411-api-v2-spans");
    assert_eq!(named("zipkin=http://u:old@h/?t=1"), named("zipkin=http://u:new@h/?t=1"));
    assert_ne!(named("zipkin=http://h/?t=1"), named("zipkin=http://h/?t=2"));
    assert_eq!(named("otlp=grpc://h:4317"), "otlp-grpc-h-4317");
    assert_eq!(named("otlp=grpcs://h:4317"), "otlp-grpcs-h-4317");
}
