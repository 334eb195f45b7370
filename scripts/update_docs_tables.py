#!/usr/bin/env python3
# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write the tables of passes, strategies and gradients in the docs from what is registered.

A table stands between ``<!-- table:NAME:start -->`` and ``<!-- table:NAME:end -->``::

    .venv/bin/python scripts/update_docs_tables.py           # rewrite the tables
    .venv/bin/python scripts/update_docs_tables.py --check   # exit 1 where one is out of date

Names, levels, options, defaults and summaries are those of ``tvm-distir opt --help-passes`` and
``--help-strategies``, without what other packages offer.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from slots import rewrite_pages
from tvm import ir

from tvm_distir.ops import op_coverage
from tvm_distir.plugins import Option
from tvm_distir.strategy import find_strategy, strategy_names
from tvm_distir.transform import find_pass, pass_names
from tvm_distir.transform.gradient import reverse, unmoved  # noqa: F401 (registers gradients)
from tvm_distir.transform.gradient.registry import GRADIENTS

ROOT = Path(__file__).resolve().parent.parent
FILES = ("docs/passes.md", "docs/strategies.md", "docs/training.md")

_SLOT = re.compile(r"(?<=<!-- table:)(\w+)(:start -->\n)(.*?)(?=<!-- table:\1:end -->)", re.DOTALL)


def passes_table() -> str:
    """A row per pass: its name, factory, levels and options, and what it does."""
    found = ((name, find_pass(name)) for name in pass_names())
    rows = [
        (
            f"`{name}`",
            f"`{info.factory.__name__}`",
            ", ".join(info.takes),
            info.gives or "the same",
            _options(info.options),
            info.summary,
        )
        for name, info in found
        if _is_ours(info.factory)
    ]
    return _table(
        ("`opt -p`", "factory", "from level", "to level", "options", "what it does"), rows
    )


def strategies_table() -> str:
    """A row per strategy: its name and options, and what it makes."""
    found = ((name, find_strategy(name)) for name in strategy_names())
    rows = [
        (f"`{name}`", _options(info.options), info.summary)
        for name, info in found
        if _is_ours(info.function)
    ]
    return _table(("strategy", "options", "what it makes"), rows)


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
    "passes": passes_table,
    "strategies": strategies_table,
    "gradients": gradients_table,
}


def _is_ours(made: object) -> bool:
    return str(getattr(made, "__module__", "")).partition(".")[0] == "tvm_distir"


def _options(options: Mapping[str, Option]) -> str:
    """Each with its default, or its type where it must be given, and what it says."""
    shown = []
    for option in options.values():
        default = option.default_text
        text = f"`{option.name}={default}`" if default else f"`{option.name}`, {option.kind.word}"
        shown.append(f"{text}: {option.help}" if option.help else text)
    return "<br>".join(shown)


def _table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = list(header)
    lines = [head, ["---"] * len(head), *rows]
    return "".join(
        f"| {' | '.join(c.replace('|', chr(92) + '|') for c in one)} |\n" for one in lines
    )


def regenerate(text: str) -> str:
    """A page with its tables written anew (KeyError for one that is not known)."""
    return _SLOT.sub(lambda match: f"{match[1]}{match[2]}{TABLES[match[1]]()}", text)


def main() -> int:
    """Rewrite or check the tables of all files."""
    return rewrite_pages((__doc__ or "").splitlines()[0], ROOT, FILES, regenerate)


if __name__ == "__main__":
    sys.exit(main())
