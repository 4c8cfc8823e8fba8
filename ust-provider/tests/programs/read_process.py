"""Reader of a process context that implements OTEP 4719 and shares no code with blkkin.

read_process.py PID READS STATES KINDS: reads the context from /proc/PID/mem at least READS times, and until it
has found STATES publications with KINDS distinct payloads. Prints the attributes of each distinct payload as JSON,
and the numbers of reads and states in the last line. A payload that is not valid protobuf is an error.
"""

import json
import struct
import sys
import time

NAMES = ("[anon_shmem:OTEL_CTX]", "/memfd:OTEL_CTX", "[anon:OTEL_CTX]")
KINDS = {1: "string", 2: "bool", 3: "int", 5: "array"}


def fields(payload):
    at = 0
    while at < len(payload):
        tag, at = varint(payload, at)
        if tag & 7 == 0:
            value, at = varint(payload, at)
        else:
            assert tag & 7 == 2, f"wire type {tag & 7}"
            size, at = varint(payload, at)
            assert at + size <= len(payload), "a length exceeds the payload"
            value, at = payload[at:at + size], at + size
        yield tag >> 3, value


def varint(payload, at):
    value = shift = 0
    while True:
        byte = payload[at]
        value, shift, at = value | (byte & 0x7F) << shift, shift + 7, at + 1
        if byte < 0x80:
            return value, at


def any_value(value):
    """Decodes an AnyValue."""
    ((kind, content),) = fields(value)
    if kind == 5:
        return [any_value(item) for _, item in fields(content)]
    assert kind in KINDS, kind
    return content.decode() if kind == 1 else content


def pairs(messages):
    for message in messages:
        (one, key), (two, value) = fields(message)
        assert (one, two) == (1, 2)
        yield key.decode(), any_value(value)


def decode(payload):
    resource, extra = [], []
    for number, content in fields(payload):
        if number == 1:
            resource += [message for one, message in fields(content) if one == 1]
        elif number == 2:
            extra.append(content)
    return {"resource": dict(pairs(resource)), "extra": dict(pairs(extra))}


def find(pid):
    with open(f"/proc/{pid}/maps") as maps:
        lines = [line.split(maxsplit=5) for line in maps]
    found = [line for line in lines if len(line) > 5 and line[5].startswith(NAMES)]
    assert len(found) == 1, f"{len(found)} mappings"
    return int(found[0][0].split("-")[0], 16)


def read(memory, at):
    """Reads one state. None during a write."""
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
    assert content is not None and len(content) == size, "the published payload is not readable"
    return number, content


def main():
    pid, (reads_min, states_min, kinds_min) = sys.argv[1], map(int, sys.argv[2:])
    at = find(pid)
    states, kinds, reads, busy = {}, set(), 0, 0
    begun = time.monotonic()
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        while reads < reads_min or len(states) < states_min or len(kinds) < kinds_min:
            assert time.monotonic() - begun < 120, f"{reads} reads, {len(states)} states, {busy} reads during a write"
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
