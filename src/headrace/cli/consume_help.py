"""What ``headrace consume --help`` says below the options."""

from __future__ import annotations

__all__ = ["EXAMPLES", "FORMATS", "REFERENCE"]

FORMATS = r"""
%t %k %v        topic, key, value            %T %K %V      their lengths in bytes
%p %o %e        partition, offset, epoch     %d            timestamp in milliseconds
%h{%k=%v }      each header                  %H            how many headers
%[ %]           start and end of the log     %i            how many were printed
%% %{ %}        a percent sign, braces       \n \t \r \\ \xNN

Text     %v{hex} %v{base64} %v{base64raw} %v{json} %v{unpack[>Iq s]}
Numbers  %K{big32} %o{little64} %p{hex8} %V{byte} %H{bool}
Time     %d{iso} %d{unix} %d{strftime[%F %T]} %d{go[2006-01-02 15:04:05.000]}
"""

REFERENCE = (
    ("Formats (-f), printed as they are: add a \\n", FORMATS),
    (
        "Places (-o)",
        """
        start, end          the oldest record there is; only what comes from now on
        47   47:   47:60    from offset 47; up to, not including, 60
        :60  :end  47:end   up to an offset, or to the end as it is now
        +10  -10            ten after the start; ten before the end, of each partition
        @-1h                what was written in the last hour (ms, s, m, h, d, w)
        @-2h:-1h            between two moments
        @2026-11-15         a day, UTC; also @2026-11-15T09:30:00Z, @1794735000000
        """,
    ),
    (
        "Filters (--filter)",
        """
        key=abc  key!=abc  value*=part  key~^regex  value!~regex  header.NAME=abc  topic=abc
        """,
    ),
)

EXAMPLES = r"""
headrace consume orders                             all there is, then wait for more
headrace consume orders -o end -n 1                 the next record
headrace consume orders -o @-1h --exit              the last hour, then stop
headrace consume orders --tail 10 -f '%p:%o %k %v\n'
headrace consume 'orders.*' --regex --filter 'value*=error'
headrace consume orders -g billing                  as a member of a group
headrace consume orders -o start -e -f '%K{big32}%k%V{big32}%v' > orders.bin
"""
