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
 * A service that makes spans by OpenTelemetry's API and is traced by dd-trace-java: by a pool of threads, with spans inside spans. Each
 * call's offset is the id of the span that it is made in, without its first bit, and 0 in none.
 *
 * App FILE GO TURNS: in spans there are calls at the offset AWAITED until the file GO is there. Of each span it says id and trace.
 */
public class App {
    private static final long AWAITED = 1L << 40 | 1;
    private static Tracer tracer;
    private static FileChannel file;

    public static void main(String[] words) throws Exception {
        tracer = GlobalOpenTelemetry.getTracer("app");
        file = FileChannel.open(Path.of(words[0]));
        while (!Files.exists(Path.of(words[1]))) {
            Span span = tracer.spanBuilder("awaited").startSpan();
            try (Scope scope = span.makeCurrent()) {
                read(AWAITED);
            } finally {
                span.end();
            }
            Thread.sleep(5);
        }
        var pool = Executors.newFixedThreadPool(4);
        for (int turn = 0; turn < Integer.parseInt(words[2]); turn++) {
            pool.submit(App::turn);
        }
        pool.shutdown();
        pool.awaitTermination(60, TimeUnit.SECONDS);
        // Without waiting for whoever would take the spans: there is nobody.
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
            System.out.println(told(step) + "\n" + told(order));
        } finally {
            order.end();
        }
        call(null);
        return null;
    }

    private static String told(Span span) {
        return span.getSpanContext().getSpanId() + " " + span.getSpanContext().getTraceId();
    }

    private static void call(Span span) throws Exception {
        read(span == null ? 0 : Long.parseUnsignedLong(span.getSpanContext().getSpanId(), 16) & Long.MAX_VALUE);
    }

    private static void read(long at) throws Exception {
        file.read(ByteBuffer.allocateDirect(1), at);
    }
}
