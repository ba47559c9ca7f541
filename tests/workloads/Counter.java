// Threads, a heap with many objects, garbage, just-in-time compiled code. Writes `NUMBER SUM NODE` for each round.
//
//     java Counter.java FILE

import java.io.FileWriter;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayDeque;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;

public class Counter {
    private static final int KEPT = 1000;
    private static final int THREADS = 2;

    // The sum that the test computes for 1..n.
    private static long work(long n) {
        long sum = 0;
        for (long i = 1; i <= n; i++) {
            sum = (sum * 31 + i) % 1_000_003;
        }
        return sum;
    }

    // In one read: Files.readString() reads the first byte of such a file apart, and a move in between
    // mixes the names of both nodes.
    private static String hostName() throws Exception {
        try (var name = Files.newInputStream(Path.of("/proc/sys/kernel/hostname"))) {
            return new String(name.readNBytes(64)).strip();
        }
    }

    public static void main(String[] arguments) throws Exception {
        var pool = Executors.newFixedThreadPool(THREADS, task -> {
            var thread = new Thread(task);
            thread.setDaemon(true);
            return thread;
        });
        var kept = new ArrayDeque<byte[]>();
        try (var lines = new FileWriter(arguments[0])) {
            for (long number = 1; ; number++) {
                final long n = number;
                Future<Long> there = pool.submit(() -> work(n));
                kept.add(new byte[16 * 1024]);
                if (kept.size() > KEPT) {
                    kept.remove();
                }
                String node = hostName();
                lines.write(number + " " + there.get() + " " + node + "\n");
                lines.flush();
                Thread.sleep(5);
            }
        }
    }
}
