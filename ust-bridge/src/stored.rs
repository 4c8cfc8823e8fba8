//! A folder of stored traces, as LTTng's consumer or relay leaves it: all events in order of time.
//!
//! A trace is a folder with a file `metadata`; each other file in it is a part of a stream. Relays cut a stream into several
//! files (`--tracefile-size`); packets say whose they are. What cannot be read is told ([`Stored::troubles`]), and
//! the rest is read.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::ctf::cursor::ReadError;
use crate::ctf::metadata::{MetadataError, Trace};
use crate::ctf::packet::{Decoder, Event, Losses, PACKET_MAX, PacketError, PacketHead, Place, Since};
use crate::merge::Merge;
use crate::timeline::{Timeline, ticks_compare};
use crate::view::View;

/// How much of a packet is read to see how large it is; four times as much where that is not enough.
const HEAD_BYTES: usize = 4096;
/// How deep folders are searched: LTTng's are `ust/uid/0/64-bit` below a session's.
const FOLDERS_DEEP: usize = 12;

/// Why a part of a folder is not read, or not to its end.
#[derive(Debug, thiserror::Error)]
pub enum Trouble {
    /// The system says so.
    #[error("cannot read: {0}")]
    Io(#[from] std::io::Error),
    /// A folder of streams that nothing describes.
    #[error("a trace without metadata: its {streams} streams cannot be read")]
    NoMetadata {
        /// Files that would be streams.
        streams: usize,
    },
    /// Its description.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    /// A packet; the stream ends before it.
    #[error(transparent)]
    Packet(#[from] PacketError),
}

/// One stream: its files, and what is decoded of it.
struct Stream {
    trace: usize,
    timeline: Timeline,
    files: VecDeque<PathBuf>,
    path: PathBuf,
    file: Option<File>,
    /// Bytes from the packet's begin on; some of the next may follow.
    bytes: Vec<u8>,
    used: usize,
    decoder: Decoder,
    head: PacketHead,
    place: Place,
    event: Event,
}

/// All traces below a folder.
pub struct Stored {
    traces: Vec<Trace>,
    streams: Vec<Stream>,
    merge: Merge,
    last: Option<usize>,
    /// What could not be read so far, and where.
    pub troubles: Vec<(PathBuf, Trouble)>,
}

impl Stored {
    /// Finds the traces below `folder` and reads their metadata.
    pub fn open(folder: &Path) -> Result<Self, Trouble> {
        let mut stored = Self {
            traces: Vec::new(),
            streams: Vec::new(),
            merge: Merge::default(),
            last: None,
            troubles: Vec::new(),
        };
        let mut folders = Vec::new();
        find(folder, FOLDERS_DEEP, &mut folders)?;
        for (folder, files) in folders {
            if let Err(trouble) = stored.add(files) {
                stored.troubles.push((folder, trouble));
            }
        }
        stored.start();
        Ok(stored)
    }

    fn add(&mut self, mut files: Vec<PathBuf>) -> Result<(), Trouble> {
        let metadata = files.iter().position(|file| file.file_name().is_some_and(|name| name == "metadata"));
        let Some(metadata) = metadata else { return Err(Trouble::NoMetadata { streams: files.len() }) };
        let metadata = files.swap_remove(metadata);
        if metadata.metadata()?.len() > crate::ctf::metadata::TEXT_MAX as u64 {
            return Err(MetadataError::TooLarge.into());
        }
        let trace = Trace::read(&std::fs::read(metadata)?)?;
        for files in group(&trace, files, &mut self.troubles) {
            self.streams.push(Stream::new(self.traces.len(), files));
        }
        self.traces.push(trace);
        Ok(())
    }

    fn start(&mut self) {
        let ticks = ticks_compare(&self.traces);
        for index in 0..self.streams.len() {
            let number = self.merge.add(i64::MIN);
            debug_assert_eq!(number, index, "the merge numbers streams as they are added");
            let stream = &mut self.streams[index];
            let clocks = &self.traces[stream.trace].clocks;
            stream.timeline = match clocks.first() {
                Some(clock) if !ticks => Timeline::since_1970(clock),
                _ => Timeline::TICKS,
            };
            self.advance(index);
        }
    }

    fn advance(&mut self, index: usize) {
        let stream = &mut self.streams[index];
        match stream.next(&self.traces[stream.trace]) {
            Ok(true) => self.merge.ready(index, stream.timeline.ns(stream.event.time)),
            Ok(false) => self.merge.close(index),
            Err(trouble) => {
                self.troubles.push((stream.path.clone(), trouble));
                self.merge.close(index);
            }
        }
    }

    /// The next event of all; none when all streams have ended.
    pub fn next_event(&mut self) -> Option<View<'_>> {
        if let Some(last) = self.last.take() {
            self.advance(last);
        }
        let (time_ns, index) = self.merge.pop()?;
        self.last = Some(index);
        let stream = &self.streams[index];
        Some(View {
            trace: &self.traces[stream.trace],
            trace_index: stream.trace,
            stream_index: index,
            head: &stream.head,
            packet: &stream.bytes[stream.used..],
            event: &stream.event,
            time_ns,
            gap: None,
        })
    }

    /// The traces that were found and understood.
    pub fn traces(&self) -> &[Trace] {
        &self.traces
    }

    /// How many streams there are.
    pub fn streams(&self) -> usize {
        self.streams.len()
    }

    /// What all streams together have lost, as far as they were read.
    pub fn losses(&self) -> Losses {
        self.streams.iter().map(|stream| stream.decoder.losses).fold(Losses::default(), Losses::and)
    }
}

impl Stream {
    fn new(trace: usize, files: VecDeque<PathBuf>) -> Self {
        Self {
            trace,
            timeline: Timeline::TICKS,
            path: files.front().cloned().unwrap_or_default(),
            files,
            file: None,
            bytes: Vec::new(),
            used: 0,
            decoder: Decoder::new(Since::Begin),
            head: PacketHead::default(),
            place: Place::default(),
            event: Event::default(),
        }
    }

    fn next(&mut self, trace: &Trace) -> Result<bool, Trouble> {
        loop {
            let packet = &self.bytes[self.used..];
            if self.decoder.next(trace, packet, &mut self.place, &mut self.event)? {
                return Ok(true);
            }
            if !self.next_packet(trace)? {
                return Ok(false);
            }
        }
    }

    fn next_packet(&mut self, trace: &Trace) -> Result<bool, Trouble> {
        let done =
            self.head.packet_bits.map_or(self.bytes.len() - self.used, |bits| bits.div_ceil(8) as usize);
        let done = if self.file.is_some() { done } else { 0 };
        self.used = (self.used + done).min(self.bytes.len());
        self.place = Place::default();
        while !self.fill(HEAD_BYTES)? {
            let Some(path) = self.files.pop_front() else { return Ok(false) };
            self.file = Some(File::open(&path)?);
            (self.path, self.used) = (path, 0);
            self.bytes.clear();
        }
        let mut wanted = HEAD_BYTES;
        let (head, _) = loop {
            match self.decoder.head(trace, &self.bytes[self.used..]) {
                Err(PacketError::Read(ReadError::Truncated(_)))
                    if self.bytes.len() - self.used >= wanted && wanted as u64 <= PACKET_MAX =>
                {
                    wanted *= 4;
                    self.fill(wanted)?;
                }
                done => break done?,
            }
        };
        let size = head.packet_bits.map_or(PACKET_MAX + 1, |bits| bits.div_ceil(8));
        self.fill(size as usize)?;
        (self.head, self.place) = self.decoder.open(trace, &self.bytes[self.used..])?;
        if self.head.packet_bits == Some(0) {
            return Err(PacketError::Sizes { packet: 0, content: 0 }.into());
        }
        Ok(true)
    }

    /// Reads until `wanted` bytes are there, or all of the file; true if there are any.
    fn fill(&mut self, wanted: usize) -> Result<bool, std::io::Error> {
        let have = self.bytes.len() - self.used;
        if let Some(file) = &mut self.file
            && have < wanted
        {
            self.bytes.drain(..self.used);
            self.used = 0;
            // Several small packets at a time: a read costs more than copying them does.
            let more = (wanted - have).max(64 << 10) as u64;
            file.take(more).read_to_end(&mut self.bytes)?;
        }
        Ok(self.bytes.len() > self.used)
    }
}

/// Folders that hold files, each with them.
fn find(folder: &Path, deep: usize, into: &mut Vec<(PathBuf, Vec<PathBuf>)>) -> Result<(), Trouble> {
    let (mut files, mut folders) = (Vec::new(), Vec::new());
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let hidden = name.to_string_lossy().starts_with('.');
        // Where a stream is linked to, as a user may do to look at one alone, it is a file too.
        match entry.path().is_dir() {
            // Where each packet lies: the packets say it too.
            true if hidden || name == "index" || deep == 0 => {}
            true => folders.push(entry.path()),
            false if hidden => {}
            false => files.push(entry.path()),
        }
    }
    files.sort();
    folders.sort();
    if !files.is_empty() {
        into.push((folder.to_owned(), files));
    }
    folders.iter().try_for_each(|folder| find(folder, deep - 1, into))
}

/// Files of one stream belong together, in order of their first packets.
fn group(
    trace: &Trace,
    files: Vec<PathBuf>,
    troubles: &mut Vec<(PathBuf, Trouble)>,
) -> Vec<VecDeque<PathBuf>> {
    let (mut known, mut alone) = (BTreeMap::<_, Vec<_>>::new(), Vec::new());
    for path in files {
        let mut stream = Stream::new(0, VecDeque::from([path.clone()]));
        match stream.next_packet(trace) {
            Ok(true) => match stream.head.instance {
                Some(instance) => {
                    let whose = known.entry((stream.head.stream, instance)).or_default();
                    whose.push((stream.head.sequence.map(|(number, _)| number), stream.head.begin, path));
                }
                None => alone.push(VecDeque::from([path])),
            },
            Ok(false) => {}
            Err(trouble) => troubles.push((path, trouble)),
        }
    }
    let in_order = |mut files: Vec<(Option<u64>, Option<u64>, PathBuf)>| {
        files.sort();
        files.into_iter().map(|(_, _, path)| path).collect()
    };
    known.into_values().map(in_order).chain(alone).collect()
}
