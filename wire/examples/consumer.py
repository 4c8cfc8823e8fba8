#!/usr/bin/python3
"""Reads a record of the topic blkkin.events, and prints each event as a line of JSON; with --pieces one of
blkkin.spans, blkkin.traces or blkkin.links, and prints each piece.

    protoc --python_out=. --proto_path=wire blkkin.proto
    PYTHONPATH=. wire/examples/consumer.py [--pieces] < RECORD

A record is what a Kafka client gives as the message's value. How columns become events and spans stands in blkkin.proto.
"""
import json
import sys

import blkkin_pb2 as pb

WORD = (1 << 64) - 1


def mint(word, epoch):
    """The id that a counted word stands for."""
    z = word ^ epoch
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & WORD
    z = (z ^ z >> 27) * 0x94D049BB133111EB & WORD
    return f"{z ^ z >> 31:016x}"


def sums(column):
    """A delta column's values."""
    value = 0
    for difference in column:
        value = value + difference & WORD
        yield value


def ids(column, batch):
    """A column of ids."""
    last = list(batch.counters)
    for origin, difference in zip(column.origin, column.counter):
        last[origin] += difference
        yield mint(batch.origins[origin] << 44 | last[origin], batch.epoch)


def device(number):
    return f"{number >> 20}:{number & 0xFFFFF}"


def events(batch):
    tasks = list(zip(ids(batch.tasks.task, batch), batch.tasks.version))
    files = list(zip(batch.files.device, sums(batch.files.inode), batch.files.generation))
    devices = [device(number) for number in batch.devices]
    c = batch.contexts
    contexts = [{"trace": f"{high:016x}{low:016x}", "span": f"{span:016x}", "flags": flags & 255, "by_rule": flags > 255}
                for high, low, span, flags in zip(c.trace_high, c.trace_low, c.span, c.flags)]
    for context, operation in zip(contexts, c.operation):
        context["operation"] = operation
    t, values = batch.thread_attributes, zip(batch.thread_attributes.key, batch.thread_attributes.value)
    # By number: a number's name is the thread_key that the call's process has said last.
    attributes = [{"values": [[key, batch.words[value]] for _, (key, value) in zip(range(entries), values)],
                   "left_out": left_out, "bytes_unread": unread}
                  for entries, left_out, unread in zip(t.entries, t.left_out, t.bytes_unread)]

    def file(place):
        at, inode, generation = files[place]
        return f"{device(at)}/{inode}/{generation}"

    def calls(c=batch.call_events):
        column = {field.name: iter(getattr(c, field.name)) for field in c.DESCRIPTOR.fields if field.name != "span"}
        for flags, span in zip(c.flags, ids(c.span, batch)):
            take = lambda name, there=True: next(column[name]) if there else None
            call = batch.calls[take("call")]
            event = {"kind": "call", "call": call.name, "span": span, "task": tasks[take("task")], "took": take("took")}
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
            event["arguments"] = [take(f"argument{n}") for n in range(call.arguments)]
            if flags >> 13 & 1:
                event["context"] = contexts[take("context")]
            if flags >> 14 & 1:
                event["attributes"] = attributes[take("attributes")]
            yield event

    def bios(b=batch.bio_events):
        submitter, root, request = (ids(column, batch) for column in (b.submitter, b.root, b.request))
        rows = zip(b.flags, ids(b.span, batch), b.task, b.took, b.device, sums(b.sector), b.bytes, b.op, b.status)
        for flags, span, task, took, at, sector, size, op, status in rows:
            above = next(submitter) if flags & 1 else None
            yield {
                "kind": "bio", "span": span, "parent": above,
                "root": (above or span) if flags & 2 else next(root),
                "request": next(request) if flags & 4 else "of the pair" if flags & 8 else None,
                "first": bool(flags & 16), "task": tasks[task], "took": took, "device": devices[at], "sector": sector,
                "bytes": size, "op": op & 0xFF, "status": status,
            }

    def requests(r=batch.request_events):
        parent, root = ids(r.parent, batch), ids(r.root, batch)
        task, insert, issue, tag = iter(r.task), iter(r.insert), iter(r.issue), iter(r.tag)
        rows = zip(r.flags, ids(r.span, batch), r.took, r.device, sums(r.sector), r.bytes, r.op, r.status, r.bios)
        for flags, span, took, at, sector, size, op, status, carried in rows:
            yield {
                "kind": "request", "span": span,
                "parent": next(parent) if flags & 1 else "of the pair" if flags & 2 else None,
                "root": "of the pair" if flags & 4 else next(root),
                "task": "of the pair" if flags & 8 else tasks[next(task)],
                "inserted": next(insert) if flags & 16 else None, "issued": next(issue) if flags & 32 else None,
                "tag": next(tag) if flags & 64 else None, "took": took, "device": devices[at], "sector": sector,
                "bytes": size, "op": op & 0xFF, "status": status, "bios": carried,
            }

    def commits(c=batch.commit_events):
        for span, task, took, at, tid, bios in zip(ids(c.span, batch), c.task, c.took, c.device, c.tid, c.bios):
            yield {"kind": "commit", "span": span, "task": tasks[task], "took": took, "device": devices[at], "tid": tid,
                   "bios": bios}

    def named(t=batch.task_events):
        parent, exe, inner = ids(t.parent, batch), iter(t.exe), zip(t.pid_ns, t.inner_pid, t.inner_tid)
        for task, flags, pid, tid, comm in zip(t.task, t.flags, t.pid, t.tid, t.comm):
            event = {"kind": "task", "task": tasks[task], "parent": next(parent) if flags & 1 else None, "pid": pid,
                     "tid": tid, "comm": comm, "exe": file(next(exe)) if flags & 2 else None}
            if flags & 8:
                event["pid_ns"], event["inner_pid"], event["inner_tid"] = next(inner)
            yield event

    def paths(f=batch.file_events):
        stands_for = iter(f.device_file)
        for place, path, filesystem, flags in zip(f.file, f.path, f.filesystem, f.flags):
            yield {"kind": "file", "file": file(place), "path": path, "filesystem": filesystem,
                   "device": devices[next(stands_for)] if flags & 1 else None}

    def disks(d=batch.device_events):
        disk = iter(d.partition_of)
        for at, name, flags in zip(d.device, d.name, d.flags):
            yield {"kind": "device", "device": devices[at], "name": name,
                   "partition_of": devices[next(disk)] if flags & 1 else None}

    def meetings(m=batch.meeting_events):
        root = ids(m.root, batch)
        for flags, span, took, rule, connection, cookie in zip(
                m.flags, ids(m.span, batch), m.took, m.rule, m.connection, m.cookie):
            yield {"kind": "meeting", "span": span, "root": span if flags & 4 else next(root),
                   "side": "answered" if flags & 1 else "asked", "rule": batch.words[rule],
                   "connection": batch.words[connection], "cookie": cookie, "unique": bool(flags & 2), "took": took}

    def operations(o=batch.operation_events):
        column = {field.name: iter(getattr(o, field.name)) for field in o.DESCRIPTOR.fields}
        take = lambda name, there=True: next(column[name]) if there else None
        word = lambda name, there=True: batch.words[take(name)] if there else None

        def note():
            kind, row = take("note_kind"), [take("note_after"), word("note_key")]
            return row + [[None, word("note_text", kind == 1), take("note_number", kind == 2)][kind]]

        for flags in o.flags:
            yield {"kind": "operation", "trace": f"{take('trace_high'):016x}{take('trace_low'):016x}",
                   "span": f"{take('span'):016x}", "parent": f"{take('parent'):016x}" if flags & 4 else None,
                   "continued": bool(flags & 128),
                   "side": (None, "server", "client")[flags & 3], "name": word("name"), "service": word("service"),
                   "took": take("took"), "pid": take("pid"), "tid": take("tid", flags >> 6 & 1),
                   "errno": take("errno", flags >> 3 & 1), "unfinished": bool(flags & 16),
                   "kept": take("kept", flags >> 5 & 1), "notes": [note() for _ in range(take("notes"))]}

    def processes():
        for p in batch.process_events:
            number = iter(p.number)
            said = [[batch.words[key], batch.words[at - 1] if at else next(number)] for key, at in zip(p.key, p.value)]
            event = {"time": p.time, "kind": "process", "pid": p.pid, "attributes": said, "left_out": p.left_out}
            if p.thread_key:
                event["thread_keys"] = [batch.words[key] for key in p.thread_key]
            yield p.before, event

    bios, requests = bios(), requests()
    of = {pb.KIND_CALL: calls(), pb.KIND_BIO: bios, pb.KIND_REQUEST: requests, pb.KIND_COMMIT: commits(),
          pb.KIND_TASK: named(), pb.KIND_FILE: paths(), pb.KIND_DEVICE: disks(),
          pb.KIND_MEETING: meetings(), pb.KIND_OPERATION: operations()}
    said = list(processes())
    for place, (kind, time) in enumerate(zip(batch.kinds, sums(batch.times))):
        while said and said[0][0] <= place:
            yield said.pop(0)[1]
        for event in [next(bios), next(requests)] if kind == pb.KIND_PAIR else [next(of[kind])]:
            yield {"time": time, **event}
    yield from (event for _, event in said)


def pieces(batch):
    words = batch.words

    def columns(message):
        """The next value of a column; of an absent one none."""
        of = {field.name: iter(getattr(message, field.name)) for field in message.DESCRIPTOR.fields}
        return lambda name, there=True: next(of[name]) if there else None

    def trace(take, there=True):
        return f"{take('trace_high'):016x}{take('trace_low'):016x}" if there else None

    def word(place):
        return None if place is None else words[place]

    piece, span, moment, tag, link = map(columns, (batch.pieces, batch.spans, batch.annotations, batch.tags, batch.links))
    starts = sums(batch.spans.start)
    halves, moves = iter(batch.halves), iter(batch.moves)

    def value(at):
        return words[at - 1] if at else tag("number")

    def spans(of):
        flags, start = span("flags"), next(starts)
        one = {"trace": trace(span, flags >> 6 & 1) or of, "id": f"{span('id'):016x}",
               "here": span("parent_here", flags >> 2 & 1), "parent": span("parent_elsewhere", flags >> 3 & 1)}
        one["name"], one["service"] = word(span("name")), word(span("service"))
        one["remote"] = word(span("remote_service", flags >> 4 & 1))
        one["kind"], one["start"], one["took"] = (None, "client", "server")[flags & 3], start, span("duration")
        one["error"] = word(span("error", flags >> 5 & 1))
        one["annotations"] = [[start + moment("time"), word(moment("value"))] for _ in range(span("annotations"))]
        one["tags"] = [[word(tag("key")), value(tag("value"))] for _ in range(span("tags"))]
        one["links"] = [[trace(link), f"{link('span'):016x}", word(link("relation"))] for _ in range(span("links"))]
        return one

    for number, flags in enumerate(batch.pieces.flags, batch.first):
        of = trace(piece)
        found = [spans(of) for _ in range(piece("spans"))]
        for one in found:
            here = one.pop("here")
            if here is not None:
                one["parent"] = found[here]["id"]
            elif one["parent"] is not None:
                one["parent"] = f"{one['parent']:016x}"
        row = {"number": number, "trace": of, "later": bool(flags & 1), "complete": bool(flags & 2),
               "rule": word(piece("rule", flags >> 2 & 1)), "one_in": piece("one_in", flags >> 2 & 1), "spans": found}
        if flags >> 4 & 1:
            h = next(halves)
            row["half"] = {"side": "answered" if h.flags & 1 else "asked", "span": f"{h.span:016x}", "begin": h.begin,
                           "end": h.end, "rule": word(h.rule), "connection": word(h.connection), "cookie": h.cookie}
        if flags >> 5 & 1:
            m = next(moves)
            row["shown"] = {"trace": f"{m.trace_high:016x}{m.trace_low:016x}", "parent": f"{m.parent:016x}",
                            "rule": word(m.rule), "shift": m.shift, "error": m.error}
        yield row


def main():
    message, rows = (pb.PieceBatch, pieces) if sys.argv[1:] == ["--pieces"] else (pb.EventBatch, events)
    batch = message.FromString(sys.stdin.buffer.read())
    if batch.version != 1:
        sys.exit(f"version {batch.version} of the schema, and this reader knows version 1")
    for row in rows(batch):
        print(json.dumps(row, ensure_ascii=False))


main()
