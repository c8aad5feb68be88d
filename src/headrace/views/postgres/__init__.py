"""Views in a schema of a PostgreSQL database, each a table of its own.

session    one connection, its settings, and transactions on it
patience   what becomes of a server that does not answer
troubles   what the server's errors mean for a follower
columns    the types of columns, how values go in and come out, and which cannot
table      the SQL of one view's table
catalog    ``_headrace_views`` and ``_headrace_owners``
ownership  who may write, and what becomes of one who sleeps on a lock
replacing  how what was built takes the place of what serves
store      the port of a follower
reading    the port of somebody who only looks
checking   whether a follower could work here
"""
