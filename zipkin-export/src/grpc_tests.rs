use super::*;
use crate::destination::Destination;

fn transport() -> GrpcTransport {
    let Some(Ok(Destination::Grpc(url))) = Destination::read("otlp", "grpc://h:4317") else {
        panic!("a URL")
    };
    GrpcTransport::new(url, &ExportConfig::default()).unwrap()
}

#[test]
fn each_status_has_the_meaning_of_the_specification() {
    let transport = transport();
    for code in 1..=16 {
        let reply = transport.classify(Err(Status::new(code.into(), "reason")));
        let (text, expected) = match &reply {
            Err(Unreachable { reason: FailureReason::Busy, why }) => (why, [8, 14].contains(&code)),
            Err(Unreachable { reason, why }) => {
                (why, *reason == FailureReason::ServerError && [1, 4, 10, 11, 15].contains(&code))
            }
            Ok(ServerReply::Denied(why)) => (why, [5, 7, 12, 16].contains(&code)),
            Ok(ServerReply::ServerError(why)) => (why, [2, 13].contains(&code)),
            Ok(ServerReply::Refused(why)) => (why, [3, 6, 9].contains(&code)),
            Ok(other) => panic!("{code}: {other:?}"),
        };
        assert!(expected, "{code}: {reply:?}");
        assert!(text.contains(&format!("responded with status {code}: reason")), "{text}");
    }
}

#[test]
fn response_without_partial_success_is_accepted() {
    assert_eq!(transport().classify(Ok(Bytes::new())), Ok(ServerReply::Accepted));
    // partial_success { rejected_spans: 3, error_message: "no" }
    let partial = Bytes::from_static(&[0x0a, 6, 0x08, 3, 0x12, 2, b'n', b'o']);
    assert_eq!(transport().classify(Ok(partial)), Ok(ServerReply::PartlyAccepted(3, "no".into())));
}
