"""Inserts into SQLite, each its own transaction, for a time: `sqlite.py DATABASE SECONDS OUTPUT`."""
import json
import sqlite3
import sys
import time

path, seconds, output = sys.argv[1], float(sys.argv[2]), sys.argv[3]
database = sqlite3.connect(path, isolation_level=None)
database.execute("create table if not exists t (id integer primary key, text text)")
times = []
begin = time.perf_counter_ns()
while time.perf_counter_ns() - begin < seconds * 1e9:
    start = time.perf_counter_ns()
    database.execute("insert into t (text) values (?)", ("x" * 100,))
    times.append(time.perf_counter_ns() - start)
elapsed = (time.perf_counter_ns() - begin) / 1e9
times.sort()
p99 = times[max(0, -(-len(times) * 99 // 100) - 1)]
with open(output, "w") as file:
    json.dump({"ops": len(times) / elapsed, "p99": p99 / 1e3}, file)
