import java.util.Arrays;
import java.util.Locale;
import java.util.Random;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.LockSupport;
import org.apache.bookkeeper.client.api.BookKeeper;
import org.apache.bookkeeper.client.api.DigestType;
import org.apache.bookkeeper.client.api.WriteHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;

/**
 * Adds to a ledger of Apache BookKeeper as `octavo bench write` adds to one of Octavo: either a number of adds in
 * flight, or a rate, where the latency of an add counts from the time at which it was due.
 *
 * <p>Usage: AddLoad METADATA-URI ENTRY-BYTES IN-FLIGHT RATE WARM-UP-SECONDS SECONDS. RATE 0: as many as are in flight.
 * Prints one line of JSON, latencies in milliseconds.
 */
public final class AddLoad {
    private static final int IN_FLIGHT_MAX_AT_A_RATE = 50_000;
    private static final long NANOSECONDS = TimeUnit.SECONDS.toNanos(1);

    private final WriteHandle ledger;
    private final byte[] payload;
    private final long[] latencies;
    private final AtomicInteger acknowledged = new AtomicInteger();
    private final AtomicInteger failed = new AtomicInteger();

    private AddLoad(WriteHandle ledger, byte[] payload, int addsMax) {
        this.ledger = ledger;
        this.payload = payload;
        this.latencies = new long[addsMax];
    }

    private void add(long since, Semaphore room) {
        ledger.appendAsync(payload).whenComplete((entryId, error) -> {
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

    private static WriteHandle create(BookKeeper client) throws Exception {
        return client.newCreateLedgerOp()
                .withEnsembleSize(3).withWriteQuorumSize(3).withAckQuorumSize(2)
                .withDigestType(DigestType.CRC32C).withPassword("secret".getBytes()).execute().get();
    }

    public static void main(String[] arguments) throws Exception {
        ClientConfiguration configuration = new ClientConfiguration();
        configuration.setMetadataServiceUri(arguments[0]);
        configuration.setUseV2WireProtocol(true); // the faster of its two
        configuration.setThrottleValue(0);
        byte[] payload = new byte[Integer.parseInt(arguments[1])];
        new Random(7).nextBytes(payload);
        int inFlight = Integer.parseInt(arguments[2]);
        double rate = Double.parseDouble(arguments[3]);
        double[] seconds = {Double.parseDouble(arguments[4]), Double.parseDouble(arguments[5])};
        try (BookKeeper client = BookKeeper.newBuilder(configuration).build()) {
            for (int phase = 0; phase < 2; phase++) {
                try (WriteHandle ledger = create(client)) {
                    int addsMax = rate > 0 ? (int) (rate * seconds[phase]) + 1 : (int) (500_000 * seconds[phase]) + 1;
                    AddLoad load = new AddLoad(ledger, payload, addsMax);
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
        System.exit(0); // threads of the client's library may live on
    }
}
