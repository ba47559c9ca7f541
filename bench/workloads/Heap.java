// A heap of many small objects, and garbage. Writes `NANOSECONDS NODE` about every millisecond.
//
//     java Heap.java MIB FILE

import java.io.FileWriter;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Instant;

public class Heap {
    private static final int OBJECT_BYTES = 1024;

    public static void main(String[] arguments) throws Exception {
        var held = new byte[(Integer.parseInt(arguments[0]) << 20) / OBJECT_BYTES][];
        for (int number = 0; number < held.length; number++) {
            held[number] = filled(number);
        }
        var name = Path.of("/proc/sys/kernel/hostname");
        try (var beats = new FileWriter(arguments[1])) {
            for (int number = 0; ; number++) {
                held[number % held.length] = filled(number);
                var now = Instant.now();
                long nanoseconds = now.getEpochSecond() * 1_000_000_000L + now.getNano();
                beats.write(nanoseconds + " " + Files.readString(name).strip() + "\n");
                beats.flush();
                Thread.sleep(1);
            }
        }
    }

    private static byte[] filled(int number) {
        var bytes = new byte[OBJECT_BYTES - 16];
        java.util.Arrays.fill(bytes, (byte) (1 + number % 100));
        return bytes;
    }
}
