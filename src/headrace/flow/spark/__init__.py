"""Starts and stops Spark: Java, jars, the JVM, the session. Also has all calls to Spark's private JVM classes."""
