//! Tags of the calling process: the kernel's record of the task, the process context and the
//! thread's attributes.
//!
//! *In*: a trace. *Out*: tags. *Invariant*: attributes of a program have a prefix of their own, so
//! none can replace a tag of the kernel or of blkkin. `app.` is of the process and `app_thread.` of
//! the thread, so a thread's attribute cannot replace its process's either.
//!
//! *Rejected*: `app.thread.`. A process's own attribute `thread.…` has that name.

use blkkin_wire::process_context::{Attribute, AttributeValue};

use super::tags::Tags;
use crate::trace::Trace;
use crate::trace::thread_attributes;

/// Adds the tags of the task, also for I/O that the kernel's tasks began.
pub(super) fn process_tags(trace: &Trace, tags: &mut Tags) {
    if let Some(exe) = &trace.names.exe {
        tags.shared("process.executable.name", exe.base());
        tags.shared("process.executable.path", exe.shown_path());
    }
    machine_tags(trace, tags);
    let Some(task) = &trace.names.task else { return };
    tags.number("process.pid", task.pid.0);
    tags.number("process.parent_pid", task.ppid.0);
    tags.number("thread.id", task.tid.0);
    tags.shared("thread.name", &task.comm);
    // The real uid (`cred.uid`) of the two that a credential has.
    tags.number("process.real_user.id", task.uid.0);
    tags.number("blkkin.cgroup", task.cgroup.0);
    application_tags(trace, tags);
}

/// Adds the names of the virtual machine.
pub(super) fn machine_tags(trace: &Trace, tags: &mut Tags) {
    let Some(machine) = trace.names.virtual_machine() else { return };
    for (key, text) in [("blkkin.vm.name", &machine.name), ("blkkin.vm.uuid", &machine.uuid)] {
        if !text.is_empty() {
            tags.shared(key, text);
        }
    }
}

/// Adds the attributes of the process context.
fn application_tags(trace: &Trace, tags: &mut Tags) {
    let Some(process) = trace.names.process_context() else { return };
    for Attribute { key, value } in &process.attributes {
        let key = ["app.", key].concat();
        match value {
            AttributeValue::Text(text) => tags.application_text(key, text),
            AttributeValue::Number(number) => tags.application_number(key, *number),
        }
    }
    tags.count("blkkin.app.dropped_attributes_count", process.dropped_attributes_count);
}

/// Adds the attributes of the calling thread.
pub(super) fn thread_tags(trace: &Trace, tags: &mut Tags) {
    let Some(resolved) = thread_attributes::resolve(trace) else { return };
    for (name, value) in resolved.values {
        tags.application_text(["app_thread.", name].concat(), value);
    }
    tags.count("blkkin.app_thread.dropped_attributes_count", resolved.dropped_attributes_count);
    tags.count("blkkin.app_thread.bytes_unread", resolved.bytes_unread);
}
