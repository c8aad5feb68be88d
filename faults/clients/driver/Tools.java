import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import org.apache.kafka.common.utils.Exit;

/**
 * Runs Kafka's own command-line tools in this JVM. It accepts only tools that exit with {@code Exit}, because other
 * tools would end the driver.
 */
final class Tools {
    private static final class Ended extends RuntimeException {
        private final int code;

        Ended(int code) {
            this.code = code;
        }
    }

    JsonNode run(JsonNode command) throws Exception {
        String[] arguments = Values.strings(command.get("arguments")).toArray(new String[0]);
        Class<?> tool = Class.forName("org.apache.kafka.tools." + command.get("tool").asText());
        ByteArrayOutputStream said = new ByteArrayOutputStream();
        PrintStream standardOutput = System.out;
        List<Runnable> hooks = new ArrayList<>();
        Exit.setExitProcedure(Tools::end);
        Exit.setHaltProcedure(Tools::end);
        Exit.setShutdownHookAdder((name, hook) -> hooks.add(hook));
        System.setOut(new PrintStream(said, true, StandardCharsets.UTF_8));
        int code = 0;
        try {
            tool.getMethod("main", String[].class).invoke(null, (Object) arguments);
        } catch (InvocationTargetException thrown) {
            if (!(thrown.getCause() instanceof Ended ended)) {
                throw thrown;
            }
            code = ended.code;
        } finally {
            hooks.forEach(Runnable::run);
            System.setOut(standardOutput);
            Exit.resetExitProcedure();
            Exit.resetHaltProcedure();
            Exit.resetShutdownHookAdder();
        }
        ObjectNode result = Main.JSON.createObjectNode();
        result.put("code", code);
        result.put("output", said.toString(StandardCharsets.UTF_8));
        return result;
    }

    private static void end(int code, String message) {
        if (message != null) {
            System.out.println(message);
        }
        throw new Ended(code);
    }
}
