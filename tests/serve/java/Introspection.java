import java.sql.Connection;
import java.sql.DatabaseMetaData;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.ResultSetMetaData;
import java.sql.SQLException;
import java.sql.Statement;
import java.util.Properties;

/**
 * Does what a BI tool on JDBC does with an unknown database: it queries schemas, tables, columns, keys and indexes, then
 * reads rows. It prints one line per result. The arguments are port, table, key column and a key.
 */
public final class Introspection {
    private static final int FETCH_SIZE = 7;
    private static final int REPEATS = 8;

    public static void main(String[] arguments) throws SQLException {
        Properties properties = new Properties();
        properties.setProperty("user", "me");
        properties.setProperty("ApplicationName", "bi");
        String table = arguments[1];
        try (Connection connection = DriverManager.getConnection("jdbc:postgresql://127.0.0.1:" + arguments[0] + "/shop", properties)) {
            connection.setReadOnly(true);
            describe(connection, table);
            read(connection, table, arguments[2], arguments[3]);
        }
    }

    private static void describe(Connection connection, String table) throws SQLException {
        DatabaseMetaData metadata = connection.getMetaData();
        System.out.println("product " + metadata.getDatabaseProductName() + " valid " + connection.isValid(5));
        print("catalog", metadata.getCatalogs(), "TABLE_CAT");
        print("schema", metadata.getSchemas(), "TABLE_SCHEM");
        print("kind", metadata.getTableTypes(), "TABLE_TYPE");
        print("table", metadata.getTables(null, "public", "%", new String[] {"TABLE", "VIEW"}), "TABLE_NAME", "TABLE_TYPE");
        print("column", metadata.getColumns(null, "public", table, "%"), "COLUMN_NAME", "TYPE_NAME", "DATA_TYPE", "NULLABLE", "ORDINAL_POSITION");
        print("key", metadata.getPrimaryKeys(null, "public", table), "COLUMN_NAME", "KEY_SEQ", "PK_NAME");
        print("index", metadata.getIndexInfo(null, "public", table, false, true), "INDEX_NAME", "COLUMN_NAME", "NON_UNIQUE");
        print("imported", metadata.getImportedKeys(null, "public", table), "FKTABLE_NAME");
        print("exported", metadata.getExportedKeys(null, "public", table), "FKTABLE_NAME");
        print("privilege", metadata.getTablePrivileges(null, "public", table), "PRIVILEGE");
        print("function", metadata.getFunctions(null, "public", "%"), "FUNCTION_NAME");
        print("procedure", metadata.getProcedures(null, "public", "%"), "PROCEDURE_NAME");
        int types = 0;
        try (ResultSet rows = metadata.getTypeInfo()) {
            while (rows.next()) {
                types++;
            }
        }
        System.out.println("types " + (types > 10));
    }

    /** Executes the statement often enough that the driver prepares it in the server and reads binary values. */
    private static void read(Connection connection, String table, String column, String key) throws SQLException {
        String quoted = '"' + table + '"';
        try (PreparedStatement one = connection.prepareStatement("SELECT * FROM " + quoted + " WHERE " + column + " = ?")) {
            for (int time = 0; time < REPEATS; time++) {
                one.setString(1, key);
                try (ResultSet rows = one.executeQuery()) {
                    ResultSetMetaData columns = rows.getMetaData();
                    rows.next();
                    StringBuilder line = new StringBuilder("row");
                    for (int at = 1; at <= columns.getColumnCount(); at++) {
                        line.append(' ').append(columns.getColumnName(at)).append('=').append(text(rows.getObject(at)));
                    }
                    System.out.println(line);
                }
            }
        }
        connection.setAutoCommit(false);
        try (Statement all = connection.createStatement()) {
            all.setFetchSize(FETCH_SIZE);
            int count = 0;
            try (ResultSet rows = all.executeQuery("SELECT " + column + " FROM " + quoted)) {
                while (rows.next()) {
                    count++;
                }
            }
            System.out.println("fetched " + count);
        }
        connection.rollback();
        connection.setAutoCommit(true);
        try (Statement wrong = connection.createStatement()) {
            wrong.executeUpdate("DELETE FROM " + quoted);
            System.out.println("written");
        } catch (SQLException refused) {
            System.out.println("refused " + refused.getSQLState());
        }
    }

    private static String text(Object value) {
        return value instanceof byte[] bytes ? java.util.HexFormat.of().formatHex(bytes) : String.valueOf(value);
    }

    private static void print(String what, ResultSet rows, String... columns) throws SQLException {
        try (rows) {
            while (rows.next()) {
                StringBuilder line = new StringBuilder(what);
                for (String column : columns) {
                    line.append(' ').append(rows.getString(column));
                }
                System.out.println(line);
            }
        }
    }
}
