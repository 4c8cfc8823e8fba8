import com.google.protobuf.DescriptorProtos.FileDescriptorSet;
import com.google.protobuf.Descriptors.FieldDescriptor;
import com.google.protobuf.Descriptors.FileDescriptor;
import com.google.protobuf.DynamicMessage;
import com.google.protobuf.Message;
import java.io.FileReader;
import java.math.BigInteger;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Reads the topic blkkin.events and prints each event as a line of JSON. Skips duplicate batches.
 *
 * <pre>
 * protoc --proto_path=wire --descriptor_set_out=blkkin.desc blkkin.proto
 * java -cp 'JARS/*' wire/examples/Consumer.java blkkin.desc client.properties
 * </pre>
 *
 * JARS are kafka-clients and protobuf-java. The properties file is that of a Kafka client: bootstrap.servers, group.id, and TLS or
 * SASL settings if the cluster requires them. blkkin.proto describes how columns become events.
 */
final class Consumer {
    public static void main(String[] arguments) throws Exception {
        var files = FileDescriptorSet.parseFrom(Files.readAllBytes(Path.of(arguments[0])));
        var schema = FileDescriptor.buildFrom(files.getFile(0), new FileDescriptor[0]).findMessageTypeByName("EventBatch");
        var settings = new Properties();
        try (var file = new FileReader(arguments[1])) {
            settings.load(file);
        }
        settings.putIfAbsent("auto.offset.reset", "earliest");
        var sequences = new HashMap<List<Object>, Long>();
        var bytes = new ByteArrayDeserializer();
        try (var consumer = new KafkaConsumer<byte[], byte[]>(settings, bytes, bytes)) {
            consumer.subscribe(List.of("blkkin.events"));
            while (true) {
                for (var record : consumer.poll(Duration.ofSeconds(1))) {
                    print(DynamicMessage.parseFrom(schema, record.value()), sequences);
                }
            }
        }
    }

    static void print(Message message, Map<List<Object>, Long> sequences) {
        var batch = new Batch(message);
        if (batch.number("version") != 1) {
            System.err.println("schema version " + batch.number("version") + ", expected 1");
            return;
        }
        // A retry of a batch has the same source and sequence.
        var source = List.of(batch.get("node"), batch.get("boot"), batch.get("epoch"));
        var last = sequences.getOrDefault(source, -1L);
        if (Long.compareUnsigned(batch.number("sequence"), last) > 0 || last == -1L) {
            sequences.put(source, batch.number("sequence"));
            batch.events().forEach(event -> System.out.println(json(event)));
        }
    }

    /** A batch and its decoded dictionaries. */
    static final class Batch {
        final Message message;
        final List<Object> tasks = new ArrayList<>();
        final List<String> files = new ArrayList<>();
        final List<String> devices = new ArrayList<>();
        final List<Object> contexts = new ArrayList<>();
        final List<Object> attributes = new ArrayList<>();

        Batch(Message message) {
            this.message = message;
        }

        Object get(String name) {
            return message.getField(message.getDescriptorForType().findFieldByName(name));
        }

        long number(String name) {
            return ((Number) get(name)).longValue();
        }

        Columns columns(String name) {
            return new Columns((Message) get(name), this);
        }

        List<Map<String, Object>> events() {
            Columns own = new Columns(message, this), task = columns("tasks"), file = columns("files");
            for (int n = task.length("version"); n > 0; n--) {
                tasks.add(List.of(task.id("task"), task.next("version")));
            }
            for (int n = file.length("inode"); n > 0; n--) {
                files.add(device(file.number("device")) + "/" + unsigned(file.sum("inode")) + "/" + file.next("generation"));
            }
            for (int n = own.length("devices"); n > 0; n--) {
                devices.add(device(own.number("devices")));
            }
            Columns spans = columns("contexts");
            for (int n = spans.length("span"); n > 0; n--) {
                var trace = String.format("%016x%016x", spans.number("trace_high"), spans.number("trace_low"));
                String span = String.format("%016x", spans.number("span"));
                long flags = spans.number("flags");
                var context = row("trace", trace, "span", span, "flags", flags & 255, "by_rule", flags > 255);
                if (spans.length("daemon_span") > 0) {
                    context.put("daemon_span", spans.next("daemon_span"));
                }
                contexts.add(context);
            }
            // Values by key number; the last process context event before the call's return names the keys.
            Columns sets = columns("thread_attributes");
            for (int n = sets.length("entries"); n > 0; n--) {
                var values = new ArrayList<Object>();
                for (long entries = sets.number("entries"); entries > 0; entries--) {
                    values.add(list(sets.next("key"), string(sets.number("value"))));
                }
                attributes.add(row("values", values, "dropped_attributes_count", sets.next("dropped_attributes_count"),
                    "bytes_unread", sets.next("bytes_unread")));
            }
            Columns syscall = columns("syscall_events"), bio = columns("bio_events"), request = columns("request_events");
            Columns commit = columns("commit_events"), names = columns("task_events");
            Columns paths = columns("file_events"), disks = columns("device_events");
            Columns endpoints = columns("rpc_endpoint_events"), daemonSpans = columns("daemon_span_events");
            Columns processes = new Columns(message, this);
            int left = processes.length("process_context_events");
            Message process = left > 0 ? (Message) processes.next("process_context_events") : null;
            var events = new ArrayList<Map<String, Object>>();
            for (int n = 0, all = own.length("kinds"); n <= all; n++) {
                // Process context events are not in `kinds`; `before` counts the events that precede them.
                for (; process != null && (n == all || new Columns(process, this).index("before") <= n); left--) {
                    events.add(process(new Columns(process, this)));
                    process = left > 1 ? (Message) processes.next("process_context_events") : null;
                }
                if (n == all) {
                    break;
                }
                var time = unsigned(own.sum("times"));
                var kind = own.next("kinds").toString();
                if (kind.equals("KIND_PAIR")) {
                    events.add(bio(time, bio));
                }
                events.add(switch (kind) {
                    case "KIND_SYSCALL" -> syscall(time, syscall);
                    case "KIND_BIO" -> bio(time, bio);
                    case "KIND_REQUEST", "KIND_PAIR" -> request(time, request);
                    case "KIND_COMMIT" -> commit(time, commit);
                    case "KIND_TASK" -> task(time, names);
                    case "KIND_FILE" -> file(time, paths);
                    case "KIND_DEVICE" -> disk(time, disks);
                    case "KIND_RPC_ENDPOINT" -> rpcEndpoint(time, endpoints);
                    case "KIND_DAEMON_SPAN" -> daemonSpan(time, daemonSpans);
                    default -> throw new IllegalArgumentException(kind);
                });
            }
            return events;
        }

        Map<String, Object> syscall(Object time, Columns c) {
            long flags = c.number("flags");
            var kind = (Message) ((List<?>) get("syscalls")).get((int) c.number("syscall"));
            var of = new Columns(kind, this);
            var event = row("time", time, "kind", "syscall", "syscall", of.one("name"), "span", c.id("span"),
                "task", tasks.get((int) c.number("task")), "duration", c.next("duration"), "returned", c.next("returned", (flags & 1) == 0));
            for (int other = 0; other < 2; other++) {
                int bit = 1 + 3 * other;
                var prefix = other == 0 ? "" : "other_";
                if ((flags >> bit & 1) == 1) {
                    event.put(prefix + "file", files.get((int) c.number(prefix + "file")));
                    event.put(prefix + "fd", c.next(prefix + "fd"));
                }
                long before = (flags >> bit + 1 & 1) == 1 ? c.number(prefix + "position") : 0;
                if ((flags >> bit + 2 & 1) == 1) {
                    event.put(prefix + "position", before + c.number(prefix + "moved"));
                }
            }
            event.put("paths", list(c.next("paths", (flags >> 7 & 1) == 1), c.next("paths", (flags >> 8 & 1) == 1)));
            event.put("bios", c.next("bios"));
            event.put("sleeps", c.next("sleeps"));
            event.put("cpu_wait", c.next("cpu_wait", (flags >> 11 & 1) == 1));
            event.put("sync_tid", c.next("sync_tid", (flags >> 12 & 1) == 1));
            var arguments = new ArrayList<Object>();
            for (int n = 0; n < ((Number) of.one("arguments")).intValue(); n++) {
                arguments.add(c.next("argument" + n));
            }
            event.put("arguments", arguments);
            if ((flags >> 13 & 1) == 1) {
                event.put("context", contexts.get((int) c.number("context")));
            }
            if ((flags >> 14 & 1) == 1) {
                event.put("attributes", attributes.get((int) c.number("attributes")));
            }
            return event;
        }

        Map<String, Object> bio(Object time, Columns b) {
            long flags = b.number("flags");
            String span = b.id("span"), parent = (flags & 1) == 1 ? b.id("submitter") : null;
            var root = (flags & 2) == 0 ? b.id("root") : parent != null ? parent : span;
            var request = (flags & 4) != 0 ? b.id("request") : (flags & 8) != 0 ? "of the pair" : null;
            return row("time", time, "kind", "bio", "span", span, "parent", parent, "root", root, "request", request,
                "first", (flags & 16) != 0, "task", tasks.get((int) b.number("task")), "duration", b.next("duration"),
                "device", devices.get((int) b.number("device")), "sector", unsigned(b.sum("sector")), "bytes", b.next("bytes"),
                "op", b.number("op") & 0xff, "status", b.next("status"));
        }

        Map<String, Object> request(Object time, Columns r) {
            long flags = r.number("flags");
            var parent = (flags & 1) != 0 ? r.id("parent") : (flags & 2) != 0 ? "of the pair" : null;
            return row("time", time, "kind", "request", "span", r.id("span"), "parent", parent,
                "root", (flags & 4) != 0 ? "of the pair" : r.id("root"),
                "task", (flags & 8) != 0 ? "of the pair" : tasks.get((int) r.number("task")),
                "inserted", r.next("insert", (flags & 16) != 0), "issued", r.next("issue", (flags & 32) != 0),
                "tag", r.next("tag", (flags & 64) != 0), "duration", r.next("duration"),
                "device", devices.get((int) r.number("device")), "sector", unsigned(r.sum("sector")), "bytes", r.next("bytes"),
                "op", r.number("op") & 0xff, "status", r.next("status"), "bios", r.next("bios"));
        }

        Map<String, Object> commit(Object time, Columns c) {
            return row("time", time, "kind", "commit", "span", c.id("span"), "task", tasks.get((int) c.number("task")),
                "duration", c.next("duration"), "device", devices.get((int) c.number("device")), "tid", c.next("tid"),
                "bios", c.next("bios"));
        }

        Map<String, Object> task(Object time, Columns t) {
            long flags = t.number("flags");
            var task = row("time", time, "kind", "task", "task", tasks.get((int) t.number("task")),
                "parent", (flags & 1) != 0 ? t.id("parent") : null, "pid", t.next("pid"), "tid", t.next("tid"),
                "comm", t.next("comm"), "exe", (flags & 2) != 0 ? files.get((int) t.number("exe")) : null);
            if ((flags & 8) != 0) {
                for (var name : List.of("pid_ns", "ns_pid", "ns_tid")) {
                    task.put(name, t.next(name));
                }
            }
            return task;
        }

        Map<String, Object> file(Object time, Columns f) {
            var special = f.number("flags") & 1;
            return row("time", time, "kind", "file", "file", files.get((int) f.number("file")), "path", f.next("path"),
                "filesystem", f.next("filesystem"),
                "device", special != 0 ? devices.get((int) f.number("device_file")) : null);
        }

        Map<String, Object> disk(Object time, Columns d) {
            var part = d.number("flags") & 1;
            return row("time", time, "kind", "device", "device", devices.get((int) d.number("device")), "name", d.next("name"),
                "partition_of", part != 0 ? devices.get((int) d.number("partition_of")) : null);
        }

        Object string(long index) {
            return ((List<?>) get("strings")).get((int) index);
        }

        Map<String, Object> rpcEndpoint(Object time, Columns m) {
            long flags = m.number("flags");
            var span = m.id("span");
            return row("time", time, "kind", "rpc endpoint", "span", span, "root", (flags & 4) != 0 ? span : m.id("root"),
                "side", (flags & 1) != 0 ? "server" : "client", "protocol", string(m.number("protocol")),
                "connection", string(m.number("connection")), "cookie", m.next("cookie"), "unique", (flags & 2) != 0,
                "duration", m.next("duration"));
        }

        Map<String, Object> daemonSpan(Object time, Columns o) {
            long flags = o.number("flags");
            var trace = String.format("%016x%016x", o.number("trace_high"), o.number("trace_low"));
            var event = row("time", time, "kind", "daemon span", "trace", trace,
                "span", String.format("%016x", o.number("span")),
                "parent", (flags & 4) != 0 ? String.format("%016x", o.number("parent")) : null, "parent_is_remote", (flags & 128) != 0,
                "side", (flags & 1) != 0 ? "server" : (flags & 2) != 0 ? "client" : null,
                "name", string(o.number("name")), "service", string(o.number("service")), "duration", o.next("duration"),
                "pid", o.next("pid"), "tid", o.next("tid", (flags & 64) != 0), "errno", o.next("errno", (flags & 8) != 0),
                "unfinished", (flags & 16) != 0, "sample_rate", o.next("sample_rate", (flags & 32) != 0));
            var annotations = new ArrayList<Object>();
            for (long n = o.number("annotations"); n > 0; n--) {
                var after = o.next("annotation_after");
                var key = string(o.number("annotation_key"));
                annotations.add(list(after, key, switch ((int) o.number("annotation_kind")) {
                    case 1 -> string(o.number("annotation_text"));
                    case 2 -> o.next("annotation_number");
                    default -> null;
                }));
            }
            event.put("annotations", annotations);
            return event;
        }

        /** A process context (OTEP 4719). */
        Map<String, Object> process(Columns p) {
            var attributes = new ArrayList<Object>();
            for (int n = p.length("key"); n > 0; n--) {
                var key = string(p.number("key"));
                long value = p.number("value");
                attributes.add(list(key, value > 0 ? string(value - 1) : p.next("number")));
            }
            var event = row("time", p.one("time"), "kind", "process context", "pid", p.one("pid"),
                "attributes", attributes, "dropped_attributes_count", p.one("dropped_attributes_count"));
            var names = new ArrayList<Object>();
            for (int n = p.length("thread_key"); n > 0; n--) {
                names.add(string(p.number("thread_key")));
            }
            if (!names.isEmpty()) {
                event.put("thread_keys", names);
            }
            return event;
        }
    }

    /** Columns of a message: `next` returns the next value of a column. */
    static final class Columns {
        final Message message;
        final Batch batch;
        final Map<String, Integer> read = new HashMap<>();
        final Map<String, Long> sums = new HashMap<>();
        final Map<String, Columns> ids = new HashMap<>();
        final Map<Long, Long> counters = new HashMap<>();

        Columns(Message message, Batch batch) {
            this.message = message;
            this.batch = batch;
        }

        FieldDescriptor field(String name) {
            return message.getDescriptorForType().findFieldByName(name);
        }

        int length(String name) {
            return message.getRepeatedFieldCount(field(name));
        }

        /** Value of a field that is not a column. */
        Object one(String name) {
            return plain(field(name), message.getField(field(name)));
        }

        long index(String name) {
            return ((Number) one(name)).longValue();
        }

        Object next(String name) {
            int at = read.merge(name, 1, Integer::sum) - 1;
            return plain(field(name), message.getRepeatedField(field(name), at));
        }

        Object next(String name, boolean present) {
            return present ? next(name) : null;
        }

        long number(String name) {
            return ((Number) next(name)).longValue();
        }

        /** Next value of a delta column. */
        long sum(String name) {
            return sums.merge(name, number(name), Long::sum);
        }

        /** Next value of a column of ids: advances the counter of its origin and mixes it as the eBPF programs do. */
        String id(String name) {
            var column = ids.computeIfAbsent(name, of -> new Columns((Message) message.getField(field(of)), batch));
            long origin = column.number("origin");
            long first = ((Number) ((List<?>) batch.get("counters")).get((int) origin)).longValue();
            long counter = column.counters.getOrDefault(origin, first) + column.number("counter");
            column.counters.put(origin, counter);
            long upper = ((Number) ((List<?>) batch.get("origins")).get((int) origin)).longValue();
            long z = (upper << 44 | counter) ^ batch.number("epoch");
            z = (z ^ z >>> 30) * 0xBF58476D1CE4E5B9L;
            z = (z ^ z >>> 27) * 0x94D049BB133111EBL;
            return String.format("%016x", z ^ z >>> 31);
        }
    }

    /** Value of an unsigned field as a number that Java represents. */
    static Object plain(FieldDescriptor field, Object value) {
        return switch (field.getType()) {
            case UINT32, FIXED32 -> Integer.toUnsignedLong((Integer) value);
            case UINT64, FIXED64 -> unsigned((Long) value);
            default -> value;
        };
    }

    static Number unsigned(long value) {
        return value < 0 ? new BigInteger(Long.toUnsignedString(value)) : (Number) value;
    }

    static String device(long number) {
        return (number >> 20) + ":" + (number & 0xfffff);
    }

    static Map<String, Object> row(Object... namesAndValues) {
        var row = new LinkedHashMap<String, Object>();
        for (int n = 0; n < namesAndValues.length; n += 2) {
            row.put((String) namesAndValues[n], namesAndValues[n + 1]);
        }
        return row;
    }

    static List<Object> list(Object... values) {
        return java.util.Arrays.asList(values);
    }

    static String json(Object value) {
        if (value instanceof Map<?, ?> map) {
            var fields = map.entrySet().stream().map(field -> json(field.getKey()) + ": " + json(field.getValue()));
            return "{" + String.join(", ", fields.toList()) + "}";
        }
        if (value instanceof List<?> list) {
            return "[" + String.join(", ", list.stream().map(Consumer::json).toList()) + "]";
        }
        if (!(value instanceof String text)) {
            return String.valueOf(value);
        }
        var quoted = new StringBuilder("\"");
        text.chars().forEach(c -> {
            if (c < ' ') {
                quoted.append(String.format("\\u%04x", c));
            } else {
                quoted.append(c == '"' || c == '\\' ? "\\" : "").append((char) c);
            }
        });
        return quoted.append('"').toString();
    }
}
