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
 * What a BI tool on JDBC does with a database that it does not know: it asks for schemas, tables, columns, keys and
 * indexes, then reads. Prints one line per fact; arguments are port, table, key column and a key.
 */
public final class Introspection {
    private static final int FETCHED = 7;
    private static final int REPEATS = 8;

    public static void main(String[] words) throws SQLException {
        Properties asked = new Properties();
        asked.setProperty("user", "me");
        asked.setProperty("ApplicationName", "bi");
        String table = words[1];
        try (Connection connection = DriverManager.getConnection("jdbc:postgresql://127.0.0.1:" + words[0] + "/shop", asked)) {
            connection.setReadOnly(true);
            describe(connection, table);
            read(connection, table, words[2], words[3]);
        }
    }

    private static void describe(Connection connection, String table) throws SQLException {
        DatabaseMetaData known = connection.getMetaData();
        System.out.println("product " + known.getDatabaseProductName() + " valid " + connection.isValid(5));
        tell("catalog", known.getCatalogs(), "TABLE_CAT");
        tell("schema", known.getSchemas(), "TABLE_SCHEM");
        tell("kind", known.getTableTypes(), "TABLE_TYPE");
        tell("table", known.getTables(null, "public", "%", new String[] {"TABLE", "VIEW"}), "TABLE_NAME", "TABLE_TYPE");
        tell("column", known.getColumns(null, "public", table, "%"), "COLUMN_NAME", "TYPE_NAME", "DATA_TYPE", "NULLABLE", "ORDINAL_POSITION");
        tell("key", known.getPrimaryKeys(null, "public", table), "COLUMN_NAME", "KEY_SEQ", "PK_NAME");
        tell("index", known.getIndexInfo(null, "public", table, false, true), "INDEX_NAME", "COLUMN_NAME", "NON_UNIQUE");
        tell("imported", known.getImportedKeys(null, "public", table), "FKTABLE_NAME");
        tell("exported", known.getExportedKeys(null, "public", table), "FKTABLE_NAME");
        tell("privilege", known.getTablePrivileges(null, "public", table), "PRIVILEGE");
        tell("function", known.getFunctions(null, "public", "%"), "FUNCTION_NAME");
        tell("procedure", known.getProcedures(null, "public", "%"), "PROCEDURE_NAME");
        int types = 0;
        try (ResultSet rows = known.getTypeInfo()) {
            while (rows.next()) {
                types++;
            }
        }
        System.out.println("types " + (types > 10));
    }

    /** Prepared often enough for the driver to keep the statement at the server, and to take values as binary. */
    private static void read(Connection connection, String table, String column, String key) throws SQLException {
        String quoted = '"' + table + '"';
        try (PreparedStatement one = connection.prepareStatement("SELECT * FROM " + quoted + " WHERE " + column + " = ?")) {
            for (int time = 0; time < REPEATS; time++) {
                one.setString(1, key);
                try (ResultSet rows = one.executeQuery()) {
                    ResultSetMetaData shape = rows.getMetaData();
                    rows.next();
                    StringBuilder told = new StringBuilder("row");
                    for (int at = 1; at <= shape.getColumnCount(); at++) {
                        told.append(' ').append(shape.getColumnName(at)).append('=').append(text(rows.getObject(at)));
                    }
                    System.out.println(told);
                }
            }
        }
        connection.setAutoCommit(false);
        try (Statement all = connection.createStatement()) {
            all.setFetchSize(FETCHED);
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

    private static void tell(String what, ResultSet rows, String... columns) throws SQLException {
        try (rows) {
            while (rows.next()) {
                StringBuilder told = new StringBuilder(what);
                for (String column : columns) {
                    told.append(' ').append(rows.getString(column));
                }
                System.out.println(told);
            }
        }
    }
}
