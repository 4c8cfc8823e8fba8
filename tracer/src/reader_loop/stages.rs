//! Stages that each batch passes between the merged rings and the bus.
//!
//! *In*: the merged events below a watermark. *Out*: the same events, with those that the stages
//! append: origins of pages, ends of NBD requests, names of devices, process contexts, virtual machines. USDT events
//! leave through their own channel.
//!
//! *Invariant*: the order is [`STAGES`], for every batch and with every combination of options.

use blkkin_wire::clock::MonotonicNs;
use blkkin_wire::event::LayerEvent;

use super::EventLoop;
use crate::clock;

/// Batch that the stages complete before it is published.
pub(super) struct PendingBatch {
    pub(super) events: Vec<LayerEvent>,
    /// Time before which no further event follows.
    pub(super) watermark: MonotonicNs,
    /// Time at which the rings were polled.
    pub(super) polled_at: MonotonicNs,
    /// USDT records that were dropped because a ring was full.
    pub(super) usdt_dropped: u64,
}

/// Stages between the merged rings and the bus, in the order in which each batch passes them. The
/// stage of an option that is off leaves the batch as it is.
pub(super) const STAGES: [fn(&mut EventLoop, &mut PendingBatch); 10] = [
    EventLoop::watch_processes,
    EventLoop::exclude_paths,
    EventLoop::append_page_origins,
    EventLoop::end_nbd_requests,
    EventLoop::store_progress,
    EventLoop::name_devices,
    EventLoop::append_process_contexts,
    EventLoop::append_virtual_machines,
    EventLoop::emit_usdt_events,
    EventLoop::drop_dirty_events,
];

impl EventLoop {
    /// Drops the calls that the path filter excludes, before any other stage refers to them.
    fn exclude_paths(&mut self, batch: &mut PendingBatch) {
        if let Some(filter) = &mut self.tracer.path_filter {
            self.rings.recorded.calls_excluded += filter.apply(&mut batch.events);
        }
    }

    /// Appends the origins of bios' pages whose writers are known.
    fn append_page_origins(&mut self, batch: &mut PendingBatch) {
        let watermark = if self.closing { MonotonicNs(u64::MAX) } else { batch.watermark };
        self.rings.page_origins.process(&mut batch.events, watermark);
    }

    /// Ends the NBD requests in flight without a reply, if no further records will be read.
    fn end_nbd_requests(&mut self, batch: &mut PendingBatch) {
        if let (Some(requests), true) = (&mut self.rings.nbd, self.closing) {
            requests.finish(clock::now(), &mut batch.events);
        }
    }

    /// Stores the number of records read, for the loss report of a crashed run.
    fn store_progress(&mut self, _: &mut PendingBatch) {
        if let Some(progress) = &self.tracer.progress {
            let recorded = &self.rings.recorded;
            progress.set_read(&recorded.counts(), recorded.calls_excluded);
        }
    }

    /// Passes the events to the watcher, which looks for contexts of new programs and libraries.
    fn watch_processes(&mut self, batch: &mut PendingBatch) {
        if let Some(watcher) = &mut self.watcher {
            watcher.observe(&batch.events);
        }
    }

    /// Appends the names of devices that occur for the first time.
    fn name_devices(&mut self, batch: &mut PendingBatch) {
        let mut new = Vec::new();
        for event in &batch.events {
            match event {
                LayerEvent::Bio(bio) => new.extend(self.devices.first_use(bio.device, bio.end)),
                LayerEvent::Request(request) => {
                    new.extend(self.devices.first_use(request.device, request.complete));
                }
                LayerEvent::Pair(pair) => {
                    new.extend(self.devices.first_use(pair.bio.device, pair.bio.end));
                    new.extend(self.devices.first_use(pair.request.device, pair.request.complete));
                }
                LayerEvent::Commit(commit) => new.extend(self.devices.first_use(commit.device, commit.end)),
                _ => {}
            }
        }
        batch.events.extend(new.into_iter().map(LayerEvent::Device));
    }

    /// Appends the process contexts that were read between the last watermark and this one.
    fn append_process_contexts(&mut self, batch: &mut PendingBatch) {
        if let Some(watcher) = &mut self.watcher {
            let processes = watcher.take_process_events(self.last_watermark, batch.watermark);
            let events = processes.into_iter().map(|process| LayerEvent::ProcessContext(process.into()));
            batch.events.extend(events);
        }
    }

    /// Appends the virtual machines of QEMU's processes that were read between the last watermark and this one.
    fn append_virtual_machines(&mut self, batch: &mut PendingBatch) {
        let Some(watcher) = &mut self.machines else { return };
        watcher.observe(&batch.events);
        let machines = watcher.take(self.last_watermark, batch.watermark);
        batch.events.extend(machines.into_iter().map(|machine| LayerEvent::VirtualMachine(machine.into())));
    }

    /// Emits the USDT events below the watermark, so that their consumer has them before the batch.
    fn emit_usdt_events(&mut self, batch: &mut PendingBatch) {
        if let Some(usdt) = &mut self.rings.usdt {
            usdt.emit(batch.watermark, batch.usdt_dropped, batch.polled_at);
        }
    }

    /// Drops the events of dirty pages, which no consumer after this stage knows.
    fn drop_dirty_events(&mut self, batch: &mut PendingBatch) {
        if self.tracer.keeps_dirty_events {
            return;
        }
        batch.events.retain(|event| !matches!(event, LayerEvent::Dirty(_)));
    }
}
