"""A service that is traced by dd-trace-py: by a pool of threads, with spans inside spans. Each call's offset is the id of the span that it is
made in, without its first bit, and 0 in none.

app.py FILE GO TURNS: in spans there are calls at the offset AWAITED until the file GO is there. Of each span it says id and trace.
"""

import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from ddtrace.trace import tracer

AWAITED = 1 << 40 | 1
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
        os.pread(FILE, 1, AWAITED)
    time.sleep(0.005)
with ThreadPoolExecutor(4) as pool:
    list(pool.map(turn, range(int(sys.argv[3]))))
sys.stdout.flush()
# Without waiting for whoever would take the spans: there is nobody.
os._exit(0)
