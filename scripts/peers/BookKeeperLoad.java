import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import org.apache.bookkeeper.client.api.BookKeeper;
import org.apache.bookkeeper.client.api.DigestType;
import org.apache.bookkeeper.client.api.WriteHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;

/** Adds to ledgers of Apache BookKeeper. Usage: BookKeeperLoad METADATA-URI, then the numbers of {@link AddLoad}. */
public final class BookKeeperLoad {
    private static final int CREATED_AT_ONCE = 200;

    private static List<AddLoad.Target> create(BookKeeper client, int number) throws Exception {
        List<AddLoad.Target> targets = new ArrayList<>();
        while (targets.size() < number) {
            List<CompletableFuture<WriteHandle>> creations = new ArrayList<>();
            for (int i = 0; i < Math.min(CREATED_AT_ONCE, number - targets.size()); i++) {
                creations.add(client.newCreateLedgerOp()
                        .withEnsembleSize(3).withWriteQuorumSize(3).withAckQuorumSize(2)
                        .withDigestType(DigestType.CRC32C).withPassword("secret".getBytes()).execute());
            }
            for (CompletableFuture<WriteHandle> creation : creations) {
                targets.add(target(creation.get()));
            }
        }
        return targets;
    }

    private static AddLoad.Target target(WriteHandle ledger) {
        return new AddLoad.Target() {
            @Override
            public CompletionStage<?> add(byte[] payload) {
                return ledger.appendAsync(payload);
            }

            @Override
            public void close() throws Exception {
                ledger.close();
            }
        };
    }

    public static void main(String[] arguments) throws Exception {
        ClientConfiguration configuration = new ClientConfiguration();
        configuration.setMetadataServiceUri(arguments[0]);
        configuration.setUseV2WireProtocol(true); // the faster of its two
        configuration.setThrottleValue(0);
        try (BookKeeper client = BookKeeper.newBuilder(configuration).build()) {
            AddLoad.run(number -> create(client, number), Arrays.copyOfRange(arguments, 1, arguments.length));
        }
        System.exit(0); // threads of the client's library may live on
    }
}
