# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Extract one-line help of a function and of its parameters from numpydoc docstrings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable

_SECTION = re.compile(r"^(\w[\w ]*)\n-{3,}\n", re.MULTILINE)
_ROLE = re.compile(r":\w+:`~?\.*([\w.]+)`")


def _plain(text: str) -> str:
    """Return a line without the mark-up of references."""
    line = " ".join(_ROLE.sub(lambda match: match[1].rpartition(".")[2], text).split())
    return line.replace("``", "")


def _sentence(text: str) -> str:
    """Return the first sentence of a paragraph, without its stop."""
    return re.split(r"(?<=[\w)\"'])\. (?=[A-Z])|\.$", _plain(text), maxsplit=1)[0].rstrip(":")


def summary(target: object) -> str:
    """Return the first sentence of the docstring; empty where there is none."""
    paragraph = (inspect.getdoc(target) or "").strip().partition("\n\n")[0]
    return _sentence(paragraph)


def parameter_texts(target: Callable[..., object] | type) -> dict[str, str]:
    """Return the text on each parameter (of a dataclass: each attribute), by its name."""
    parts = _SECTION.split(inspect.getdoc(target) or "")
    sections = dict(zip(parts[1::2], parts[2::2], strict=True))
    result: dict[str, str] = {}
    for title in ("Parameters", "Attributes"):
        names: list[str] = []
        lines: list[str] = []
        for line in [*sections.get(title, "").splitlines(), "end"]:
            if line and not line[0].isspace():
                result.update({name: " ".join(" ".join(lines).split()) for name in names})
                names = [name.strip() for name in line.partition(" : ")[0].split(",")]
                lines = []
            else:
                lines.append(line)
    return result


def parameter_help(target: Callable[..., object] | type) -> dict[str, str]:
    """Return the first sentence on each parameter, by its name."""
    return {name: _sentence(text) for name, text in parameter_texts(target).items()}
