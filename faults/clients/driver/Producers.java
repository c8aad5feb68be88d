import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.ApiException;
import org.apache.kafka.common.header.internals.RecordHeaders;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Producers by name. A send returns, for each record, its partition and offset, or the error code. */
final class Producers {
    private final Map<String, KafkaProducer<byte[], byte[]>> open = new HashMap<>();

    JsonNode run(String op, JsonNode command) throws Exception {
        String name = command.get("on").asText();
        switch (op) {
            case "producer.open" -> {
                Properties properties = Values.properties(command.get("config"));
                open.put(
                        name,
                        new KafkaProducer<>(properties, new ByteArraySerializer(), new ByteArraySerializer()));
                return Main.done();
            }
            case "producer.send" -> {
                return send(open.get(name), command.get("records"));
            }
            case "producer.partitions" -> {
                return Main.JSON.getNodeFactory()
                        .numberNode(open.get(name).partitionsFor(command.get("topic").asText()).size());
            }
            case "producer.close" -> {
                open.remove(name).close();
                return Main.done();
            }
            case "producer.drop" -> {
                open.remove(name).close(Duration.ZERO);
                return Main.done();
            }
            case "producer.init" -> {
                return transact(() -> open.get(name).initTransactions());
            }
            case "producer.begin" -> {
                return transact(() -> open.get(name).beginTransaction());
            }
            case "producer.commit" -> {
                return transact(() -> open.get(name).commitTransaction());
            }
            case "producer.abort" -> {
                return transact(() -> open.get(name).abortTransaction());
            }
            case "producer.offsets" -> {
                Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
                for (JsonNode one : command.get("offsets")) {
                    offsets.put(
                            new TopicPartition(one.get(0).asText(), one.get(1).asInt()),
                            new OffsetAndMetadata(one.get(2).asLong()));
                }
                ConsumerGroupMetadata group = new ConsumerGroupMetadata(command.get("group").asText());
                return transact(() -> open.get(name).sendOffsetsToTransaction(offsets, group));
            }
            default -> throw new IllegalArgumentException("unknown command: " + op);
        }
    }

    /**
     * Runs a transactional call. After an error, the client throws the error again in the next call, wrapped in an
     * exception without a code; throw the cause instead.
     */
    private static JsonNode transact(Runnable call) {
        try {
            call.run();
        } catch (KafkaException failed) {
            if (!(failed instanceof ApiException) && failed.getCause() instanceof ApiException cause) {
                throw cause;
            }
            throw failed;
        }
        return Main.done();
    }

    private static JsonNode send(KafkaProducer<byte[], byte[]> producer, JsonNode records) throws Exception {
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        for (JsonNode record : records) {
            RecordHeaders headers = new RecordHeaders();
            for (JsonNode header : record.path("headers")) {
                headers.add(header.get(0).asText(), Values.bytes(header.get(1)));
            }
            sent.add(
                    producer.send(
                            new ProducerRecord<>(
                                    record.get("topic").asText(),
                                    Values.integer(record.get("partition")),
                                    Values.number(record.get("timestamp")),
                                    Values.bytes(record.get("key")),
                                    Values.bytes(record.get("value")),
                                    headers)));
        }
        producer.flush();
        ArrayNode results = Main.JSON.createArrayNode();
        for (Future<RecordMetadata> one : sent) {
            ObjectNode result = results.addObject();
            try {
                RecordMetadata metadata = one.get();
                result.put("partition", metadata.partition());
                result.put("offset", metadata.hasOffset() ? metadata.offset() : -1);
                result.put("timestamp", metadata.timestamp());
            } catch (ExecutionException failed) {
                result.put("error", Main.code(failed.getCause()));
                result.put("message", failed.getCause().toString());
            }
        }
        return results;
    }
}
