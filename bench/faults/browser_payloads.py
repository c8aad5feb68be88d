"""Texts that would be script if a page took them for anything but text: each sets ``hacked`` in the window."""

from __future__ import annotations

import random

__all__ = ["PAYLOADS", "payload"]

PAYLOADS = (
    '<img data-x27 src=x onerror="window.hacked=1">',
    "<script data-x27>window.hacked=1</script>",
    "'\"><svg/onload=hacked=1 data-x27>",
    "<iframe data-x27 srcdoc='<script>parent.hacked=1</script>'></iframe>",
    "<input data-x27 autofocus onfocus=hacked=1>",
    "<details data-x27 open ontoggle=hacked=1>",
    "<video data-x27><source onerror=hacked=1></video>",
    "<body data-x27 onload=hacked=1>",
    "<object data-x27 data='javascript:parent.hacked=1'></object>",
    '<a data-x27 href="javascript:hacked=1">a</a>',
    "<math><mtext><table><mglyph><style><img data-x27 src=x onerror=hacked=1>",
    "<style data-x27>@import 'http://127.0.0.1:1/x.css';</style>",
    "<meta data-x27 http-equiv=refresh content='0;url=javascript:hacked=1'>",
    "<base data-x27 href='http://127.0.0.1:1/'>",
    "<template data-x27><script>hacked=1</script></template>",
    "</textarea></title></style></script><img data-x27 src=x onerror=hacked=1>",
    "<img data-x27 src=x:x onerror&#61;hacked=1>",
    "&lt;img data-x27 src=x onerror=hacked=1&gt;",
    "\\u003cimg data-x27 src=x onerror=hacked=1\\u003e",
    "%3Cimg data-x27 src=x onerror=hacked=1%3E",
    "{{constructor.constructor('hacked=1')()}}",
    "${window.hacked=1}",
    "javascript:hacked=1//",
    "data:text/html,<script data-x27>hacked=1</script>",
    "--><img data-x27 src=x onerror=hacked=1><!--",
    "]]><svg data-x27 onload=hacked=1>",
    "\u202e<img data-x27 src=x onerror=hacked=1>",
    "<ſcript data-x27>hacked=1</ſcript>",
    "<x data-x27 contenteditable onblur=hacked=1 tabindex=1 id=x>",
    '"onmouseover="hacked=1" data-x27="',
)


def payload(rng: random.Random) -> str:
    """With a number, so that one is told from the other."""
    return f"x27-{rng.randrange(10**9)} {rng.choice(PAYLOADS)}"
