import java.util.Arrays;
import java.util.Locale;
import java.util.Random;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.LockSupport;

/**
 * Adds as `octavo bench write` does: either a number of adds in flight, or a rate, where the latency of an add counts
 * from the time at which it was due.
 */
final class AddLoad {
    /** Something that takes adds. The stage completes when the add is acknowledged. */
    interface Target extends AutoCloseable {
        CompletionStage<?> add(byte[] payload);
    }

    /** Makes a new target: one for the warm-up, one for the measurement. */
    interface Targets {
        Target create() throws Exception;
    }

    private static final int IN_FLIGHT_MAX_AT_A_RATE = 50_000;
    private static final int RATE_MAX = 1_000_000;
    private static final long NANOSECONDS = TimeUnit.SECONDS.toNanos(1);

    private final Target target;
    private final byte[] payload;
    private final long[] latencies;
    private final AtomicInteger acknowledged = new AtomicInteger();
    private final AtomicInteger failed = new AtomicInteger();

    private AddLoad(Target target, byte[] payload, int addsMax) {
        this.target = target;
        this.payload = payload;
        this.latencies = new long[addsMax];
    }

    private void add(long since, Semaphore room) {
        target.add(payload).whenComplete((result, error) -> {
            if (error != null) {
                failed.incrementAndGet();
            } else {
                int index = acknowledged.getAndIncrement();
                if (index < latencies.length) {
                    latencies[index] = System.nanoTime() - since;
                }
            }
            room.release();
        });
    }

    /** Keeps {@code inFlight} adds under way. Returns the nanoseconds until the last was acknowledged. */
    private long keepInFlight(int inFlight, double seconds) throws InterruptedException {
        Semaphore room = new Semaphore(inFlight);
        long begun = System.nanoTime();
        long stop = begun + (long) (seconds * NANOSECONDS);
        while (System.nanoTime() < stop) {
            room.acquire();
            add(System.nanoTime(), room);
        }
        room.acquire(inFlight);
        return System.nanoTime() - begun;
    }

    /** Starts add number i at i / rate. Returns the nanoseconds until the last was acknowledged. */
    private long keepRate(double rate, double seconds) throws InterruptedException {
        Semaphore room = new Semaphore(IN_FLIGHT_MAX_AT_A_RATE);
        long begun = System.nanoTime();
        long adds = (long) (rate * seconds);
        for (long i = 0; i < adds; i++) {
            long due = begun + (long) (i / rate * NANOSECONDS);
            for (long left = due - System.nanoTime(); left > 0; left = due - System.nanoTime()) {
                LockSupport.parkNanos(Math.max(left, 50_000));
            }
            room.acquire();
            add(due, room);
        }
        room.acquire(IN_FLIGHT_MAX_AT_A_RATE);
        return System.nanoTime() - begun;
    }

    private double percentile(int count, double share) {
        return count == 0 ? Double.NaN : latencies[(int) Math.min(count - 1, Math.floor(share * count))] / 1e6;
    }

    /**
     * Warms up, measures, and prints one line of JSON, latencies in milliseconds.
     *
     * @param numbers ENTRY-BYTES IN-FLIGHT RATE WARM-UP-SECONDS SECONDS. RATE 0: as many as are in flight.
     */
    static void run(Targets targets, String[] numbers) throws Exception {
        byte[] payload = new byte[Integer.parseInt(numbers[0])];
        new Random(7).nextBytes(payload);
        int inFlight = Integer.parseInt(numbers[1]);
        double rate = Double.parseDouble(numbers[2]);
        double[] seconds = {Double.parseDouble(numbers[3]), Double.parseDouble(numbers[4])};
        for (int phase = 0; phase < 2; phase++) {
            try (Target target = targets.create()) {
                int addsMax = (int) ((rate > 0 ? rate : RATE_MAX) * seconds[phase]) + 1;
                AddLoad load = new AddLoad(target, payload, addsMax);
                long took = rate > 0 ? load.keepRate(rate, seconds[phase]) : load.keepInFlight(inFlight, seconds[phase]);
                int count = Math.min(load.acknowledged.get(), addsMax);
                Arrays.sort(load.latencies, 0, count);
                if (phase == 1) {
                    System.out.printf(Locale.ROOT,
                            "{\"entries_per_second\": %.1f, \"p50\": %.4f, \"p99\": %.4f, \"p99.9\": %.4f, \"failed\": %d}%n",
                            load.acknowledged.get() * (double) NANOSECONDS / took, load.percentile(count, 0.5),
                            load.percentile(count, 0.99), load.percentile(count, 0.999), load.failed.get());
                }
            }
        }
    }
}
