import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.Random;
import java.util.concurrent.ArrayBlockingQueue;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.LockSupport;

/**
 * Adds as `octavo bench write` does: either a number of adds in flight, dealt out evenly over a number of targets, or a
 * rate, where the targets take turns and the latency of an add counts from the time at which it was due.
 */
final class AddLoad {
    /** Something that takes adds. The stage completes when the add is acknowledged. */
    interface Target extends AutoCloseable {
        CompletionStage<?> add(byte[] payload);
    }

    /** Makes a number of new targets: first for the warm-up, then for the measurement. */
    interface Targets {
        List<Target> create(int number) throws Exception;
    }

    private static final int IN_FLIGHT_MAX_AT_A_RATE = 50_000;
    private static final int RATE_MAX = 1_000_000;
    private static final long NANOSECONDS = TimeUnit.SECONDS.toNanos(1);

    private final List<Target> targets;
    private final byte[] payload;
    private final long[] latencies;
    private final AtomicInteger acknowledged = new AtomicInteger();
    private final AtomicInteger failed = new AtomicInteger();

    private AddLoad(List<Target> targets, byte[] payload, int addsMax) {
        this.targets = targets;
        this.payload = payload;
        this.latencies = new long[addsMax];
    }

    private void add(Target target, long since, Runnable done) {
        target.add(payload).whenComplete((result, error) -> {
            if (error != null) {
                failed.incrementAndGet();
            } else {
                int index = acknowledged.getAndIncrement();
                if (index < latencies.length) {
                    latencies[index] = System.nanoTime() - since;
                }
            }
            done.run();
        });
    }

    /**
     * Keeps {@code inFlight} adds under way. The one after an add goes to the same target, and where there are more
     * targets than adds under way, each takes turns between some of its own. Returns the nanoseconds until the last was
     * acknowledged.
     */
    private long keepInFlight(int inFlight, double seconds) throws InterruptedException {
        BlockingQueue<Integer> free = new ArrayBlockingQueue<>(inFlight);
        for (int i = 0; i < inFlight; i++) {
            free.add(i);
        }
        int[] turns = new int[inFlight];
        long begun = System.nanoTime();
        long stop = begun + (long) (seconds * NANOSECONDS);
        while (System.nanoTime() < stop) {
            int place = free.take();
            int index = place + inFlight * turns[place]++;
            if (index >= targets.size()) {
                index = place % targets.size();
                turns[place] = 1;
            }
            add(targets.get(index), System.nanoTime(), () -> free.add(place));
        }
        for (int i = 0; i < inFlight; i++) {
            free.take();
        }
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
            add(targets.get((int) (i % targets.size())), due, room::release);
        }
        room.acquire(IN_FLIGHT_MAX_AT_A_RATE);
        return System.nanoTime() - begun;
    }

    private double percentile(int count, double share) {
        return count == 0 ? Double.NaN : latencies[(int) Math.min(count - 1, Math.floor(share * count))] / 1e6;
    }

    /** The processor time that this process and those of the servers have used, in seconds. */
    private static double processorSeconds(long[] servers) {
        double seconds = secondsOf(ProcessHandle.current());
        for (long server : servers) {
            seconds += secondsOf(ProcessHandle.of(server).orElseThrow());
        }
        return seconds;
    }

    private static double secondsOf(ProcessHandle process) {
        return process.info().totalCpuDuration().orElseThrow().toNanos() / 1e9;
    }

    /**
     * Warms up, measures, and prints one line of JSON, latencies in milliseconds, processor time in microseconds.
     *
     * @param numbers ENTRY-BYTES IN-FLIGHT RATE WARM-UP-SECONDS SECONDS TARGETS SERVER-PIDS. RATE 0: as many as are in
     *         flight. The process ids of the servers on this machine, separated by commas.
     */
    static void run(Targets targets, String[] numbers) throws Exception {
        byte[] payload = new byte[Integer.parseInt(numbers[0])];
        new Random(7).nextBytes(payload);
        int inFlight = Integer.parseInt(numbers[1]);
        double rate = Double.parseDouble(numbers[2]);
        double[] seconds = {Double.parseDouble(numbers[3]), Double.parseDouble(numbers[4])};
        int number = Integer.parseInt(numbers[5]);
        long[] servers = Arrays.stream(numbers[6].split(",")).mapToLong(Long::parseLong).toArray();
        for (int phase = 0; phase < 2; phase++) {
            List<Target> made = targets.create(number);
            int addsMax = (int) ((rate > 0 ? rate : RATE_MAX) * seconds[phase]) + 1;
            AddLoad load = new AddLoad(made, payload, addsMax);
            double used = processorSeconds(servers);
            long took = rate > 0 ? load.keepRate(rate, seconds[phase]) : load.keepInFlight(inFlight, seconds[phase]);
            used = processorSeconds(servers) - used;
            int count = Math.min(load.acknowledged.get(), addsMax);
            Arrays.sort(load.latencies, 0, count);
            if (phase == 1) {
                System.out.printf(Locale.ROOT,
                        "{\"entries_per_second\": %.1f, \"p50\": %.4f, \"p99\": %.4f, \"p99.9\": %.4f,"
                                + " \"processor_us\": %.2f, \"failed\": %d}%n",
                        load.acknowledged.get() * (double) NANOSECONDS / took, load.percentile(count, 0.5),
                        load.percentile(count, 0.99), load.percentile(count, 0.999), 1e6 * used / Math.max(1, count),
                        load.failed.get());
            }
            for (Target target : made) {
                target.close();
            }
        }
    }
}
