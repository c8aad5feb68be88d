"""The continuous backup: the broker writes restore points of all logs to a folder, and a restore reads one of them.

folder           the layout of the folder, and how files are written to it
manifest         the list of files of one restore point, with checksums and MAC
plan             lists the files to copy for a restore point, without yielding to the event loop
shipment         copies the new bytes, in a thread
index            the content of the folder: which restore points and files the writer retains
writer           runs the backup rounds, and reports failures
restore_points   finds the restore point that a user names, and checks its files
pieces           reads pieces (files with bytes of a segment) and checks them
restore          creates a data directory from a restore point
restore_history  the list of restores of a data directory
"""
