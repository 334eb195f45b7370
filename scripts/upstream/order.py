# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The contributions to TVM in their order: what each changes, proves, and is tested by."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
PIECES = HERE / "pieces"
MOST_LINES = 150
"""Most lines of a piece: of changes by outsiders that TVM merged, half have at most 118."""


@dataclass(frozen=True)
class Contribution:
    """A change of TVM that can be proposed by itself.

    Attributes
    ----------
    name : str
        Its number and name, which its piece and its tests have too.
    title : str
        What it does.
    target : str
        The file of TVM that it changes.
    faults : tuple of str
        The reproducers of what it repairs.
    needs : tuple of str
        The names of the pieces that its piece builds on.
    has_model : bool
        The piece is a model of what TVM has compiled in, with tests of its own in
        ``pieces/tests``; the tests of the contribution fail with it as well.
    """

    name: str
    title: str
    target: str
    faults: tuple[str, ...]
    needs: tuple[str, ...] = ()
    has_model: bool = False

    @property
    def number(self) -> str:
        """Return its number, of two digits."""
        return self.name[:2]

    @property
    def piece(self) -> Path:
        """Return the file of its piece."""
        return PIECES / f"{self.name}.py"

    @property
    def tests(self) -> list[Path]:
        """Return the files of its tests, which fail on the wheel."""
        return sorted((HERE / "tests").glob(f"test_{self.number}_*.py"))

    @property
    def checked(self) -> list[Path]:
        """Return the files of the tests that pass with its piece."""
        own = sorted((PIECES / "tests").glob(f"test_{self.number}_*.py"))
        return own if self.has_model else [*self.tests, *own]

    @property
    def pieces(self) -> list[Path]:
        """Return the pieces that its tests run with."""
        return [*(contribution(name).piece for name in self.needs), self.piece]

    @property
    def explanation(self) -> str:
        """Return the docstring of its piece, which states the change."""
        tree = ast.parse(self.piece.read_text(encoding="utf-8"))
        return ast.get_docstring(tree) or ""


DISTRIBUTED = "src/relax/distributed"
PASSES = "python/tvm/relax/distributed/transform"
GRAPH = "include/tvm/relax/distributed/axis_group_graph.h"
CODEGEN = "src/target/llvm/codegen_llvm.cc"
ORDER = (
    Contribution("01_nan_maximum", "maxima and minima keep NaN", CODEGEN, ("nan_maximum",)),
    Contribution(
        "02_nan_argmax",
        "`argmax` and `argmin` find the first NaN",
        "include/tvm/topi/reduction.h",
        ("nan_argmax",),
    ),
    Contribution("03_nan_not_equal", "`!=` is true for NaN", CODEGEN, ("nan_not_equal",)),
    Contribution(
        "04_one_result",
        "`PropagateSharding` has one result",
        GRAPH,
        ("nondeterministic",),
        has_model=True,
    ),
    Contribution(
        "05_work_list",
        "a work list in place of recursion",
        GRAPH,
        ("deep_chain",),
        needs=("04_one_result",),
        has_model=True,
    ),
    Contribution(
        "06_all_gather",
        "`LegalizeRedistribute` from sharded to replicated",
        f"{DISTRIBUTED}/transform/legalize_redistribute.cc",
        ("all_gather", "all_to_all"),
    ),
    Contribution(
        "07_refuse_kernels",
        "kernels that would give wrong numbers are refused",
        f"{PASSES}/refuse_kernels.py",
        ("conv2d_rows", "reduction_on_2d_mesh", "take_vocabulary"),
    ),
    Contribution(
        "08_refuse_not_legalized",
        "and operators that are not legalized",
        f"{PASSES}/refuse_not_legalized.py",
        ("contraction_without_legalize", "matmul_conflict"),
        needs=("07_refuse_kernels",),
    ),
    Contribution(
        "09_inline_private_functions",
        "calls of private functions are inlined before propagation",
        f"{PASSES}/transform.py",
        ("private_function",),
    ),
)
RFC = "10"
RFC_FAULTS = (
    "fused_contraction",
    "lower_on_2d_mesh",
    "quadratic_time",
    "redistribute_on_2d_mesh",
    "softmax_along_cut_dim",
    "uneven_dim",
)


def contribution(name: str) -> Contribution:
    """Return a contribution by its name."""
    return next(each for each in ORDER if each.name == name)


def contribution_of(fault: str) -> Contribution | None:
    """Return the contribution that repairs a fault, None for one that the RFC is about."""
    if fault in RFC_FAULTS:
        return None
    return next(each for each in ORDER if fault in each.faults)


def number_of(fault: str) -> str:
    """Return the number of the contribution that repairs a fault."""
    found = contribution_of(fault)
    return RFC if found is None else found.number


def in_order(faults: list[str]) -> list[str]:
    """Return faults in the order of their contributions."""
    return sorted(faults, key=lambda fault: (number_of(fault), fault))


def change_as_markdown(docstring: str) -> str:
    """Return the docstring of a piece as Markdown; its literal blocks are C++."""
    parts = []
    for paragraph in re.split(r"::\n\n((?:    .*\n|\n)+)", docstring + "\n"):
        if paragraph.startswith("    "):
            code = re.sub(r"^    ", "", paragraph.rstrip(), flags=re.MULTILINE)
            parts.append(f":\n\n```cpp\n{code}\n```\n\n")
        else:
            text = re.sub(r":\w+:`([^`]*)`", r"`\1`", paragraph)
            parts.append(text.replace("``", "`"))
    return "".join(parts).strip()


def table() -> str:
    """Return the Markdown table of the contributions."""
    rows = ["| piece | what it does | file of TVM | change | lines |", "|---|---|---|---|---:|"]
    for each in ORDER:
        block = re.findall(r"^    +(?!//)\S.*$", each.explanation, re.MULTILINE)
        count_of_cpp = f"{len(block)} line{'s' * (len(block) > 1)}"
        change = "Python" if each.target.endswith(".py") else f"C++, {count_of_cpp}"
        count = len(each.piece.read_text(encoding="utf-8").splitlines())
        rows.append(f"| `{each.name}` | {each.title} | `{each.target}` | {change} | {count} |")
    rows.append(f"| `{RFC}`: `rfc/rfc.md` | what a decision is needed for | several | RFC | |")
    return "\n".join(rows) + "\n"
