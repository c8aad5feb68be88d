import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.time.Duration;
import java.util.Collection;
import java.util.Comparator;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.CloseOptions;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.clients.consumer.OffsetOutOfRangeException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** Consumers by name. Rebalances are recorded when the client reports them; {@code consumer.events} returns them. */
final class Consumers {
    private static final Comparator<TopicPartition> BY_NAME =
            Comparator.comparing(TopicPartition::topic).thenComparing(TopicPartition::partition);

    private final Map<String, KafkaConsumer<byte[], byte[]>> open = new HashMap<>();
    private final Map<String, ArrayNode> events = new HashMap<>();

    JsonNode run(String op, JsonNode command) throws Exception {
        String name = command.get("on").asText();
        if (op.equals("consumer.open")) {
            open.put(
                    name,
                    new KafkaConsumer<>(
                            Values.properties(command.get("config")),
                            new ByteArrayDeserializer(),
                            new ByteArrayDeserializer()));
            events.put(name, Main.JSON.createArrayNode());
            return Main.done();
        }
        KafkaConsumer<byte[], byte[]> consumer = open.get(name);
        switch (op) {
            case "consumer.subscribe" -> consumer.subscribe(Values.strings(command.get("topics")), listener(name));
            case "consumer.pattern" ->
                    consumer.subscribe(Pattern.compile(command.get("pattern").asText()), listener(name));
            case "consumer.assign" -> {
                Map<TopicPartition, Long> wanted = Values.offsets(command.get("offsets"));
                consumer.assign(wanted.keySet());
                seek(consumer, wanted);
            }
            case "consumer.seek" -> seek(consumer, Values.offsets(command.get("offsets")));
            case "consumer.pause" -> consumer.pause(Values.partitions(command.get("partitions")));
            case "consumer.resume" -> consumer.resume(Values.partitions(command.get("partitions")));
            case "consumer.commit" -> commit(consumer, command);
            case "consumer.close" -> {
                open.remove(name);
                consumer.close(
                        command.path("leave").asBoolean(true)
                                ? CloseOptions.timeout(Duration.ofSeconds(2))
                                : CloseOptions.groupMembershipOperation(
                                        CloseOptions.GroupMembershipOperation.REMAIN_IN_GROUP));
            }
            case "consumer.poll" -> {
                return poll(consumer, Duration.ofMillis(command.get("timeout_ms").asLong()));
            }
            case "consumer.events" -> {
                return events.replace(name, Main.JSON.createArrayNode());
            }
            case "consumer.assignment" -> {
                return pairs(consumer.assignment());
            }
            case "consumer.position" -> {
                TopicPartition partition = Values.partitions(command.get("partitions")).get(0);
                return Main.JSON.getNodeFactory().numberNode(consumer.position(partition));
            }
            default -> {
                return ask(op, consumer, command);
            }
        }
        return Main.done();
    }

    /** Runs a command that returns a number for each partition. */
    private static JsonNode ask(String op, KafkaConsumer<byte[], byte[]> consumer, JsonNode command) {
        List<TopicPartition> partitions =
                command.has("partitions") ? Values.partitions(command.get("partitions")) : List.of();
        return switch (op) {
            case "consumer.beginning" -> triples(consumer.beginningOffsets(partitions));
            case "consumer.end" -> triples(consumer.endOffsets(partitions));
            case "consumer.committed" -> {
                Map<TopicPartition, Long> found = new HashMap<>();
                consumer.committed(new HashSet<>(partitions))
                        .forEach((partition, offset) -> found.put(partition, offset == null ? null : offset.offset()));
                yield triples(found);
            }
            case "consumer.times" -> {
                Map<TopicPartition, Long> found = new HashMap<>();
                for (Map.Entry<TopicPartition, OffsetAndTimestamp> entry :
                        consumer.offsetsForTimes(Values.offsets(command.get("times"))).entrySet()) {
                    found.put(entry.getKey(), entry.getValue() == null ? null : entry.getValue().offset());
                }
                yield triples(found);
            }
            default -> throw new IllegalArgumentException("unknown command: " + op);
        };
    }

    private ConsumerRebalanceListener listener(String name) {
        return new ConsumerRebalanceListener() {
            @Override
            public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
                note("assigned", partitions);
            }

            @Override
            public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
                note("revoked", partitions);
            }

            @Override
            public void onPartitionsLost(Collection<TopicPartition> partitions) {
                note("lost", partitions);
            }

            private void note(String what, Collection<TopicPartition> partitions) {
                ArrayNode event = events.get(name).addArray();
                event.add(what);
                event.add(pairs(partitions));
            }
        };
    }

    /** Offsets -2 and -1 mean the beginning and the end, as in the protocol. */
    private static void seek(KafkaConsumer<byte[], byte[]> consumer, Map<TopicPartition, Long> offsets) {
        offsets.forEach(
                (partition, offset) -> {
                    if (offset == -2) {
                        consumer.seekToBeginning(List.of(partition));
                    } else if (offset == -1) {
                        consumer.seekToEnd(List.of(partition));
                    } else {
                        consumer.seek(partition, offset);
                    }
                });
    }

    private static void commit(KafkaConsumer<byte[], byte[]> consumer, JsonNode command) {
        if (!command.has("offsets")) {
            consumer.commitSync();
            return;
        }
        consumer.commitSync(
                Values.offsets(command.get("offsets")).entrySet().stream()
                        .collect(Collectors.toMap(Map.Entry::getKey, entry -> new OffsetAndMetadata(entry.getValue()))));
    }

    private static JsonNode poll(KafkaConsumer<byte[], byte[]> consumer, Duration timeout) {
        ArrayNode found = Main.JSON.createArrayNode();
        try {
            for (ConsumerRecord<byte[], byte[]> record : consumer.poll(timeout)) {
                ObjectNode one = found.addObject();
                one.put("topic", record.topic()).put("partition", record.partition()).put("offset", record.offset());
                one.put("timestamp", record.timestamp()).put("timestamp_type", record.timestampType().id);
                one.put("key", record.key()).put("value", record.value());
                ArrayNode headers = one.putArray("headers");
                for (Header header : record.headers()) {
                    headers.addArray().add(header.key()).add(header.value());
                }
            }
        } catch (OffsetOutOfRangeException past) {
            throw Errors.OFFSET_OUT_OF_RANGE.exception(past.getMessage());
        }
        return found;
    }

    private static ArrayNode pairs(Collection<TopicPartition> partitions) {
        ArrayNode found = Main.JSON.createArrayNode();
        partitions.stream().sorted(BY_NAME).forEach(p -> found.addArray().add(p.topic()).add(p.partition()));
        return found;
    }

    private static ArrayNode triples(Map<TopicPartition, Long> offsets) {
        ArrayNode found = Main.JSON.createArrayNode();
        offsets.keySet().stream()
                .sorted(BY_NAME)
                .forEach(p -> found.addArray().add(p.topic()).add(p.partition()).add(offsets.get(p)));
        return found;
    }
}
