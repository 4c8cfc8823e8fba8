//! Synthetic ring entries in the format of the eBPF programs. Of 11 system calls two reach the
//! disk, one with a pair record (a bio and its request) and one with separate records of both; so
//! 64 % of the records are system calls alone.

use blkkin_probe_abi::Plain;
use blkkin_probe_abi::record::{
    BIO_FIRST, BioRecord, BioRequestRecord, FileId, FileRecord, Header, RequestRecord, SYSCALL_HAS_FILE,
    SyscallRecord, TAG_BIO, TAG_BIO_REQUEST, TAG_FILE, TAG_REQUEST, TAG_SYSCALL, TAG_TASK, TaskRecord,
};
use blkkin_tracer::read::decode::bytes_of;
use blkkin_wire::syscalls::{Arch, SyscallId};

/// Time in ns between the starts of two system calls.
pub const STEP: u64 = 2_000;
const TASKS: u64 = 16;
const FILES: u64 = 256;
/// Device 7:0 in the kernel's encoding.
const DISK: u32 = 7 << 20;

/// Ring entries in order.
#[derive(Default)]
pub struct Entries {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Entries {
    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Returns the size in the ring.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Iterates over the bytes of the entries.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let starts = [0].into_iter().chain(self.ends.iter().map(|end| end.next_multiple_of(8)));
        starts.zip(&self.ends).map(|(start, end)| &self.bytes[start..*end])
    }

    /// Makes the name records that the other entries refer to.
    pub fn names() -> Entries {
        let mut entries = Entries::default();
        for n in 0..TASKS {
            let task = TaskRecord {
                task: n + 1,
                tid: 100 + n as u32,
                pid: 100,
                version: 1,
                ..TaskRecord::default()
            };
            entries.put(TAG_TASK, 0, 1, task, b"", |record| &mut record.header);
        }
        for n in 0..FILES {
            let record = FileRecord { file: file(n), mode: 0o100_644, ..FileRecord::default() };
            entries.put(TAG_FILE, 0, 1, record, b"name\0data\0srv\0", |record| &mut record.header);
        }
        entries
    }

    /// Adds the `n`th system call and its block I/O.
    pub fn add_call(&mut self, n: u64) {
        let reaches_disk = match n % 11 {
            0 => self.add_pair(n),
            5 => self.add_separate_bio_and_request(n),
            _ => false,
        };
        let (time, root) = (n * STEP, span(n, 0));
        let (task, task_version, bytes) = (n % TASKS + 1, 1, 4096_u32);
        let call = SyscallId::by_name("pread64").expect("invariant: in the table");
        let record = SyscallRecord {
            span: root,
            task,
            enter_ns: time,
            ret: bytes.into(),
            args: [3, 0x7f00_0000_0000, bytes.into(), n * 4096, 0, 0],
            file: file(n % FILES),
            number: call.spec().number(Arch::HOST).expect("invariant: every machine has it"),
            task_version,
            bios: reaches_disk.into(),
            sleeps: reaches_disk.into(),
            fd: 3,
            ..SyscallRecord::default()
        };
        self.put(TAG_SYSCALL, SYSCALL_HAS_FILE, time + 1_000, record, b"", |record| &mut record.header);
    }

    /// Adds the block I/O of the `n`th system call without the call, which is still open.
    pub fn add_open(&mut self, n: u64) {
        if n.is_multiple_of(2) {
            self.add_pair(n)
        } else {
            self.add_separate_bio_and_request(n)
        };
    }

    /// Adds a bio and its request as one record. Always returns true: it reached the disk.
    fn add_pair(&mut self, n: u64) -> bool {
        let (time, root) = (n * STEP, span(n, 0));
        let (task, task_version, bytes) = (n % TASKS + 1, 1, 4096);
        let record = BioRequestRecord {
            bio: span(n, 1),
            parent: root,
            root,
            task,
            queue_ns: time + 90,
            request: span(n, 2),
            start_ns: time + 100,
            issue_ns: time + 200,
            sector: n * 8,
            disk_sector: n * 8,
            dev: DISK,
            disk: DISK,
            bytes,
            bio_opf: 1,
            request_opf: 1,
            task_version,
            bio_flags: BIO_FIRST,
            ..BioRequestRecord::default()
        };
        self.put(TAG_BIO_REQUEST, 0, time + 900, record, b"", |record| &mut record.header);
        true
    }

    /// Adds a bio and its request as two records. Always returns true: it reached the disk.
    fn add_separate_bio_and_request(&mut self, n: u64) -> bool {
        let (time, root) = (n * STEP, span(n, 0));
        let (task, task_version, bytes) = (n % TASKS + 1, 1, 4096);
        let (start_ns, sector, dev, opf) = (time + 100, n * 8, DISK, 1);
        let (bio, request) = (span(n, 1), span(n, 2));
        let record = RequestRecord {
            span: request,
            parent: bio,
            root,
            task,
            start_ns,
            issue_ns: time + 200,
            sector,
            dev,
            bytes,
            opf,
            task_version,
            bios: 1,
            ..RequestRecord::default()
        };
        self.put(TAG_REQUEST, 0, time + 900, record, b"", |record| &mut record.header);
        let record = BioRecord {
            span: bio,
            parent: root,
            root,
            task,
            request,
            queue_ns: start_ns,
            sector,
            dev,
            bytes,
            opf,
            task_version,
            ..BioRecord::default()
        };
        self.put(TAG_BIO, BIO_FIRST, time + 910, record, b"", |record| &mut record.header);
        true
    }

    fn put<T: Plain>(
        &mut self,
        tag: u8,
        flags: u16,
        time_ns: u64,
        mut record: T,
        tail: &[u8],
        header: impl Fn(&mut T) -> &mut Header,
    ) {
        let len = (size_of::<T>() + tail.len()) as u32;
        *header(&mut record) = Header { tag, sampling: 0, flags, len, time_ns };
        // Aligned as in a ring: each entry begins at a multiple of 8.
        self.bytes.resize(self.bytes.len().next_multiple_of(8), 0);
        self.bytes.extend_from_slice(bytes_of(&record));
        self.bytes.extend_from_slice(tail);
        self.ends.push(self.bytes.len());
    }
}

fn file(n: u64) -> FileId {
    FileId { dev: DISK, generation: 1, ino: 1000 + n, name: 1 }
}

/// Makes a span id in no order, like those of the kernel side.
fn span(n: u64, part: u64) -> u64 {
    (n * 4 + part + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[cfg(test)]
mod tests {
    use super::*;
    use blkkin_tracer::attach::req_op::ReqOpTable;
    use blkkin_tracer::read::decode::decode;
    use blkkin_tracer::read::translate::append;

    #[test]
    fn tracer_decodes_every_entry() {
        let mut entries = Entries::names();
        (0..110).for_each(|n| entries.add_call(n));
        assert_eq!(entries.len() as u64, TASKS + FILES + 110 + 2 * 10 + 10);
        let mut events = Vec::new();
        assert!(
            entries
                .iter()
                .all(|bytes| { append(decode(bytes).unwrap(), &ReqOpTable::default(), &mut events) })
        );
        assert_eq!(events.len(), entries.len());
    }
}
