# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Compile TVM's search for shardings from a checkout, as it is and repaired, and compare both.

``python scripts/upstream/native_search.py CHECKOUT``

Takes the class ``AxisGroupGraph`` from ``axis_group_graph.h`` of a checkout of apache/tvm, and
applies the changes that the pieces 04 and 05 state in their docstrings. ``native_search.cc`` runs
each version on the graph of the module of ``faults/nondeterministic.py``, with the tensors at
other addresses in each run, and on a deep chain. It needs g++ (C++17), and takes 10 s of CPU.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import order
import pieces_in_place

HERE = Path(__file__).resolve().parent
HEADER = Path("include", "tvm", "relax", "distributed", "axis_group_graph.h")
RUNS = 64
DEPTH = 200_000
KINDS = {1: 0, 4: 1, 2: 2}  # the numbers of EdgeType


def changes(name: str) -> list[str]:
    """Return the C++ texts of the docstring of a piece; a comment separates them."""
    text = order.contribution(name).explanation
    lines = [line[4:] for line in text.splitlines() if line.startswith("    ")]
    return "\n".join(lines).split("\n// ")


def _once(pattern: str, new: str, text: str) -> str:
    """Replace what a pattern matches, which has to be one place."""
    text, count = re.subn(pattern, lambda _: new, text, flags=re.DOTALL)
    if count != 1:
        raise ValueError(f"the checkout has {count} places like {pattern}")
    return text


def versions(header: str) -> dict[str, str]:
    """Return the class of a checkout as it is, with the repair, and with the work list."""
    _, _, rest = header.partition("/*! \\brief tensor axis*/")
    original, mark, _ = rest.partition("using FBuildAxisGraph")
    if not mark:
        raise ValueError(f"{HEADER} is not what the pieces were written for")
    edge, priority = (part.partition("\n")[2] for part in changes("04_one_result"))
    repaired = _once(r"Path AddEdge\(EdgeType type\).*?\n", edge + "\n", original)
    assignment = r"axis_sharding_specs_priority_\[axis\]\[spec\] = path.GetPriority\(\);"
    repaired = _once(assignment, priority, repaired)
    recursion = r"void PropagateShardingSpec\(Axis axis.*?\n  \}"
    listed = _once(recursion, "\n".join(changes("05_work_list")), repaired)
    return {"as it is": original, "repaired": repaired, "with a work list": listed}


def build(text: str, folder: Path) -> Path:
    """Compile a version of the class, and return the program."""
    (folder / "axis_group_graph.inc").write_text(text, encoding="utf-8")
    program = folder / "search"
    command = ["g++", "-std=c++17", "-O1", "-w", f"-I{folder}", str(HERE / "native_search.cc")]
    subprocess.run([*command, "-o", str(program)], check=True)
    return program


def module_graph() -> tuple[int, list[str]]:
    """Return the number of tensors of the module and the lines of its graph."""
    sys.path.insert(0, str(HERE / "faults"))
    from nondeterministic import Module

    one_result = pieces_in_place.load(order.contribution("04_one_result").piece)
    graph = one_result.graph_of(Module["main"], one_result.AxisGraph(is_repaired=True))
    numbers = {name: n for n, name in enumerate(dict.fromkeys(name for name, _ in graph.edges))}
    meshes = {mesh: n for n, (mesh, _) in enumerate(dict.fromkeys(graph.sources.values()))}
    lines = []
    for (name, dim), targets in graph.edges.items():
        for (other, other_dim), kind in targets:
            if kind == one_result.PRODUCER_TO_CONSUMER or (
                kind == one_result.SIDEWAYS and name < other
            ):
                ends = f"{numbers[name]} {dim} {numbers[other]} {other_dim}"
                lines.append(f"edge {ends} {KINDS[kind]}")
        lines.append(f"axis {numbers[name]} {dim} 0 0 0")
    for (name, dim), (mesh, axis) in graph.sources.items():
        lines.append(f"source {numbers[name]} {dim} {meshes[mesh]} {axis} 0")
    return len(numbers), lines


def deep_graph() -> tuple[int, list[str]]:
    """Return a chain of tensors, the first of which is annotated."""
    edges = [f"edge {n} 0 {n + 1} 0 1" for n in range(DEPTH - 1)]
    return DEPTH, ["source 0 0 0 0 0", *edges, f"axis {DEPTH - 1} 0 0 0 0"]


def main() -> int:
    """Build each version, run it, print what it gives; 0 if the changed ones give one result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkout", type=Path, help="a checkout of apache/tvm")
    os.environ["TVM_DEVICE_BACKEND_AUTOLOAD"] = "0"
    header = (parser.parse_args().checkout / HEADER).read_text(encoding="utf-8")
    results, ended = [], []
    with tempfile.TemporaryDirectory() as folder:
        for name, text in versions(header).items():
            program = build(text, Path(folder))
            outcomes = []
            for runs, (tensors, lines) in ((RUNS, module_graph()), (1, deep_graph())):
                command = [str(program), str(runs), str(tensors)]
                done = subprocess.run(
                    command, input="\n".join(lines), capture_output=True, text=True
                )
                outcomes.append((done.returncode, done.stdout.splitlines()))
            (_, found), (code, _) = outcomes
            errors = [each for each in found if each.startswith("error: ")]
            results.append(set(found))
            ended.append(code)
            print(
                f"{name}: {len(errors)} of {RUNS} runs fail, {len(set(found))} different results; "
                f"a chain of {DEPTH} tensors: {'done' if code == 0 else 'stack overflow'}"
            )
    _, repaired, listed = results
    has_failed = any(line.startswith("error: ") for line in repaired)
    is_right = len(repaired) == 1 and not has_failed and repaired == listed and ended[2] == 0
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
