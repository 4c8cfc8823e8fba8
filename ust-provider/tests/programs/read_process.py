"""Who a process is in its own words, by what the standard says of it (OTEP 4719) and nothing of blkkin's.

read_process.py PID READS STATES KINDS: reads it from /proc/PID/mem so often at least, and until it has met so many states of so many kinds;
prints each kind once: its attributes as JSON, and last how many reads there were of how many states. A payload that is no protobuf, or of which a text is not what
it was written as, ends it with an error.
"""

import json
import struct
import sys
import time

NAMES = ("[anon_shmem:OTEL_CTX]", "/memfd:OTEL_CTX", "[anon:OTEL_CTX]")
KINDS = {1: "text", 2: "truth", 3: "number", 5: "list"}


def fields(payload):
    at = 0
    while at < len(payload):
        tag, at = varint(payload, at)
        if tag & 7 == 0:
            value, at = varint(payload, at)
        else:
            assert tag & 7 == 2, f"wire type {tag & 7}"
            size, at = varint(payload, at)
            assert at + size <= len(payload), "a length that lies"
            value, at = payload[at:at + size], at + size
        yield tag >> 3, value


def varint(payload, at):
    value = shift = 0
    while True:
        byte = payload[at]
        value, shift, at = value | (byte & 0x7F) << shift, shift + 7, at + 1
        if byte < 0x80:
            return value, at


def said(value):
    """An AnyValue."""
    ((kind, content),) = fields(value)
    if kind == 5:
        return [said(item) for _, item in fields(content)]
    assert kind in KINDS, kind
    return content.decode() if kind == 1 else content


def pairs(messages):
    for message in messages:
        (one, key), (two, value) = fields(message)
        assert (one, two) == (1, 2)
        yield key.decode(), said(value)


def decode(payload):
    resource, beside = [], []
    for number, content in fields(payload):
        if number == 1:
            resource += [message for one, message in fields(content) if one == 1]
        elif number == 2:
            beside.append(content)
    return {"resource": dict(pairs(resource)), "beside": dict(pairs(beside))}


def find(pid):
    with open(f"/proc/{pid}/maps") as maps:
        lines = [line.split(maxsplit=5) for line in maps]
    found = [line for line in lines if len(line) > 5 and line[5].startswith(NAMES)]
    assert len(found) == 1, f"{len(found)} mappings"
    return int(found[0][0].split("-")[0], 16)


def read(memory, at):
    """None where it was being written."""
    memory.seek(at + 16)
    before = memory.read(8)
    if before == bytes(8):
        return None
    memory.seek(at)
    signature, version, size, number, payload = struct.unpack("<8sIIQQ", memory.read(32))
    assert (signature, version) == (b"OTEL_CTX", 2), (signature, version)
    try:
        memory.seek(payload)
        content = memory.read(size)
    except OSError:
        content = None
    memory.seek(at + 16)
    if memory.read(8) != before or struct.pack("<Q", number) != before:
        return None
    assert content is not None and len(content) == size, "what is published is not there"
    return number, content


def main():
    pid, (least, states_least, kinds_least) = sys.argv[1], map(int, sys.argv[2:])
    at = find(pid)
    states, kinds, reads, busy = {}, set(), 0, 0
    begun = time.monotonic()
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        while reads < least or len(states) < states_least or len(kinds) < kinds_least:
            assert time.monotonic() - begun < 120, f"{reads} reads, {len(states)} states, {busy} times being written"
            state = read(memory, at)
            if state is None:
                busy += 1
                continue
            number, content = state
            known = states.setdefault(number, content)
            assert known == content, f"two payloads under the number {number}"
            kinds.add(content)
            reads += 1
    for text in sorted(json.dumps(decode(content), sort_keys=True) for content in kinds):
        print(text)
    print(f"{reads} reads of {len(states)} states")


main()
