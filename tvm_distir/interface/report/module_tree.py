# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Arrange the times of modules as a tree, a column per pass."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tvm_distir.performance import ModuleTime
from tvm_distir.support.display import units

from .text_table import work

PASSES = ("forward", "backward", "optimizer")
UNNAMED = "(no module)"


@dataclass
class ModuleNode:
    """A module with all within it.

    Attributes
    ----------
    name : str
        Relative to the node around it.
    compute_s : dict of str to float
        Seconds of kernels by pass.
    comm_s : float
        Seconds of collectives, which kernels may overlap.
    flops : int
    children : list of ModuleNode
        In the order in which they first run.
    """

    name: str
    compute_s: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PASSES, 0.0))
    comm_s: float = 0.0
    flops: int = 0
    children: list[ModuleNode] = field(default_factory=list)

    @property
    def total_s(self) -> float:
        """Return the seconds of kernels in all passes."""
        return sum(self.compute_s.values())

    def add(self, time: ModuleTime) -> None:
        """Add the time of what is within it."""
        self.compute_s[time.phase] += time.compute_s
        self.comm_s += time.comm_s
        self.flops += time.flops

    def child(self, name: str) -> ModuleNode:
        """Return the child of a name, which is made where there is none."""
        child_node = next((child for child in self.children if child.name == name), None)
        if child_node is None:
            self.children.append(child_node := ModuleNode(name))
        return child_node

    def joined(self) -> ModuleNode:
        """Join it with an only child that holds all of its time; so do those within it."""
        self.children = [child.joined() for child in self.children]
        if len(self.children) == 1 and self.name:
            (child,) = self.children
            if (child.total_s, child.comm_s) == (self.total_s, self.comm_s):
                child.name = f"{self.name}.{child.name}"
                return child
        return self

    def walk(self, opened: Sequence[ModuleNode] | None, depth: int = 0) -> Iterator[ModuleRow]:
        """Yield the rows within it, of all nodes or within the ``opened`` ones."""
        for child in self.children:
            if child.total_s or child.comm_s:
                yield depth, child
            if opened is None or child in opened:
                yield from child.walk(opened, depth + 1)

    def to_dict(self) -> dict[str, object]:
        """Return it as JSON."""
        times = {f"{name}_s": spent_s for name, spent_s in self.compute_s.items()}
        more = {"comm_s": self.comm_s, "flops": self.flops}
        children = [child.to_dict() for child in self.children]
        return {"module": self.name, **times, **more, "children": children}


ModuleRow = tuple[int, ModuleNode]
"""Depth and module."""


def module_tree(times: Sequence[ModuleTime]) -> ModuleNode:
    """Return the modules as a tree, whose root is the step."""
    root = ModuleNode("")
    for time in times:
        root.add(time)
        node = root
        for part in re.split(r"\.(?!\*)", time.module or UNNAMED):  # layers.* is a name
            node = node.child(part)
            node.add(time)
    return root.joined()


def largest_rows(root: ModuleNode, most: int) -> list[ModuleRow]:
    """Return at most so many rows of a tree: those of the modules that take longest are opened."""
    opened: list[ModuleNode] = []
    known = list(root.children)
    while known:
        node = max(known, key=lambda node: node.total_s)
        known.remove(node)
        if node.children and len([*root.walk([*opened, node])]) <= most:
            opened.append(node)
            known += node.children
    return list(root.walk(opened))


def longest_module(root: ModuleNode) -> tuple[str, ModuleNode]:
    """Return the path and the module where half of the time of all around it is spent at least."""
    path, node = "", root
    while node.children:
        largest = max(node.children, key=lambda child: child.total_s)
        if largest.name == UNNAMED or 2 * largest.total_s < node.total_s:
            break
        path, node = f"{path}.{largest.name}".lstrip("."), largest
    return path, node


def module_head(root: ModuleNode) -> tuple[list[str], str]:
    """Return the names of the columns, and whether each is at the left or the right."""
    passes = [name for name in PASSES if root.compute_s[name] > 0]
    return ["module", *passes, "share", "comm", "FLOPs"], "l" + "r" * (len(passes) + 3)


def module_cells(root: ModuleNode, node: ModuleNode) -> list[str]:
    """Return the cells of a module but for its name."""
    passes = [node.compute_s[name] for name in PASSES if root.compute_s[name] > 0]
    return [
        *(units.duration(spent_s) if spent_s > 0 else "-" for spent_s in passes),
        units.share(node.total_s, root.total_s),
        units.duration(node.comm_s) if node.comm_s > 0 else "-",
        work(node.flops),
    ]
