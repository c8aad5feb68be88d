import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.common.errors.ApiException;
import org.apache.kafka.common.protocol.Errors;

/**
 * The Java client, controlled through a pipe, so that one JVM serves a whole test session.
 *
 * <p>Each line on standard input is a JSON object with an {@code op}. The response is one line on standard output:
 * {@code {"ok": result}}, {@code {"error": code, "message": text}} if the client reports one of Kafka's errors,
 * or {@code {"failure": text}} for anything else, which is a bug in the test or in the driver. Commands run one after
 * the other, in one thread.
 */
public final class Main {
    static final ObjectMapper JSON = new ObjectMapper();

    private Main() {}

    public static void main(String[] arguments) throws Exception {
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        Producers producers = new Producers();
        Consumers consumers = new Consumers();
        Admins admins = new Admins();
        Raw raw = new Raw();
        Tools tools = new Tools();
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            ObjectNode answer = JSON.createObjectNode();
            try {
                JsonNode command = JSON.readTree(line);
                String op = command.get("op").asText();
                String part = op.substring(0, op.indexOf('.'));
                JsonNode result =
                        switch (part) {
                            case "producer" -> producers.run(op, command);
                            case "consumer" -> consumers.run(op, command);
                            case "admin" -> admins.run(op, command);
                            case "raw" -> raw.run(op, command);
                            case "tool" -> tools.run(command);
                            default -> throw new IllegalArgumentException("unknown command: " + op);
                        };
                answer.set("ok", result);
            } catch (Throwable thrown) {
                describe(thrown, answer);
            }
            out.println(JSON.writeValueAsString(answer));
            out.flush();
        }
        // Standard input is closed, so the test session is over. Open clients must not keep the JVM alive.
        Runtime.getRuntime().halt(0);
    }

    static JsonNode done() {
        return JSON.nullNode();
    }

    /** Adds the error to the response. Kafka's errors, also from a future, have a code; all others are failures. */
    private static void describe(Throwable thrown, ObjectNode answer) {
        Throwable cause = thrown instanceof ExecutionException && thrown.getCause() != null ? thrown.getCause() : thrown;
        if (code(cause) != Errors.NONE.code()) {
            answer.put("error", code(cause));
            answer.put("message", String.valueOf(cause.getMessage()));
        } else {
            answer.put("failure", cause.toString());
        }
    }

    /** Returns the protocol's code for an exception, or 0 if the protocol has no code for it. */
    static short code(Throwable cause) {
        if (cause instanceof org.apache.kafka.clients.consumer.CommitFailedException) {
            return Errors.UNKNOWN_MEMBER_ID.code();
        }
        if (!(cause instanceof ApiException)) {
            return Errors.NONE.code();
        }
        Errors error = Errors.forException(cause);
        return error == Errors.UNKNOWN_SERVER_ERROR && !cause.getClass().getName().endsWith("UnknownServerException")
                ? Errors.NONE.code()
                : error.code();
    }
}
