import java.util.Arrays;
import java.util.concurrent.CompletionStage;
import org.apache.bookkeeper.client.api.BookKeeper;
import org.apache.bookkeeper.client.api.DigestType;
import org.apache.bookkeeper.client.api.WriteHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;

/** Adds to a ledger of Apache BookKeeper. Usage: BookKeeperLoad METADATA-URI, then the numbers of {@link AddLoad}. */
public final class BookKeeperLoad {
    private static AddLoad.Target create(BookKeeper client) throws Exception {
        WriteHandle ledger = client.newCreateLedgerOp()
                .withEnsembleSize(3).withWriteQuorumSize(3).withAckQuorumSize(2)
                .withDigestType(DigestType.CRC32C).withPassword("secret".getBytes()).execute().get();
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
            AddLoad.run(() -> create(client), Arrays.copyOfRange(arguments, 1, arguments.length));
        }
        System.exit(0); // threads of the client's library may live on
    }
}
