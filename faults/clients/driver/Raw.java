import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.DataInputStream;
import java.io.EOFException;
import java.net.Socket;
import java.net.SocketException;
import java.nio.ByteBuffer;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.Map;
import org.apache.kafka.common.message.ApiMessageType;
import org.apache.kafka.common.message.FetchResponseData;
import org.apache.kafka.common.message.ResponseHeaderData;
import org.apache.kafka.common.protocol.ApiKeys;
import org.apache.kafka.common.protocol.ApiMessage;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.Message;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.requests.RequestHeader;
import org.apache.kafka.common.requests.RequestUtils;
import org.apache.kafka.common.utils.Utils;

/**
 * Single requests of any API in any version, encoded and decoded by Kafka's own generated message classes, without the
 * behaviour of a client. Requests that no class can encode are sent as hexadecimal bytes.
 */
final class Raw {
    private final Map<String, Socket> connections = new HashMap<>();
    private int correlation;

    JsonNode run(String op, JsonNode command) throws Exception {
        return switch (op) {
            case "raw.versions" -> versions();
            case "raw.connect" -> connect(command);
            case "raw.close" -> close(command);
            case "raw.request" -> request(command);
            case "raw.send" -> send(command);
            case "raw.receive" -> receive(command);
            case "raw.encode" -> encode(command);
            default -> throw new IllegalArgumentException("unknown command: " + op);
        };
    }

    /** Returns the APIs of brokers, each with the stable versions that Kafka's message classes support. */
    private JsonNode versions() {
        ObjectNode found = Main.JSON.createObjectNode();
        for (ApiKeys key : ApiKeys.brokerApis()) {
            ArrayNode range = found.putArray(key.name);
            range.add(key.id).add(key.oldestVersion()).add(key.latestVersion(false));
        }
        return found;
    }

    private JsonNode connect(JsonNode command) throws Exception {
        Socket socket = new Socket("127.0.0.1", command.get("port").asInt());
        socket.setTcpNoDelay(true);
        socket.setSoTimeout(command.path("timeout_ms").asInt(20_000));
        connections.put(command.get("on").asText(), socket);
        return Main.done();
    }

    private JsonNode close(JsonNode command) throws Exception {
        connections.remove(command.get("on").asText()).close();
        return Main.done();
    }

    private ByteBuffer frame(JsonNode command, int correlationId) throws Exception {
        if (command.has("hex")) {
            return ByteBuffer.wrap(HexFormat.of().parseHex(command.get("hex").asText()));
        }
        ApiKeys key = key(command);
        short version = (short) command.get("version").asInt();
        ApiMessage body = ApiMessageType.fromApiKey(key.id).newRequest();
        Object filled =
                Class.forName(body.getClass().getName() + "JsonConverter")
                        .getMethod("read", JsonNode.class, short.class)
                        .invoke(null, command.get("body"), version);
        RequestHeader header =
                new RequestHeader(key, version, command.path("client_id").asText("raw"), correlationId);
        return RequestUtils.serialize(header.data(), header.headerVersion(), (Message) filled, version);
    }

    private JsonNode encode(JsonNode command) throws Exception {
        ByteBuffer bytes = frame(command, command.get("correlation_id").asInt());
        return Main.JSON.getNodeFactory().textNode(HexFormat.of().formatHex(bytes.array(), 0, bytes.limit()));
    }

    private int write(JsonNode command) throws Exception {
        int correlationId = ++correlation;
        ByteBuffer bytes = frame(command, correlationId);
        ByteBuffer sized = ByteBuffer.allocate(4 + bytes.remaining()).putInt(bytes.remaining()).put(bytes);
        connections.get(command.get("on").asText()).getOutputStream().write(sized.array());
        return correlationId;
    }

    private JsonNode send(JsonNode command) throws Exception {
        return Main.JSON.getNodeFactory().numberNode(write(command));
    }

    /** Sends a request and reads one response. If the server closes the connection, that is a response too. */
    private JsonNode request(JsonNode command) throws Exception {
        int correlationId;
        ObjectNode answer;
        try {
            correlationId = write(command);
            answer = receive(command);
        } catch (EOFException | SocketException closed) {
            return Main.JSON.createObjectNode().put("closed", true);
        }
        if (!command.has("hex") && answer.get("correlation_id").asInt() != correlationId) {
            throw new IllegalStateException("asked " + correlationId + ", answered " + answer.get("correlation_id"));
        }
        return answer;
    }

    /** Reads the next response, and decodes it as a response of the command's API and version. */
    private ObjectNode receive(JsonNode command) throws Exception {
        DataInputStream in = new DataInputStream(connections.get(command.get("on").asText()).getInputStream());
        byte[] received = new byte[in.readInt()];
        in.readFully(received);
        ApiKeys key = key(command);
        short version = (short) command.get("version").asInt();
        ByteBufferAccessor accessor = new ByteBufferAccessor(ByteBuffer.wrap(received));
        ResponseHeaderData header = new ResponseHeaderData(accessor, key.responseHeaderVersion(version));
        ApiMessage body = ApiMessageType.fromApiKey(key.id).newResponse();
        body.read(accessor, version);
        if (accessor.remaining() != 0) {
            throw new IllegalStateException(accessor.remaining() + " bytes left over after the response");
        }
        JsonNode json =
                (JsonNode)
                        Class.forName(body.getClass().getName() + "JsonConverter")
                                .getMethod("write", body.getClass(), short.class)
                                .invoke(null, body, version);
        if (body instanceof FetchResponseData fetched) {
            addRecords(fetched, json);
        }
        ObjectNode answer = Main.JSON.createObjectNode();
        answer.put("correlation_id", header.correlationId());
        answer.set("body", json);
        return answer;
    }

    /** Adds the bytes of fetched records, which the generated converter omits. */
    private static void addRecords(FetchResponseData fetched, JsonNode json) {
        for (int topic = 0; topic < fetched.responses().size(); topic++) {
            var partitions = fetched.responses().get(topic).partitions();
            for (int index = 0; index < partitions.size(); index++) {
                ObjectNode shown = (ObjectNode) json.get("responses").get(topic).get("partitions").get(index);
                if (partitions.get(index).records() instanceof MemoryRecords records) {
                    shown.put("records", Utils.toArray(records.buffer()));
                }
            }
        }
    }

    private static ApiKeys key(JsonNode command) {
        return ApiKeys.forId(command.get("api").asInt());
    }
}
