# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The directive ``error-codes``: the table of ``tvm_distir/support/errors/codes.json``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

TABLE = Path(__file__).resolve().parents[2] / "tvm_distir/support/errors/codes.json"


class ErrorCodes(SphinxDirective):
    """One definition list per range of codes, under its title."""

    has_content: ClassVar[bool] = False

    def run(self) -> list[nodes.Node]:
        """Read the table."""
        self.env.note_dependency(str(TABLE))
        made: list[nodes.Node] = []
        for title, codes in json.loads(TABLE.read_text(encoding="utf-8")).items():
            made.append(nodes.rubric(title, title))
            made.append(nodes.definition_list())
            for code, meaning in codes.items():
                term = nodes.term("", "", nodes.literal(code, code))
                paragraph = nodes.definition("", nodes.paragraph(text=meaning))
                made[-1] += nodes.definition_list_item("", term, paragraph)
        return [
            node for node in made if not isinstance(node, nodes.definition_list) or node.children
        ]


def setup(app: Any) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("error-codes", ErrorCodes)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
