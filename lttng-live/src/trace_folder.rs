//! Reader of stored traces, as LTTng's consumer or relay writes them.
//!
//! *In*: a folder with traces. A trace is a folder with a file `metadata`; each other file is a
//! part of a stream. Relays split a stream into several files (`--tracefile-size`), and each packet
//! identifies its stream. *Out*: all events in order of time.
//!
//! *Invariant*: what cannot be read is reported in [`TraceFolder::problems`], and the rest is read.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::ctf::cursor::ReadError;
use crate::ctf::metadata::{CtfTrace, MetadataError};
use crate::ctf::packet::{
    CounterBaseline, Decoder, Event, Losses, PACKET_MAX, PacketError, PacketHeader, PacketPosition,
};
use crate::event_view::{EventView, buffer_owner};
use crate::merge::StreamMerge;
use crate::tick_conversion::{TickConversion, ticks_are_comparable};

/// Bytes to read for a packet's header; multiplied by four if the header is longer.
const HEADER_BYTES: usize = 4096;
/// Maximum folder depth. LTTng's traces are in `ust/uid/0/64-bit` of a session's folder.
const FOLDER_DEPTH_MAX: usize = 12;

/// Reason why a part of a folder cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// Operating system's error.
    #[error("cannot read: {0}")]
    Io(#[from] std::io::Error),
    /// Folder with streams and without metadata.
    #[error("cannot read {streams} streams: the trace has no metadata")]
    NoMetadata {
        /// Number of files that could be streams.
        streams: usize,
    },
    /// The metadata is invalid.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    /// A packet is invalid; the stream ends before it.
    #[error(transparent)]
    Packet(#[from] PacketError),
}

/// Stream with its files and the last decoded event.
struct Stream {
    trace: usize,
    /// Owner of its buffers.
    user: u32,
    ticks: TickConversion,
    files: VecDeque<PathBuf>,
    path: PathBuf,
    file: Option<File>,
    /// Bytes from the packet's begin, possibly followed by a part of the next packet.
    bytes: Vec<u8>,
    used: usize,
    decoder: Decoder,
    header: PacketHeader,
    position: PacketPosition,
    event: Event,
}

/// Reader of all traces in a folder, which merges their events by time.
pub struct TraceFolder {
    traces: Vec<CtfTrace>,
    streams: Vec<Stream>,
    merge: StreamMerge,
    last: Option<usize>,
    /// Problems so far, with their paths.
    pub problems: Vec<(PathBuf, TraceError)>,
}

impl TraceFolder {
    /// Finds all traces in `folder` and reads their metadata.
    pub fn open(folder: &Path) -> Result<Self, TraceError> {
        let mut reader = Self {
            traces: Vec::new(),
            streams: Vec::new(),
            merge: StreamMerge::default(),
            last: None,
            problems: Vec::new(),
        };
        let mut folders = Vec::new();
        find_traces(folder, FOLDER_DEPTH_MAX, &mut folders)?;
        for (folder, files) in folders {
            if let Err(error) = reader.add(files) {
                reader.problems.push((folder, error));
            }
        }
        reader.start();
        Ok(reader)
    }

    fn add(&mut self, mut files: Vec<PathBuf>) -> Result<(), TraceError> {
        let metadata = files.iter().position(|file| file.file_name().is_some_and(|name| name == "metadata"));
        let Some(metadata) = metadata else { return Err(TraceError::NoMetadata { streams: files.len() }) };
        let metadata = files.swap_remove(metadata);
        if metadata.metadata()?.len() > crate::ctf::metadata::TEXT_MAX as u64 {
            return Err(MetadataError::TooLarge.into());
        }
        let trace = CtfTrace::read(&std::fs::read(metadata)?)?;
        for files in group_by_stream(&trace, files, &mut self.problems) {
            self.streams.push(Stream::new(self.traces.len(), files));
        }
        self.traces.push(trace);
        Ok(())
    }

    fn start(&mut self) {
        let comparable = ticks_are_comparable(&self.traces);
        for index in 0..self.streams.len() {
            let number = self.merge.add(i64::MIN);
            debug_assert_eq!(number, index, "the merge numbers streams as they are added");
            let stream = &mut self.streams[index];
            let clocks = &self.traces[stream.trace].clocks;
            stream.ticks = match clocks.first() {
                Some(clock) if !comparable => TickConversion::since_1970(clock),
                _ => TickConversion::IDENTITY,
            };
            self.advance(index);
        }
    }

    fn advance(&mut self, index: usize) {
        let stream = &mut self.streams[index];
        match stream.next(&self.traces[stream.trace]) {
            Ok(true) => self.merge.ready(index, stream.ticks.ns(stream.event.time)),
            Ok(false) => self.merge.close(index),
            Err(error) => {
                self.problems.push((stream.path.clone(), error));
                self.merge.close(index);
            }
        }
    }

    /// Returns the next event of all streams; `None` at the end.
    pub fn next_event(&mut self) -> Option<EventView<'_>> {
        if let Some(last) = self.last.take() {
            self.advance(last);
        }
        let (time_ns, index) = self.merge.pop()?;
        self.last = Some(index);
        let stream = &self.streams[index];
        Some(EventView {
            trace: &self.traces[stream.trace],
            user: stream.user,
            trace_index: stream.trace,
            stream_index: index,
            header: &stream.header,
            packet: &stream.bytes[stream.used..],
            event: &stream.event,
            time_ns,
            gap: None,
        })
    }

    /// Returns the traces with valid metadata.
    pub fn traces(&self) -> &[CtfTrace] {
        &self.traces
    }

    /// Returns the number of streams.
    pub fn streams(&self) -> usize {
        self.streams.len()
    }

    /// Returns the losses of all streams so far.
    pub fn losses(&self) -> Losses {
        self.streams.iter().map(|stream| stream.decoder.losses).fold(Losses::default(), Losses::plus)
    }
}

impl Stream {
    fn new(trace: usize, files: VecDeque<PathBuf>) -> Self {
        let path = files.front().cloned().unwrap_or_default();
        let folder = path.parent().unwrap_or(Path::new("")).to_string_lossy();
        Self {
            trace,
            user: buffer_owner(&folder),
            ticks: TickConversion::IDENTITY,
            path,
            files,
            file: None,
            bytes: Vec::new(),
            used: 0,
            decoder: Decoder::new(CounterBaseline::Zero),
            header: PacketHeader::default(),
            position: PacketPosition::default(),
            event: Event::default(),
        }
    }

    fn next(&mut self, trace: &CtfTrace) -> Result<bool, TraceError> {
        loop {
            let packet = &self.bytes[self.used..];
            if self.decoder.next(trace, packet, &mut self.position, &mut self.event)? {
                return Ok(true);
            }
            if !self.next_packet(trace)? {
                return Ok(false);
            }
        }
    }

    fn next_packet(&mut self, trace: &CtfTrace) -> Result<bool, TraceError> {
        let consumed =
            self.header.packet_bits.map_or(self.bytes.len() - self.used, |bits| bits.div_ceil(8) as usize);
        let consumed = if self.file.is_some() { consumed } else { 0 };
        self.used = (self.used + consumed).min(self.bytes.len());
        self.position = PacketPosition::default();
        while !self.fill(HEADER_BYTES)? {
            let Some(path) = self.files.pop_front() else { return Ok(false) };
            self.file = Some(File::open(&path)?);
            (self.path, self.used) = (path, 0);
            self.bytes.clear();
        }
        let mut wanted = HEADER_BYTES;
        let (header, _) = loop {
            match self.decoder.header(trace, &self.bytes[self.used..]) {
                Err(PacketError::Read(ReadError::Truncated(_)))
                    if self.bytes.len() - self.used >= wanted && wanted as u64 <= PACKET_MAX =>
                {
                    wanted *= 4;
                    self.fill(wanted)?;
                }
                consumed => break consumed?,
            }
        };
        let size = header.packet_bits.map_or(PACKET_MAX + 1, |bits| bits.div_ceil(8));
        self.fill(size as usize)?;
        (self.header, self.position) = self.decoder.open(trace, &self.bytes[self.used..])?;
        if self.header.packet_bits == Some(0) {
            return Err(PacketError::Sizes { packet: 0, content: 0 }.into());
        }
        Ok(true)
    }

    /// Reads until `wanted` bytes are available, or to the end of the file. Returns true if there
    /// are any.
    fn fill(&mut self, wanted: usize) -> Result<bool, std::io::Error> {
        let have = self.bytes.len() - self.used;
        if let Some(file) = &mut self.file
            && have < wanted
        {
            self.bytes.drain(..self.used);
            self.used = 0;
            // Reads several small packets at once: a read costs more than a copy of them.
            let more = (wanted - have).max(64 << 10) as u64;
            file.take(more).read_to_end(&mut self.bytes)?;
        }
        Ok(self.bytes.len() > self.used)
    }
}

/// Collects the folders that contain files, with these files.
fn find_traces(
    folder: &Path,
    depth: usize,
    into: &mut Vec<(PathBuf, Vec<PathBuf>)>,
) -> Result<(), TraceError> {
    let (mut files, mut folders) = (Vec::new(), Vec::new());
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let hidden = name.to_string_lossy().starts_with('.');
        // Follows links to streams, which a user may create to read one stream alone.
        match entry.path().is_dir() {
            // Positions of packets, which the packets also contain.
            true if hidden || name == "index" || depth == 0 => {}
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
    folders.iter().try_for_each(|folder| find_traces(folder, depth - 1, into))
}

/// Groups files by stream, in order of their first packets.
fn group_by_stream(
    trace: &CtfTrace,
    files: Vec<PathBuf>,
    problems: &mut Vec<(PathBuf, TraceError)>,
) -> Vec<VecDeque<PathBuf>> {
    let (mut known, mut standalone) = (BTreeMap::<_, Vec<_>>::new(), Vec::new());
    for path in files {
        let mut stream = Stream::new(0, VecDeque::from([path.clone()]));
        match stream.next_packet(trace) {
            Ok(true) => match stream.header.instance {
                Some(instance) => {
                    let files_of_stream = known.entry((stream.header.stream, instance)).or_default();
                    files_of_stream.push((
                        stream.header.sequence.map(|(number, _)| number),
                        stream.header.begin,
                        path,
                    ));
                }
                None => standalone.push(VecDeque::from([path])),
            },
            Ok(false) => {}
            Err(error) => problems.push((path, error)),
        }
    }
    let by_first_packet = |mut files: Vec<(Option<u64>, Option<u64>, PathBuf)>| {
        files.sort();
        files.into_iter().map(|(_, _, path)| path).collect()
    };
    known.into_values().map(by_first_packet).chain(standalone).collect()
}
