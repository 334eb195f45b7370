# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The areas of ``mutants.py``: files of the package, tests that should find faults, and mutants."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice, zip_longest
from pathlib import Path

from mutant_sites import Mutant, mutants_of

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "tvm_distir"


@dataclass(frozen=True)
class Area:
    """Files of the package, and the tests of their wing.

    Parameters
    ----------
    files : tuple of str
        Patterns below the folder of the package.
    tests : tuple of str
        Paths below the folder of the tests.
    """

    files: tuple[str, ...]
    tests: tuple[str, ...]

    def paths(self) -> list[str]:
        """Return the files, below the folder of the package."""
        folder = ROOT / PACKAGE
        found = {path for pattern in self.files for path in folder.glob(pattern)}
        return sorted(str(path.relative_to(folder)) for path in found)

    def test_files(self) -> list[Path]:
        """Return the files of tests."""
        found: set[Path] = set()
        for name in self.tests:
            path = ROOT / "python/tests" / name
            found |= {path} if path.suffix else set(path.rglob("test_*.py"))
        return sorted(found)


AREAS = {
    "rules": Area(
        ("core/ops/**/*.py",),
        (
            "core/ops",
            "core/analysis",
            "core/passes/test_lower_padding.py",
            "execution/runtime/test_index_ranges.py",
        ),
    ),
    "lowering": Area(
        ("core/passes/**/*.py", "core/redistribution/*.py", "core/collectives/*.py"),
        ("core/passes", "core/collectives", "integration/test_segments_of_weights.py"),
    ),
    "costs": Area(
        (
            "hardware/*.py",
            "hardware/systems/*.py",
            "performance/fusion/*.py",
            "performance/simulation/**/*.py",
        ),
        (
            "hardware",
            "performance/program",
            "performance/simulation",
            "interface/report/test_report_figures.py",
        ),
    ),
    "memory": Area(
        ("performance/memory/*.py",), ("performance", "planning/test_saved_operands.py")
    ),
    "schedules": Area(
        ("transforms/training/pipeline/*.py", "core/plan/schedules/*.py"),
        ("core/plan/schedules", "transforms/training"),
    ),
    "search": Area(
        (
            "core/propagation/solve/*.py",
            "core/solver/*.py",
            "hardware/auto_sharding/*.py",
            "planning/search/*.py",
        ),
        ("core/propagation", "planning/search"),
    ),
    "serving": Area(("planning/serving/*.py",), ("planning/serving",)),
    "checkpoints": Area(
        ("execution/deployment/*.py", "execution/serving/*.py"),
        ("execution/deployment", "execution/serving"),
    ),
}


def mutants_of_area(area: str) -> list[Mutant]:
    """Return all mutants of the files of an area."""
    folder = ROOT / PACKAGE
    return [
        m for path in AREAS[area].paths() for m in mutants_of(path, (folder / path).read_bytes())
    ]


def draw(mutants: Iterable[Mutant], count: int, seed: int) -> list[Mutant]:
    """Return mutants of all kinds in turns.

    Each mutant has a rank of its own, which follows from its name and the seed. A change of the
    package therefore leaves most of those that are drawn.
    """

    def rank(mutant: Mutant) -> bytes:
        return hashlib.sha256(f"{seed} {mutant.name}".encode()).digest()

    kinds: dict[str, list[Mutant]] = {}
    for mutant in sorted(mutants, key=rank):
        kinds.setdefault(mutant.kind, []).append(mutant)
    turns = zip_longest(*(kinds[kind] for kind in sorted(kinds)))
    return list(islice((mutant for turn in turns for mutant in turn if mutant), count))
