#!/usr/bin/python3
"""Reads a record of the topic blkkin.events and prints each event as a line of JSON; with --fragments a record
of blkkin.spans, blkkin.traces or blkkin.links, and prints each trace fragment.

    protoc --python_out=. --proto_path=wire blkkin.proto
    PYTHONPATH=. wire/examples/consumer.py [--fragments] < RECORD

A record is the value of a Kafka message. blkkin.proto describes how columns become events and spans.
"""
import json
import sys

import blkkin_pb2 as pb

MASK = (1 << 64) - 1


def scramble(counted, epoch):
    """The id of an origin and a counter."""
    z = counted ^ epoch
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
    return f"{z ^ z >> 31:016x}"


def sums(column):
    """Values of a delta column."""
    value = 0
    for difference in column:
        value = value + difference & MASK
        yield value


def ids(column, batch):
    """Values of a column of ids."""
    last = list(batch.counters)
    for origin, difference in zip(column.origin, column.counter):
        last[origin] += difference
        yield scramble(batch.origins[origin] << 44 | last[origin], batch.epoch)


def device(number):
    return f"{number >> 20}:{number & 0xFFFFF}"


def events(batch):
    tasks = list(zip(ids(batch.tasks.task, batch), batch.tasks.version))
    files = list(zip(batch.files.device, sums(batch.files.inode), batch.files.generation))
    devices = [device(number) for number in batch.devices]
    c = batch.contexts
    contexts = [{"trace": f"{high:016x}{low:016x}", "span": f"{span:016x}", "flags": flags & 255, "by_rule": flags > 255}
                for high, low, span, flags in zip(c.trace_high, c.trace_low, c.span, c.flags)]
    for context, daemon_span in zip(contexts, c.daemon_span):
        context["daemon_span"] = daemon_span
    t, values = batch.thread_attributes, zip(batch.thread_attributes.key, batch.thread_attributes.value)
    # Values by key number; the last process context event before the call's return names the keys.
    attributes = [{"values": [[key, batch.strings[value]] for _, (key, value) in zip(range(entries), values)],
                   "dropped_attributes_count": dropped, "bytes_unread": unread}
                  for entries, dropped, unread in zip(t.entries, t.dropped_attributes_count, t.bytes_unread)]

    def file(index):
        at, inode, generation = files[index]
        return f"{device(at)}/{inode}/{generation}"

    def syscalls(c=batch.syscall_events):
        column = {field.name: iter(getattr(c, field.name)) for field in c.DESCRIPTOR.fields if field.name != "span"}
        for flags, span in zip(c.flags, ids(c.span, batch)):
            take = lambda name, there=True: next(column[name]) if there else None
            syscall = batch.syscalls[take("syscall")]
            event = {"kind": "syscall", "syscall": syscall.name, "span": span, "task": tasks[take("task")],
                     "duration": take("duration")}
            event["returned"] = take("returned", not flags & 1)
            for bit, prefix in ((1, ""), (4, "other_")):
                if flags >> bit & 1:
                    event[prefix + "file"], event[prefix + "fd"] = file(take(prefix + "file")), take(prefix + "fd")
                before = take(prefix + "position", flags >> bit + 1 & 1)
                moved = take(prefix + "moved", flags >> bit + 2 & 1)
                if moved is not None:
                    event[prefix + "position"] = (before or 0) + moved
            event["paths"] = [take("paths", flags >> bit & 1) for bit in (7, 8)]
            event["bios"], event["sleeps"] = take("bios"), take("sleeps")
            event["cpu_wait"] = take("cpu_wait", flags >> 11 & 1)
            event["sync_tid"] = take("sync_tid", flags >> 12 & 1)
            event["arguments"] = [take(f"argument{n}") for n in range(syscall.arguments)]
            if flags >> 13 & 1:
                event["context"] = contexts[take("context")]
            if flags >> 14 & 1:
                event["attributes"] = attributes[take("attributes")]
            yield event

    def bios(b=batch.bio_events):
        submitter, root, request = (ids(column, batch) for column in (b.submitter, b.root, b.request))
        rows = zip(b.flags, ids(b.span, batch), b.task, b.duration, b.device, sums(b.sector), b.bytes, b.op, b.status)
        for flags, span, task, duration, at, sector, size, op, status in rows:
            parent = next(submitter) if flags & 1 else None
            yield {
                "kind": "bio", "span": span, "parent": parent,
                "root": (parent or span) if flags & 2 else next(root),
                "request": next(request) if flags & 4 else "of the pair" if flags & 8 else None,
                "first": bool(flags & 16), "task": tasks[task], "duration": duration, "device": devices[at], "sector": sector,
                "bytes": size, "op": op & 0xFF, "status": status,
            }

    def requests(r=batch.request_events):
        parent, root = ids(r.parent, batch), ids(r.root, batch)
        task, insert, issue, tag = iter(r.task), iter(r.insert), iter(r.issue), iter(r.tag)
        rows = zip(r.flags, ids(r.span, batch), r.duration, r.device, sums(r.sector), r.bytes, r.op, r.status, r.bios)
        for flags, span, duration, at, sector, size, op, status, carried in rows:
            yield {
                "kind": "request", "span": span,
                "parent": next(parent) if flags & 1 else "of the pair" if flags & 2 else None,
                "root": "of the pair" if flags & 4 else next(root),
                "task": "of the pair" if flags & 8 else tasks[next(task)],
                "inserted": next(insert) if flags & 16 else None, "issued": next(issue) if flags & 32 else None,
                "tag": next(tag) if flags & 64 else None, "duration": duration, "device": devices[at], "sector": sector,
                "bytes": size, "op": op & 0xFF, "status": status, "bios": carried,
            }

    def commits(c=batch.commit_events):
        for span, task, duration, at, tid, bios in zip(ids(c.span, batch), c.task, c.duration, c.device, c.tid, c.bios):
            yield {"kind": "commit", "span": span, "task": tasks[task], "duration": duration, "device": devices[at], "tid": tid,
                   "bios": bios}

    def task_events(t=batch.task_events):
        parent, exe, ns = ids(t.parent, batch), iter(t.exe), zip(t.pid_ns, t.ns_pid, t.ns_tid)
        for task, flags, pid, tid, comm in zip(t.task, t.flags, t.pid, t.tid, t.comm):
            event = {"kind": "task", "task": tasks[task], "parent": next(parent) if flags & 1 else None, "pid": pid,
                     "tid": tid, "comm": comm, "exe": file(next(exe)) if flags & 2 else None}
            if flags & 8:
                event["pid_ns"], event["ns_pid"], event["ns_tid"] = next(ns)
            yield event

    def paths(f=batch.file_events):
        device_file = iter(f.device_file)
        for index, path, filesystem, flags in zip(f.file, f.path, f.filesystem, f.flags):
            yield {"kind": "file", "file": file(index), "path": path, "filesystem": filesystem,
                   "device": devices[next(device_file)] if flags & 1 else None}

    def disks(d=batch.device_events):
        disk = iter(d.partition_of)
        for at, name, flags in zip(d.device, d.name, d.flags):
            yield {"kind": "device", "device": devices[at], "name": name,
                   "partition_of": devices[next(disk)] if flags & 1 else None}

    def rpc_endpoints(m=batch.rpc_endpoint_events):
        root = ids(m.root, batch)
        for flags, span, duration, protocol, connection, cookie in zip(
                m.flags, ids(m.span, batch), m.duration, m.protocol, m.connection, m.cookie):
            yield {"kind": "rpc endpoint", "span": span, "root": span if flags & 4 else next(root),
                   "side": "server" if flags & 1 else "client", "protocol": batch.strings[protocol],
                   "connection": batch.strings[connection], "cookie": cookie, "unique": bool(flags & 2), "duration": duration}

    def daemon_spans(o=batch.daemon_span_events):
        column = {field.name: iter(getattr(o, field.name)) for field in o.DESCRIPTOR.fields}
        take = lambda name, there=True: next(column[name]) if there else None
        string = lambda name, there=True: batch.strings[take(name)] if there else None

        def annotation():
            kind, row = take("annotation_kind"), [take("annotation_after"), string("annotation_key")]
            return row + [[None, string("annotation_text", kind == 1), take("annotation_number", kind == 2)][kind]]

        for flags in o.flags:
            yield {"kind": "daemon span", "trace": f"{take('trace_high'):016x}{take('trace_low'):016x}",
                   "span": f"{take('span'):016x}", "parent": f"{take('parent'):016x}" if flags & 4 else None,
                   "parent_is_remote": bool(flags & 128),
                   "side": (None, "server", "client")[flags & 3], "name": string("name"), "service": string("service"),
                   "duration": take("duration"), "pid": take("pid"), "tid": take("tid", flags >> 6 & 1),
                   "errno": take("errno", flags >> 3 & 1), "unfinished": bool(flags & 16),
                   "sample_rate": take("sample_rate", flags >> 5 & 1),
                   "annotations": [annotation() for _ in range(take("annotations"))]}

    def process_contexts():
        for p in batch.process_context_events:
            number = iter(p.number)
            attributes = [[batch.strings[key], batch.strings[at - 1] if at else next(number)] for key, at in zip(p.key, p.value)]
            event = {"time": p.time, "kind": "process context", "pid": p.pid, "attributes": attributes,
                     "dropped_attributes_count": p.dropped_attributes_count}
            if p.thread_key:
                event["thread_keys"] = [batch.strings[key] for key in p.thread_key]
            yield p.before, event

    def page_origins(o=batch.page_origin_events):
        bio, root, span = (ids(column, batch) for column in (o.bio, o.root, o.writer_span))
        time, dirtied, high = sums(o.time), sums(o.dirtied), sums(o.trace_high)
        column = {field.name: iter(getattr(o, field.name)) for field in o.DESCRIPTOR.fields
                  if field.name not in ("bio", "root", "writer_span")}
        take = lambda name, there=True: next(column[name]) if there else None
        end = 0

        def writer(size):
            flags = take("writer_flags")
            own = None if flags & 16 else next(span)
            trace = None
            if not flags & 64:
                upper = next(high)
                trace = f"{upper:016x}" + (f"{take('trace_low'):016x}" if flags & 32 else own)
            carried = take("writer_bytes") if flags & 128 else size
            return {"span": own, "trace": trace, "task": tasks[take("writer_task")], "dirtied": next(dirtied), "bytes": carried,
                    "evidence": ("ended before", "under way", "mapped store", "during transfer",
                                 "under way earlier")[flags & 15]}

        for flags in o.flags:
            of, size = next(bio), take("bytes")
            offset = end + take("offset") & MASK
            end = offset + size & MASK
            parts, last = [], offset
            for _ in range(take("parts", flags >> 14 & 1) or 0):
                last = last + take("part_offset") & MASK
                parts.append([last, take("part_bytes")])
                last = last + parts[-1][1] & MASK
            yield {"time": next(time), "kind": "page origin", "bio": of, "root": of if flags >> 11 & 1 else next(root),
                   "content": ("file", "device", "metadata", "log", "swap")[flags & 15],
                   "file": file(take("file")) if flags >> 12 & 1 else None, "offset": offset, "bytes": size, "parts": parts,
                   "reason": (None, "background", "memory pressure", "sync", "periodic", "free space", "foreign cgroup",
                              "other")[flags >> 4 & 15],
                   "bytes_unattributed": take("bytes_unattributed", flags >> 13 & 1) or 0,
                   "unattributed": (None, "not recorded", "evicted", "not consecutive")[flags >> 8 & 7],
                   "writers": [writer(size) for _ in range(take("writers"))]}

    bios, requests = bios(), requests()
    of = {pb.KIND_SYSCALL: syscalls(), pb.KIND_BIO: bios, pb.KIND_REQUEST: requests, pb.KIND_COMMIT: commits(),
          pb.KIND_TASK: task_events(), pb.KIND_FILE: paths(), pb.KIND_DEVICE: disks(),
          pb.KIND_RPC_ENDPOINT: rpc_endpoints(), pb.KIND_DAEMON_SPAN: daemon_spans()}
    rows = list(process_contexts())
    for index, (kind, time) in enumerate(zip(batch.kinds, sums(batch.times))):
        while rows and rows[0][0] <= index:
            yield rows.pop(0)[1]
        for event in [next(bios), next(requests)] if kind == pb.KIND_PAIR else [next(of[kind])]:
            yield {"time": time, **event}
    yield from (event for _, event in rows)
    # An origin belongs to its bio, wherever in the stream it is.
    yield from page_origins()


def fragments(batch):
    strings = batch.strings

    def columns(message):
        """A function that takes the next value of a column."""
        of = {field.name: iter(getattr(message, field.name)) for field in message.DESCRIPTOR.fields}
        return lambda name, there=True: next(of[name]) if there else None

    def trace(take, there=True):
        return f"{take('trace_high'):016x}{take('trace_low'):016x}" if there else None

    def string(index):
        return None if index is None else strings[index]

    fragment, span, annotation, tag, link = map(columns, (batch.fragments, batch.spans, batch.annotations, batch.tags, batch.links))
    starts = sums(batch.spans.start)
    endpoints, reparented = iter(batch.endpoints), iter(batch.reparented)

    def value(at):
        return strings[at - 1] if at else tag("number")

    def spans(of):
        flags, start = span("flags"), next(starts)
        one = {"trace": trace(span, flags >> 6 & 1) or of, "id": f"{span('id'):016x}",
               "index": span("parent_index", flags >> 2 & 1), "parent": span("parent_id", flags >> 3 & 1)}
        one["name"], one["service"] = string(span("name")), string(span("service"))
        one["remote"] = string(span("remote_service", flags >> 4 & 1))
        one["kind"], one["start"], one["duration"] = (None, "client", "server")[flags & 3], start, span("duration")
        one["error"] = string(span("error", flags >> 5 & 1))
        one["annotations"] = [[start + annotation("time"), string(annotation("value"))] for _ in range(span("annotations"))]
        one["tags"] = [[string(tag("key")), value(tag("value"))] for _ in range(span("tags"))]
        one["links"] = [[trace(link), f"{link('span'):016x}", string(link("relation"))] for _ in range(span("links"))]
        return one

    for number, flags in enumerate(batch.fragments.flags, batch.first):
        of = trace(fragment)
        found = [spans(of) for _ in range(fragment("spans"))]
        for one in found:
            index = one.pop("index")
            if index is not None:
                one["parent"] = found[index]["id"]
            elif one["parent"] is not None:
                one["parent"] = f"{one['parent']:016x}"
        row = {"number": number, "trace": of, "late": bool(flags & 1), "complete": bool(flags & 2),
               "rule": string(fragment("rule", flags >> 2 & 1)), "one_in": fragment("one_in", flags >> 2 & 1), "spans": found}
        if flags >> 4 & 1:
            e = next(endpoints)
            row["endpoint"] = {"side": "server" if e.flags & 1 else "client", "span": f"{e.span:016x}", "begin": e.begin,
                               "end": e.end, "protocol": string(e.protocol), "connection": string(e.connection),
                               "cookie": e.cookie}
        if flags >> 5 & 1:
            r = next(reparented)
            row["reparented"] = {"trace": f"{r.trace_high:016x}{r.trace_low:016x}", "parent": f"{r.parent:016x}",
                                 "rule": string(r.rule), "shift": r.shift, "error": r.error}
        yield row


def main():
    message, rows = (pb.FragmentBatch, fragments) if sys.argv[1:] == ["--fragments"] else (pb.EventBatch, events)
    batch = message.FromString(sys.stdin.buffer.read())
    if batch.version != 1:
        sys.exit(f"schema version {batch.version}, expected 1")
    for row in rows(batch):
        print(json.dumps(row, ensure_ascii=False))


main()
