"""Percent formats, as rpk has them: ``-f '%k %v\\n'`` prints with ``consume`` and reads with ``produce``.

``template`` takes the text apart, ``numbers``, ``texts`` and ``stamps`` know the modifiers in braces,
``printer`` writes records as bytes and ``reader`` takes them out of a stream of bytes. Nothing in here
touches a file or a broker.
"""
