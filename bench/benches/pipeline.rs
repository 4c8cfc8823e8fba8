//! Criterion benchmarks of the pipeline's stages: ns per event and events per second.
//!
//! `cargo bench -p blkkin-bench` compares with the last run on this machine. Each sample is a pass
//! of the stage over 50,000 calls; making its input and dropping its output is not timed. The
//! stable gate is `cargo xtask test`, which counts instructions.

use std::time::{Duration, Instant};

use blkkin_bench::aggregate;
use blkkin_bench::pipeline::{self, Meter, NoMeter, Stage};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};

const CALLS: u64 = 50_000;

/// Timer of one stage.
struct Timer {
    stage: Stage,
    spent: Duration,
}

impl Meter for Timer {
    fn stage<T>(&mut self, stage: Stage, work: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let result = work();
        if stage == self.stage {
            self.spent += start.elapsed();
        }
        result
    }
}

fn stages(criterion: &mut Criterion) {
    let events = pipeline::run(CALLS, Stage::DecodeTranslate, &mut NoMeter).events;
    let mut group = criterion.benchmark_group("pipeline");
    group.throughput(Throughput::Elements(events)).sample_size(20);
    for stage in Stage::ALL {
        group.bench_function(stage.name(), |bencher| {
            bencher.iter_custom(|passes| {
                let mut timer = Timer { stage, spent: Duration::ZERO };
                (0..passes).for_each(|_| {
                    pipeline::run(CALLS, stage, &mut timer);
                });
                timer.spent
            });
        });
    }
    // The aggregator's first stage, from a decoded batch to encoded fragments.
    group.bench_function("aggregate", |bencher| {
        bencher.iter_custom(|passes| (0..passes).map(|_| aggregate::run(CALLS).spent).sum());
    });
    group.finish();
}

criterion_group!(benches, stages);
criterion_main!(benches);
