# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The directive ``error-codes``: the table of ``tvm_distir/support/errors/codes.py``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, ClassVar

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

TABLE = Path(__file__).resolve().parents[2] / "tvm_distir/support/errors/codes.py"
_LINE = re.compile(r'^    (?:# (?P<heading>.+)|"(?P<code>DIST\d{4})": "(?P<meaning>.+)",)$')


class ErrorCodes(SphinxDirective):
    """One definition list per range of codes, under the comment that heads it."""

    has_content: ClassVar[bool] = False

    def run(self) -> list[nodes.Node]:
        """Read the table; a line of another form is an error."""
        self.env.note_dependency(str(TABLE))
        source = TABLE.read_text(encoding="utf-8")
        body = source.split("= {\n", 1)[1].rsplit("}", 1)[0]
        made: list[nodes.Node] = []
        for line in body.splitlines():
            match = _LINE.match(line)
            if match is None:
                raise self.error(f"{TABLE.name} holds a line that is no code: {line}")
            if match["heading"]:
                words = match["heading"]
                made.append(nodes.rubric(words, words))
                made.append(nodes.definition_list())
                continue
            term = nodes.term("", "", nodes.literal(match["code"], match["code"]))
            meaning = nodes.definition("", nodes.paragraph(text=match["meaning"]))
            made[-1] += nodes.definition_list_item("", term, meaning)
        return [
            node for node in made if not isinstance(node, nodes.definition_list) or node.children
        ]


def setup(app: Any) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("error-codes", ErrorCodes)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
