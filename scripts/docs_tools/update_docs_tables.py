#!/usr/bin/env python3
# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write passes, strategies and the table of gradients in the docs from what is registered.

What is written stands between ``<!-- table:NAME:start -->`` and ``<!-- table:NAME:end -->``::

    .venv/bin/python scripts/docs_tools/update_docs_tables.py           # rewrite them
    .venv/bin/python scripts/docs_tools/update_docs_tables.py --check   # exit 1: out of date

Names, levels, options, defaults and summaries are those of ``tvm-distir opt --help-passes`` and
``--help-strategies``, without what other packages offer.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from slots import rewrite_pages
from tests.core.ops.op_coverage import op_coverage
from tvm import ir

from tvm_distir.planning.strategies.registry import find_strategy, strategy_names
from tvm_distir.support.plugins.options import Option
from tvm_distir.transforms.registry import find_pass, pass_names
from tvm_distir.transforms.training.autodiff.rules import unmoved
from tvm_distir.transforms.training.autodiff.rules.registry import GRADIENTS

ROOT = Path(__file__).resolve().parents[2]
COLUMNS = 110
FILES = ("docs/passes.md", "docs/strategies.md", "docs/training.md")

_SLOT = re.compile(r"(?<=<!-- table:)(\w+)(:start -->\n)(.*?)(?=<!-- table:\1:end -->)", re.DOTALL)


def passes_sections() -> str:
    """A section per pass: its name, factory and levels, what it does, and its options."""
    result = ((name, find_pass(name)) for name in pass_names())
    return "".join(
        _section(
            name,
            f"`{info.factory.__name__}`, from {_any_of(info.takes)} "
            f"to {info.gives or 'the same level'}",
            info.summary,
            info.options,
        )
        for name, info in result
        if _is_ours(info.factory)
    )


def strategies_sections() -> str:
    """A section per strategy: its name, what it makes, and its options."""
    result = ((name, find_strategy(name)) for name in strategy_names())
    return "".join(
        _section(name, "", info.summary, info.options)
        for name, info in result
        if _is_ours(info.function)
    )


def gradients_table() -> str:
    """A row per kind of gradient, with the ops of that kind that have a sharding rule."""
    ruled = [row.op for row in op_coverage() if row.source in ("hand", "derived")]
    kinds: dict[str, list[str]] = {"ours": [], "TVM's": [], "none, on purpose": []}
    refused: dict[str, list[str]] = {}
    for op in ruled:
        name = op.removeprefix("relax.")
        if name in unmoved.UNKNOWN:
            refused.setdefault(unmoved.UNKNOWN[name], []).append(name)
        elif name in unmoved.STEPS:
            kinds["none, on purpose"].append(name)
        elif op in GRADIENTS:
            kinds["ours"].append(name)
        elif ir.Op.get(op).get_attr("FPrimalGradient") is not None:
            kinds["TVM's"].append(name)
        else:
            kinds["none, on purpose"].append(name)
    rows = [*kinds.items(), *((f"refused: {why}", names) for why, names in refused.items())]
    return _table(("gradient", "ops"), [(k, ", ".join(f"`{n}`" for n in v)) for k, v in rows])


TABLES = {
    "passes": passes_sections,
    "strategies": strategies_sections,
    "gradients": gradients_table,
}


def _is_ours(created: object) -> bool:
    return str(getattr(created, "__module__", "")).partition(".")[0] == "tvm_distir"


def _any_of(names: Sequence[str]) -> str:
    """``a, b or c``."""
    return " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _section(name: str, where: str, summary: str, options: Mapping[str, Option]) -> str:
    """A heading and short lines, which a narrow screen shows as a wide one does.

    Each option has its default, or its type where it must be given, and what it says.
    """
    items = []
    for option in options.values():
        default = option.default_text
        text = f"`{option.name}={default}`" if default else f"`{option.name}`, {option.kind.word}"
        items.append(_wrap(f"- {text}: {option.help}" if option.help else f"- {text}", "  "))
    parts = [
        f"### `{name}`",
        where and _wrap(f"{where}."),
        _wrap(f"{summary}."),
        "\n".join(items),
    ]
    return "\n\n".join(filter(None, parts)) + "\n\n"


def _wrap(text: str, indent: str = "") -> str:
    """Return a paragraph in lines of at most `COLUMNS` characters."""
    return textwrap.fill(
        text, COLUMNS, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def _table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = list(header)
    lines = [head, ["---"] * len(head), *rows]
    return "".join(
        f"| {' | '.join(c.replace('|', chr(92) + '|') for c in each)} |\n" for each in lines
    )


def regenerate(text: str) -> str:
    """A page with its tables written anew (KeyError for one that is not known)."""
    return _SLOT.sub(lambda match: f"{match[1]}{match[2]}{TABLES[match[1]]()}", text)


def main() -> int:
    """Rewrite or check the tables of all files."""
    return rewrite_pages((__doc__ or "").splitlines()[0], ROOT, FILES, regenerate)


if __name__ == "__main__":
    sys.exit(main())
