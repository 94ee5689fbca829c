import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Adds to the partitions of a topic of Apache Kafka. Each has three replicas, two of which must have a record.
 *
 * <p>Usage: KafkaLoad SERVERS synced|plain|gateway, then the numbers of {@link AddLoad}. The brokers of a synced topic
 * sync each record before they answer. A gateway of Octavo is one node, however many bookies there are.
 */
public final class KafkaLoad {
    private static final int BROKERS = 3;
    private static final int BATCH_BYTES = 256 * 1024;
    private static final int BATCHES_BYTES = 16 * 1024 * 1024;
    private static final int PAUSE_MILLISECONDS = 50;

    private static void createTopic(String servers, String name, int partitions, String kind) throws Exception {
        int nodes = kind.equals("gateway") ? 1 : BROKERS;
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", servers))) {
            while (admin.describeCluster().nodes().get().size() < nodes) {
                Thread.sleep(PAUSE_MILLISECONDS);
            }
            NewTopic topic = new NewTopic(name, Optional.of(partitions), Optional.of((short) BROKERS));
            topic.configs(kind.equals("synced")
                    ? Map.of("min.insync.replicas", "2", "flush.messages", "1") : Map.of("min.insync.replicas", "2"));
            admin.createTopics(List.of(topic)).all().get();
        }
    }

    private static List<AddLoad.Target> create(String servers, String kind, int number) throws Exception {
        String topic = "load-" + System.nanoTime();
        createTopic(servers, topic, number, kind);
        // One request at a time: what comes meanwhile makes one batch, which is the fastest setting for many records.
        // A batch takes its memory when it begins, and the producer has 32 MiB: send() would wait for those before it.
        int batchBytes = Math.min(BATCH_BYTES, BATCHES_BYTES / number);
        KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(Map.of(
                "bootstrap.servers", servers, "acks", "all", "linger.ms", "0", "batch.size", String.valueOf(batchBytes),
                "max.in.flight.requests.per.connection", "1",
                "key.serializer", ByteArraySerializer.class.getName(),
                "value.serializer", ByteArraySerializer.class.getName()));
        List<AddLoad.Target> targets = new ArrayList<>();
        for (int partition = 0; partition < number; partition++) {
            targets.add(target(producer, topic, partition));
        }
        return targets;
    }

    private static AddLoad.Target target(KafkaProducer<byte[], byte[]> producer, String topic, int partition) {
        return new AddLoad.Target() {
            @Override
            public CompletionStage<?> add(byte[] payload) {
                CompletableFuture<Object> added = new CompletableFuture<>();
                producer.send(new ProducerRecord<>(topic, partition, null, payload), (metadata, error) -> {
                    if (error != null) {
                        added.completeExceptionally(error);
                    } else {
                        added.complete(metadata);
                    }
                });
                return added;
            }

            @Override
            public void close() {
                producer.close(); // of all partitions; closing it again does nothing
            }
        };
    }

    public static void main(String[] arguments) throws Exception {
        AddLoad.run(number -> create(arguments[0], arguments[1], number), Arrays.copyOfRange(arguments, 2, arguments.length));
        System.exit(0); // threads of the client's library may live on
    }
}
