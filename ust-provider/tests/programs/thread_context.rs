//! A program of its own crate that asks, as a reader in the same process, for what its threads publish. Prints how publishing is.

use blkkin_ust::{SpanContext, SpanKind, Span};

fn main() {
    let _ = blkkin_ust::init();
    if let Err(why) = blkkin_ust::publishing() {
        return println!("{why}");
    }
    let span = |number: u64| {
        let context = SpanContext { trace_hi: !number, trace_lo: number, span: number, parent: 0, sampled: true };
        Span::continued(context, SpanKind::Server, c"x", c"s")
    };
    let (one, two) = (span(1), span(2));
    assert_eq!(named(), 0);
    let working = one.enter();
    let inner = two.enter();
    assert_eq!(named(), 2);
    drop(inner);
    assert_eq!(named(), 1);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            assert_eq!(named(), 0);
            let _working = two.enter();
            assert_eq!(named(), 2);
        });
    });
    drop(working);
    assert_eq!(named(), 0);
    println!("ok");
}

/// The span that the loader's own word leads to; 0: none.
fn named() -> u64 {
    // SAFETY: the names end in a NUL; the variable is this thread's, and so is the record that it points at.
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
