"""A service that is traced by dd-trace-py: a pool of threads with nested spans. The offset of each call is the id of its
span without the highest bit, or 0 outside of spans.

app.py FILE GO TURNS

Warm-up: calls in spans at the offset WARM_UP until the file GO exists. It prints the id and the trace id of each span.
"""

import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from ddtrace.trace import tracer

WARM_UP = 1 << 40 | 1
FILE = os.open(sys.argv[1], os.O_RDONLY)


def call(span):
    os.pread(FILE, 1, span.span_id & (1 << 63) - 1 if span else 0)


def turn(_):
    call(None)
    with tracer.trace("order") as order:
        call(order)
        with tracer.trace("step") as step:
            call(step)
            print(f"{step.span_id:x} {step.trace_id:x}\n", end="")
        call(order)
        print(f"{order.span_id:x} {order.trace_id:x}\n", end="")
    call(None)


while not os.path.exists(sys.argv[2]):
    with tracer.trace("awaited"):
        os.pread(FILE, 1, WARM_UP)
    time.sleep(0.005)
with ThreadPoolExecutor(4) as pool:
    list(pool.map(turn, range(int(sys.argv[3]))))
sys.stdout.flush()
# Skips the export of the spans at exit, because no agent receives them.
os._exit(0)
