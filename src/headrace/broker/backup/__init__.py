"""The log's continuous backup: shipped to a folder while the broker runs, and restored to a stated moment.

folder        what lies where, and how a file gets there
manifest      one moment of the whole log: which bytes of which pieces
authenticity  whether a manifest has the MAC of the key
cut           taking that moment, on the event loop
shipping      copying what is new, in a thread
pruning       which moments are kept, and which files nobody needs
keeper        round after round, and what is said when one fails
choosing      which moment is meant, and where partitions are to end
assembling    a partition's files, out of pieces
restoring     a data directory, out of a moment
checking      whether what is there is what was written
"""
