use blkkin_tracer::*;
use blkkin_wire::event::LayerEvent;
fn main() {
    let t0 = std::time::Instant::now();
    let attach = std::env::args().nth(1).and_then(|k| AttachKind::by_name(&k));
    let tracer = match Tracer::load(&TracerConfig { attach, ..TracerConfig::default() }) { Ok(t) => t, Err(e) => { eprintln!("{e}"); std::process::exit(1) } };
    eprintln!("loaded in {:?}", t0.elapsed());
    let mut child = { let _m = tracer.follow_children_of_this_thread().unwrap();
      std::process::Command::new("sh").args(["-c", &std::env::args().nth(2).unwrap_or("cat /etc/hostname".into())]).spawn().unwrap() };
    let (tx, mut rx) = blkkin_bus::topic(64);
    let stop = StopSignal::new(); let s2 = stop.clone();
    let h = std::thread::spawn(move || tracer.drain(tx, s2));
    let c = std::thread::spawn(move || { let mut n = 0; loop { match rx.next(std::time::Duration::from_secs(1)) { blkkin_bus::Next::Item(b) => for e in b.events { n+=1; if n < 200 { match e { LayerEvent::Call(c) => println!("{} {:?} {:?} file={:?} paths={:?} bios={} sleeps={} sync={:?} {}ns", c.call.name(), c.ending, c.args[0], c.file, c.paths, c.bios, c.sleeps, c.sync_tid, c.exit.0-c.enter.0), e => println!("{e:?}") } } }, blkkin_bus::Next::Closed => break, _ => {} } } n });
    child.wait().unwrap(); stop.stop();
    let a = h.join().unwrap().unwrap(); let n = c.join().unwrap();
    println!("{n} {a:#?}");
}
