# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""In which order the suite runs, how quickly it compiles, and a package as when installed."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import quick_compilation as compilation
from tests import quick_kernels, quick_script
from tests.quick_compilation import quick_compilation

HERE = Path(__file__).parent

# Modules are many objects without cycles: Python's cycle collector, which looks at them after every
# 700 new ones, would take a tenth of the time of the suite.
gc.set_threshold(50_000, 20, 100)
compilation.install()
quick_script.install()
quick_kernels.install()

#: The folders that take longest. Workers take files in this order, so that none of them is left
#: with a long one at the end.
FIRST = ("transforms", "integration", "planning", "execution", "repo", "models", "core")

#: Folders and files marked ``quick``: fast, and some of every wing. At most two minutes in two
#: workers.
QUICK = (
    "support",
    "hardware/systems",
    "core/ir",
    "core/plan",
    "core/passes/test_annotate.py",
    "core/passes/test_legalize_plan.py",
    "core/passes/test_lower_module.py",
    "transforms/test_optimize.py",
    "transforms/test_pass_registry.py",
    "passes_text",
    "models/test_dims.py",
    "models/test_frontend_tvmscript.py",
    "performance/native/test_native_meeting.py",
    "performance/native/test_native_schedule.py",
    "performance/simulation/test_simulate_time.py",
    "planning/strategies/test_data_parallel.py",
    "planning/strategies/test_strategy_text.py",
    "execution/runtime/test_runtime_virtual.py",
    "interface/command/test_cli_frame.py",
    "interface/report",
    "repo/test_error_codes.py",
    "repo/test_layers.py",
    "repo/test_tvm_names.py",
)


def _folder(path: Path) -> str:
    return path.relative_to(HERE).parts[0]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the files of the slow folders first; within a folder nothing changes. Mark the quick."""
    order = {name: position for position, name in enumerate(FIRST)}
    items.sort(key=lambda item: order.get(_folder(item.path), len(order)))
    quick = {HERE / name for name in QUICK}
    for item in items:
        if not quick.isdisjoint((item.path, *item.path.parents)):
            item.add_marker(pytest.mark.quick)


@pytest.fixture(scope="module", autouse=True)
def _young_collector():
    """Let the cycle collector look only at what the tests of this file make.

    A refused import runs it. It would look through all objects of a worker that has run hundreds
    of files: 20 s each time.
    """
    gc.collect()
    gc.freeze()


def _is_optimized(node: pytest.Item | pytest.Collector) -> bool:
    """Whether it compiles as users do, with LLVM's optimisations.

    The subject of others is not the code that TVM makes of their programs.
    """
    return node.get_closest_marker("optimized") is not None


@pytest.fixture(scope="module", autouse=True)
def _quick_module(request: pytest.FixtureRequest) -> Iterator[None]:
    """Compile quickly in the fixtures of a module, unless a test of it is optimized."""
    items = [item for item in request.session.items if item.path == request.path]
    if any(map(_is_optimized, items)):
        yield
    else:
        with quick_compilation():
            yield


@pytest.fixture(autouse=True)
def _quick_kernels(request: pytest.FixtureRequest) -> Iterator[None]:
    """Compile quickly what the engines run, unless the compiled code is the subject."""
    if _is_optimized(request.node):
        yield
    else:
        with quick_compilation():
            yield


Install = Callable[[str, str, str], Path]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Install a package of one module: its name, the module's text, its ``entry_points.txt``."""
    created = []

    def add(name: str, source: str, entries: str) -> Path:
        folder = tmp_path / f"site_{name}"
        info = folder / f"{name}-1.0.dist-info"
        info.mkdir(parents=True)
        (folder / f"{name}.py").write_text(source, encoding="utf-8")
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(entries, encoding="utf-8")
        monkeypatch.syspath_prepend(str(folder))
        created.append(name)
        return folder

    yield add
    for name in created:
        sys.modules.pop(name, None)
