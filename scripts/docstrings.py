"""An extension of griffe, for the site: examples in docstrings become blocks of code."""

from __future__ import annotations

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"((?:^>>> .*\n?(?:^(?!\s*$).*\n?)*)+)", re.MULTILINE)


class Examples(griffe.Extension):
    """Set every `>>>` example in fences."""

    def on_object(self, *, obj: griffe.Object, **more: Any) -> None:
        """Change one docstring."""
        if obj.docstring is not None and ">>> " in obj.docstring.value:
            obj.docstring.value = EXAMPLE.sub(
                lambda found: f"```pycon\n{found[1].rstrip()}\n```\n", obj.docstring.value
            )
