//! A user's program that reads the thread contexts of its own threads. Prints the status of
//! publishing.

use blkkin_ust::{Span, SpanContext, SpanKind};

fn main() {
    let _ = blkkin_ust::init();
    if let Err(error) = blkkin_ust::publishing() {
        return println!("{error}");
    }
    let span = |number: u64| {
        let context =
            SpanContext { trace_hi: !number, trace_lo: number, span: number, parent: 0, sampled: true };
        Span::continued(context, SpanKind::Server, c"x", c"s")
    };
    let (one, two) = (span(1), span(2));
    assert_eq!(published_span(), 0);
    let outer = one.enter();
    let inner = two.enter();
    assert_eq!(published_span(), 2);
    drop(inner);
    assert_eq!(published_span(), 1);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            assert_eq!(published_span(), 0);
            let _entered = two.enter();
            assert_eq!(published_span(), 2);
        });
    });
    drop(outer);
    assert_eq!(published_span(), 0);
    println!("ok");
}

/// Returns the id of the published span, through the symbol that the dynamic loader resolves, or 0.
fn published_span() -> u64 {
    // SAFETY: the names end in a NUL. The variable belongs to this thread, and is null or points to
    // a record.
    unsafe {
        let slot = libc::dlopen(c"blkkin-thread-slot.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD);
        assert!(!slot.is_null());
        let variable: *const *const [u8; 28] = libc::dlsym(slot, c"otel_thread_ctx_v1".as_ptr()).cast();
        assert!(!variable.is_null());
        match variable.read_volatile().as_ref() {
            Some(record) if record[24] == 1 => {
                let span: [u8; 8] = record[16..24].try_into().unwrap();
                assert_eq!((record[8..16].to_vec(), record[25]), (span.to_vec(), 1));
                u64::from_be_bytes(span)
            }
            _ => 0,
        }
    }
}
