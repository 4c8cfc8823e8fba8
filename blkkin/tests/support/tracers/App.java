import io.opentelemetry.api.GlobalOpenTelemetry;
import io.opentelemetry.api.trace.Span;
import io.opentelemetry.api.trace.Tracer;
import io.opentelemetry.context.Scope;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;

/**
 * A service that makes spans by OpenTelemetry's API and is traced by dd-trace-java: a pool of threads with nested
 * spans. The offset of each call is the id of its span without the highest bit, or 0 outside of spans.
 *
 * App FILE GO TURNS
 *
 * Warm-up: calls in spans at the offset WARM_UP until the file GO exists. It prints the id and the trace id of each span.
 */
public class App {
    private static final long WARM_UP = 1L << 40 | 1;
    private static Tracer tracer;
    private static FileChannel file;

    public static void main(String[] args) throws Exception {
        tracer = GlobalOpenTelemetry.getTracer("app");
        file = FileChannel.open(Path.of(args[0]));
        while (!Files.exists(Path.of(args[1]))) {
            Span span = tracer.spanBuilder("awaited").startSpan();
            try (Scope scope = span.makeCurrent()) {
                read(WARM_UP);
            } finally {
                span.end();
            }
            Thread.sleep(5);
        }
        var pool = Executors.newFixedThreadPool(4);
        for (int turn = 0; turn < Integer.parseInt(args[2]); turn++) {
            pool.submit(App::turn);
        }
        pool.shutdown();
        pool.awaitTermination(60, TimeUnit.SECONDS);
        // Skips the export of the spans at exit, because no agent receives them.
        Runtime.getRuntime().halt(0);
    }

    private static Void turn() throws Exception {
        call(null);
        Span order = tracer.spanBuilder("order").startSpan();
        try (Scope in = order.makeCurrent()) {
            call(order);
            Span step = tracer.spanBuilder("step").startSpan();
            try (Scope inside = step.makeCurrent()) {
                call(step);
            } finally {
                step.end();
            }
            call(order);
            System.out.println(ids(step) + "\n" + ids(order));
        } finally {
            order.end();
        }
        call(null);
        return null;
    }

    private static String ids(Span span) {
        return span.getSpanContext().getSpanId() + " " + span.getSpanContext().getTraceId();
    }

    private static void call(Span span) throws Exception {
        read(span == null ? 0 : Long.parseUnsignedLong(span.getSpanContext().getSpanId(), 16) & Long.MAX_VALUE);
    }

    private static void read(long at) throws Exception {
        file.read(ByteBuffer.allocateDirect(1), at);
    }
}
