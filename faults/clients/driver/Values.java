import com.fasterxml.jackson.databind.JsonNode;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.common.TopicPartition;

/** Converts plain values from JSON. Bytes are Base64, and null stays null. */
final class Values {
    private Values() {}

    static byte[] bytes(JsonNode node) throws java.io.IOException {
        return node == null || node.isNull() ? null : node.binaryValue();
    }

    static Long number(JsonNode node) {
        return node == null || node.isNull() ? null : node.asLong();
    }

    static Integer integer(JsonNode node) {
        return node == null || node.isNull() ? null : node.asInt();
    }

    static List<String> strings(JsonNode array) {
        List<String> found = new ArrayList<>();
        array.forEach(item -> found.add(item.asText()));
        return found;
    }

    static Properties properties(JsonNode object) {
        Properties found = new Properties();
        object.fields().forEachRemaining(entry -> found.setProperty(entry.getKey(), entry.getValue().asText()));
        return found;
    }

    static Map<String, String> map(JsonNode object) {
        Map<String, String> found = new HashMap<>();
        object.fields().forEachRemaining(entry -> found.put(entry.getKey(), entry.getValue().asText()));
        return found;
    }

    /** {@code [["topic", 0], …]} */
    static List<TopicPartition> partitions(JsonNode array) {
        List<TopicPartition> found = new ArrayList<>();
        array.forEach(pair -> found.add(new TopicPartition(pair.get(0).asText(), pair.get(1).asInt())));
        return found;
    }

    /** {@code [["topic", 0, 42], …]} */
    static Map<TopicPartition, Long> offsets(JsonNode array) {
        Map<TopicPartition, Long> found = new HashMap<>();
        array.forEach(
                entry ->
                        found.put(
                                new TopicPartition(entry.get(0).asText(), entry.get(1).asInt()),
                                entry.get(2).asLong()));
        return found;
    }
}
