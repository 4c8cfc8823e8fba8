//! A program that connects and says how that ended, then makes every kind of call: none may depend on it. Asked for `publishing` it says how
//! that is, and nothing else.

use std::time::Instant;

use blkkin_ust::{SpanContext, ScopedSpan, SpanKind, Span};

const SERVICE: &std::ffi::CStr = c"verdict";

/// How `init` ends, and that every call works all the same.
fn main() {
    let begun = Instant::now();
    let verdict = blkkin_ust::init();
    let took = begun.elapsed();
    if std::env::args().nth(1).is_some_and(|word| word == "publishing") {
        match blkkin_ust::publishing() {
            Ok(()) => println!("ok"),
            Err(why) => println!("{why}"),
        }
        return;
    }
    match &verdict {
        Ok(_) => println!("ok"),
        Err(why) => println!("{why}"),
    }
    assert_eq!(verdict.is_ok(), blkkin_ust::init().is_ok());
    let span = Span::root(SpanKind::Server, c"x", SERVICE);
    let child = span.child(SpanKind::Internal, c"y");
    child.set_text(c"k", c"v");
    let _entered = child.enter();
    let came = SpanContext::from_traceparent("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01").unwrap();
    let continued = ScopedSpan::continued(came, SpanKind::Server, c"z", SERVICE);
    if !blkkin_ust::enabled() {
        assert!(!span.is_recording() && span.context().is_none());
        assert_eq!(continued.context(), came);
        assert_eq!(blkkin_ust::stats(), Default::default());
    }
    println!("{}", took.as_micros());
}
