import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.TreeMap;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.Config;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.CreateTopicsOptions;
import org.apache.kafka.clients.admin.DescribeClusterResult;
import org.apache.kafka.clients.admin.ConsumerGroupDescription;
import org.apache.kafka.clients.admin.GroupListing;
import org.apache.kafka.clients.admin.MemberDescription;
import org.apache.kafka.clients.admin.MemberToRemove;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.RemoveMembersFromConsumerGroupOptions;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.TopicPartitionInfo;
import org.apache.kafka.common.config.ConfigResource;

/** The Java admin clients, one per server. Each stays open for the whole session. */
final class Admins {
    private final Map<String, Admin> open = new HashMap<>();

    JsonNode run(String op, JsonNode command) throws Exception {
        Admin admin = open.computeIfAbsent(command.get("bootstrap").asText(), Admins::connect);
        return switch (op) {
            case "admin.create_topic" -> createTopic(admin, command);
            case "admin.delete_topic" -> {
                admin.deleteTopics(List.of(command.get("topic").asText())).all().get();
                yield Main.done();
            }
            case "admin.create_partitions" -> {
                NewPartitions wanted = NewPartitions.increaseTo(command.get("total").asInt());
                admin.createPartitions(Map.of(command.get("topic").asText(), wanted)).all().get();
                yield Main.done();
            }
            case "admin.topics" -> {
                ArrayNode names = Main.JSON.createArrayNode();
                admin.listTopics().names().get().stream().sorted().forEach(names::add);
                yield names;
            }
            case "admin.describe_topic" -> describeTopic(admin, command.get("topic").asText());
            case "admin.configs" -> configs(admin, command);
            case "admin.alter_configs" -> alterConfigs(admin, command);
            case "admin.delete_records" -> deleteRecords(admin, command);
            case "admin.list_offsets" -> listOffsets(admin, command);
            case "admin.cluster" -> cluster(admin);
            case "admin.log_dirs" -> logDirs(admin, command.get("topic").asText());
            default -> groups(op, admin, command);
        };
    }

    private static Admin connect(String bootstrap) {
        Properties properties = new Properties();
        properties.setProperty("bootstrap.servers", bootstrap);
        properties.setProperty("default.api.timeout.ms", "15000");
        properties.setProperty("request.timeout.ms", "10000");
        return Admin.create(properties);
    }

    private static JsonNode createTopic(Admin admin, JsonNode command) throws Exception {
        NewTopic topic =
                new NewTopic(
                        command.get("topic").asText(),
                        Optional.ofNullable(Values.integer(command.get("partitions"))),
                        Optional.ofNullable(Values.integer(command.get("replication"))).map(Integer::shortValue));
        topic.configs(Values.map(command.get("configs")));
        CreateTopicsOptions options = new CreateTopicsOptions().validateOnly(command.path("validate").asBoolean());
        admin.createTopics(List.of(topic), options).all().get();
        return Main.done();
    }

    private static JsonNode describeTopic(Admin admin, String name) throws Exception {
        TopicDescription topic = admin.describeTopics(List.of(name)).allTopicNames().get().get(name);
        ObjectNode found = Main.JSON.createObjectNode();
        found.put("id", topic.topicId().toString());
        found.put("internal", topic.isInternal());
        ArrayNode partitions = found.putArray("partitions");
        for (TopicPartitionInfo partition : topic.partitions()) {
            ObjectNode one = partitions.addObject();
            one.put("partition", partition.partition());
            one.put("leader", partition.leader().id());
            ArrayNode replicas = one.putArray("replicas");
            partition.replicas().stream().map(Node::id).forEach(replicas::add);
            ArrayNode isr = one.putArray("isr");
            partition.isr().stream().map(Node::id).forEach(isr::add);
        }
        return found;
    }

    private static ConfigResource resource(JsonNode command) {
        return new ConfigResource(
                ConfigResource.Type.valueOf(command.get("type").asText()), command.get("name").asText());
    }

    private static JsonNode configs(Admin admin, JsonNode command) throws Exception {
        ConfigResource resource = resource(command);
        Config config = admin.describeConfigs(List.of(resource)).all().get().get(resource);
        Map<String, ConfigEntry> sorted = new TreeMap<>();
        config.entries().forEach(entry -> sorted.put(entry.name(), entry));
        ObjectNode found = Main.JSON.createObjectNode();
        sorted.forEach(
                (name, entry) ->
                        found.putObject(name)
                                .put("value", entry.value())
                                .put("default", entry.isDefault())
                                .put("source", entry.source().name())
                                .put("type", entry.type().name())
                                .put("read_only", entry.isReadOnly())
                                .put("sensitive", entry.isSensitive()));
        return found;
    }

    private static JsonNode alterConfigs(Admin admin, JsonNode command) throws Exception {
        List<AlterConfigOp> changes = new ArrayList<>();
        for (JsonNode change : command.get("changes")) {
            changes.add(
                    new AlterConfigOp(
                            new ConfigEntry(change.get(1).asText(), change.get(2).isNull() ? null : change.get(2).asText()),
                            AlterConfigOp.OpType.valueOf(change.get(0).asText())));
        }
        admin.incrementalAlterConfigs(Map.of(resource(command), changes)).all().get();
        return Main.done();
    }

    private static JsonNode deleteRecords(Admin admin, JsonNode command) throws Exception {
        Map<TopicPartition, RecordsToDelete> wanted = new HashMap<>();
        Values.offsets(command.get("offsets"))
                .forEach((partition, offset) -> wanted.put(partition, RecordsToDelete.beforeOffset(offset)));
        ArrayNode found = Main.JSON.createArrayNode();
        for (var entry : admin.deleteRecords(wanted).lowWatermarks().entrySet()) {
            found.addArray()
                    .add(entry.getKey().topic())
                    .add(entry.getKey().partition())
                    .add(entry.getValue().get().lowWatermark());
        }
        return found;
    }

    private static JsonNode listOffsets(Admin admin, JsonNode command) throws Exception {
        TopicPartition partition = new TopicPartition(command.get("topic").asText(), command.get("partition").asInt());
        String spec = command.get("spec").asText();
        OffsetSpec wanted =
                switch (spec) {
                    case "earliest" -> OffsetSpec.earliest();
                    case "latest" -> OffsetSpec.latest();
                    case "max_timestamp" -> OffsetSpec.maxTimestamp();
                    case "earliest_local" -> OffsetSpec.earliestLocal();
                    case "latest_tiered" -> OffsetSpec.latestTiered();
                    default -> OffsetSpec.forTimestamp(Long.parseLong(spec));
                };
        var found = admin.listOffsets(Map.of(partition, wanted)).partitionResult(partition).get();
        return Main.JSON.createArrayNode().add(found.offset()).add(found.timestamp());
    }

    private static JsonNode cluster(Admin admin) throws Exception {
        DescribeClusterResult described = admin.describeCluster();
        ObjectNode found = Main.JSON.createObjectNode();
        found.put("id", described.clusterId().get());
        found.put("controller", described.controller().get().id());
        ArrayNode nodes = found.putArray("nodes");
        for (Node node : described.nodes().get()) {
            nodes.addArray().add(node.id()).add(node.host()).add(node.port());
        }
        return found;
    }

    private static JsonNode logDirs(Admin admin, String topic) throws Exception {
        ArrayNode found = Main.JSON.createArrayNode();
        for (var broker : admin.describeLogDirs(List.of(1)).allDescriptions().get().entrySet()) {
            for (var directory : broker.getValue().values()) {
                directory.replicaInfos().forEach(
                        (partition, info) -> {
                            if (partition.topic().equals(topic)) {
                                found.addArray().add(partition.partition()).add(info.size()).add(info.offsetLag());
                            }
                        });
            }
        }
        return found;
    }

    private static JsonNode groups(String op, Admin admin, JsonNode command) throws Exception {
        String group = command.path("group").asText();
        return switch (op) {
            case "admin.groups" -> {
                ArrayNode found = Main.JSON.createArrayNode();
                for (GroupListing one : admin.listGroups().all().get()) {
                    found.addArray()
                            .add(one.groupId())
                            .add(one.groupState().map(Object::toString).orElse(null))
                            .add(one.protocol());
                }
                yield found;
            }
            case "admin.describe_group" -> describeGroup(admin, group);
            case "admin.delete_group" -> {
                admin.deleteConsumerGroups(List.of(group)).all().get();
                yield Main.done();
            }
            case "admin.group_offsets" -> {
                ArrayNode found = Main.JSON.createArrayNode();
                for (var entry : admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get().entrySet()) {
                    found.addArray()
                            .add(entry.getKey().topic())
                            .add(entry.getKey().partition())
                            .add(entry.getValue().offset());
                }
                yield found;
            }
            case "admin.alter_group_offsets" -> {
                Map<TopicPartition, OffsetAndMetadata> wanted = new HashMap<>();
                Values.offsets(command.get("offsets"))
                        .forEach((partition, offset) -> wanted.put(partition, new OffsetAndMetadata(offset)));
                admin.alterConsumerGroupOffsets(group, wanted).all().get();
                yield Main.done();
            }
            case "admin.delete_group_offsets" -> {
                admin.deleteConsumerGroupOffsets(group, new HashSet<>(Values.partitions(command.get("partitions"))))
                        .all()
                        .get();
                yield Main.done();
            }
            case "admin.remove_members" -> {
                List<MemberToRemove> members = Values.strings(command.get("instances")).stream().map(MemberToRemove::new).toList();
                admin.removeMembersFromConsumerGroup(group, new RemoveMembersFromConsumerGroupOptions(members)).all().get();
                yield Main.done();
            }
            default -> throw new IllegalArgumentException("unknown command: " + op);
        };
    }

    private static JsonNode describeGroup(Admin admin, String group) throws Exception {
        ConsumerGroupDescription description = admin.describeConsumerGroups(List.of(group)).all().get().get(group);
        ObjectNode found = Main.JSON.createObjectNode();
        found.put("state", description.groupState().toString());
        found.put("assignor", description.partitionAssignor());
        found.put("coordinator", description.coordinator().id());
        ArrayNode members = found.putArray("members");
        for (MemberDescription member : description.members()) {
            ObjectNode one = members.addObject();
            one.put("client", member.clientId());
            one.put("host", member.host());
            one.put("instance", member.groupInstanceId().orElse(null));
            ArrayNode partitions = one.putArray("partitions");
            member.assignment().topicPartitions().stream()
                    .sorted((a, b) -> a.toString().compareTo(b.toString()))
                    .forEach(partition -> partitions.addArray().add(partition.topic()).add(partition.partition()));
        }
        return found;
    }
}
