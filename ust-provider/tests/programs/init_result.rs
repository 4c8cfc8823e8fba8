//! A user's program that connects, prints the result, then calls functions, which must work in
//! every case. With the argument `publishing` it only prints the status of publishing.

use std::time::Instant;

use blkkin_ust::{ScopedSpan, Span, SpanContext, SpanKind};

const SERVICE: &std::ffi::CStr = c"init-result";

fn main() {
    let begun = Instant::now();
    let result = blkkin_ust::init();
    let took = begun.elapsed();
    if std::env::args().nth(1).is_some_and(|arg| arg == "publishing") {
        match blkkin_ust::publishing() {
            Ok(()) => println!("ok"),
            Err(error) => println!("{error}"),
        }
        return;
    }
    match &result {
        Ok(_) => println!("ok"),
        Err(error) => println!("{error}"),
    }
    assert_eq!(result.is_ok(), blkkin_ust::init().is_ok());
    let span = Span::root(SpanKind::Server, c"x", SERVICE);
    let child = span.child(SpanKind::Internal, c"y");
    child.set_text(c"k", c"v");
    let _entered = child.enter();
    let remote =
        SpanContext::from_traceparent("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01").unwrap();
    let continued = ScopedSpan::continued(remote, SpanKind::Server, c"z", SERVICE);
    if !blkkin_ust::enabled() {
        assert!(!span.is_recording() && span.context().is_none());
        assert_eq!(continued.context(), remote);
        assert_eq!(blkkin_ust::stats(), Default::default());
    }
    println!("{}", took.as_micros());
}
