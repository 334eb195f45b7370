#!/usr/bin/env python3
# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Collect the modules that TVM's tests of frontends import, and verify each on two devices.

    scripts/peers/tvm_frontend_modules.py collect FOLDER TEST_FILE...
    scripts/peers/tvm_frontend_modules.py verify FOLDER [--source onnx] [--match TEXT] [--every K]
    scripts/peers/tvm_frontend_modules.py report FOLDER

``collect`` runs test files of a checkout of TVM with pytest and writes each structurally different
module that a frontend returns to ``FOLDER`` as TVM's JSON; no test is changed. ``verify``
distributes each entry of these modules by `data_parallel`, by `tensor_parallel` and by a plan that
shards the first even dim of an input, exports and simulates the program, and compares its results
with those of one device. Symbolic dims have the size 4, or that of a static dim. An entry counts as
equal where one of the three programs does, and as refused where none does although an input has an
even dim. Modules that stock TVM cannot compile or run on one device have no reference. Both
commands end after ``--total-s`` seconds, and continue when they are called again.
``report`` prints counts per frontend, and the refusals by code. ``verify`` exits with 1 where
results differ, a process crashes or hangs, or an error has no code. Needs torch, ONNX Runtime, JAX
and TensorFlow for the frontends of these.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import hashlib
import json
import re
import sys
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import tvm
from tvm import ir, relax, tirx

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "checks"))

from case_workers import run_cases
from tests.models.node_cases import BAD, Outcome, failed

import tvm_distir as td
from tvm_distir.core.ir import flat_types, known_shape, named_leaves, static_shape
from tvm_distir.core.ir.attributes import param_names
from tvm_distir.core.rewriting import keep_entry
from tvm_distir.support.errors import DistIRError

IMPORTERS = {
    "tvm.relax.frontend.torch": ("from_exported_program", "from_fx"),
    "tvm.relax.frontend.torch.dynamo": ("from_fx",),
    "tvm.relax.frontend.onnx": ("from_onnx",),
    "tvm.relax.frontend.stablehlo": ("from_stablehlo",),
    "tvm.relax.frontend.tflite": ("from_tflite",),
}
"""Functions that return modules, by the package from which tests import them."""
STRATEGIES = {"data_parallel": {"dp": 2}, "tensor_parallel": {"tp": 2}}
FIRST_DIM = "first even dim"
"""The name of the plan that shards a dim of an input."""
SIZE = 4
"""The size of symbolic dims, unless static dims of the module demand another."""
DIFFERENT = ("DIST0690", "DIST0691")
"""Codes of results that differ from those of one device."""
NO_REFERENCE = ("DIST0606", "DIST0618", "DIST0625")
"""Codes of modules that stock TVM cannot compile or run on one device."""


class Collector:
    """A plugin of pytest that writes the modules which frontends return.

    Parameters
    ----------
    folder : Path
        The folder of the modules, and of the list of tests that have run.
    total_s : float
        The time after which no further test is started.
    """

    def __init__(self, folder: Path, total_s: float) -> None:
        self.folder, self.until_s = folder, time.monotonic() + total_s
        self.tests = folder / "tests.txt"
        self.test = ""
        for package, names in IMPORTERS.items():
            try:
                owner = __import__(package, fromlist=["_"])
            except ImportError as error:
                print(f"{package} is not available: {error}")
                continue
            for name in names:
                self._watch(owner, name, name.removeprefix("from_"))
        self._watch(relax.frontend.nn.Module, "export_tvm", "nn")

    def _watch(self, owner: Any, name: str, source: str) -> None:
        """Replace a function by one that writes the modules among its results."""
        original = getattr(owner, name)

        @functools.wraps(original)
        def watched(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            for part in result if isinstance(result, tuple | list) else (result,):
                if isinstance(part, ir.IRModule):
                    self._write(part, source)
            return result

        setattr(owner, name, watched)

    def _write(self, mod: ir.IRModule, source: str) -> None:
        text = ir.save_json(mod)
        key = hashlib.sha256(mod.script(show_meta=True).encode()).hexdigest()[:12]
        if not any(self.folder.glob(f"{source}-*-{key}.json")):
            (self.folder / f"{source}-{self.test}-{key}.json").write_text(text)

    def pytest_collection_modifyitems(self, config: Any, items: list[Any]) -> None:
        """Remove the tests that have run, and run those that need a GPU: they import first."""
        known = set(self.tests.read_text().splitlines()) if self.tests.exists() else set()
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid in known])
        items[:] = [item for item in items if item.nodeid not in known]
        for item in items:
            item.own_markers = [mark for mark in item.own_markers if mark.name != "skipif"]

    def pytest_runtest_setup(self, item: Any) -> None:
        """Name the modules to come by the test."""
        self.test = re.sub(r"[^A-Za-z0-9_.]", "_", item.name)[:100]

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Record that a test has run."""
        with self.tests.open("a") as lines:
            lines.write(nodeid + "\n")

    def pytest_runtest_teardown(self, item: Any) -> None:
        """End the run when its time is over."""
        if time.monotonic() > self.until_s:
            item.session.shouldstop = "the time is over: call the command again"


def collect(folder: Path, tests: Sequence[str], total_s: float) -> int:
    """Run tests and write the modules of frontends."""
    folder.mkdir(parents=True, exist_ok=True)
    options = ["-q", "--tb=no", "--no-header", "-p", "no:cacheprovider", "-c", "/dev/null"]
    root = f"--rootdir={Path(tests[0]).resolve().parent}"
    pytest.main([*options, root, *tests], plugins=[Collector(folder, total_s)])
    print(f"{len(list(folder.glob('*.json')))} modules in {folder}")
    return 0


def entries(mod: ir.IRModule) -> list[str]:
    """Return the public functions, without that which creates the effects of `relax.nn`."""
    functions = {gv.name_hint: fn for gv, fn in mod.functions_items()}
    public = [
        name
        for name, fn in functions.items()
        if isinstance(fn, relax.Function) and "global_symbol" in (fn.attrs or {})
    ]
    return sorted(name for name in public if name != "_initialize_effect")


def sized(mod: ir.IRModule) -> ir.IRModule:
    """Return the module with a size for all dims of inputs: the first that the module allows."""
    functions = [fn for fn in mod.functions.values() if isinstance(fn, relax.Function)]
    types = [ty for fn in functions for p in fn.params for ty in flat_types(p.ty)]
    sizes = [size for ty in types for size in static_shape(ty) or ()]
    names = {str(size.name) for size in sizes if isinstance(size, tirx.Var)}
    static = {size for size in sizes if isinstance(size, int) and size}
    *others, last = dict.fromkeys((SIZE, *sorted(static), SIZE))
    for size in others:
        with contextlib.suppress(DistIRError):
            return td.bind_dims(mod, dict.fromkeys(sorted(names), size))
    return td.bind_dims(mod, dict.fromkeys(sorted(names), last)) if names else mod


def first_even_dim(mod: ir.IRModule, entry: str) -> dict[str, Any] | None:
    """Return the plan that shards the first even dim of an input, None where there is none."""
    fn = mod[entry]
    for param, name in zip(fn.params, param_names(fn), strict=True):
        for leaf, ty in named_leaves(name, param.ty):
            shape = known_shape(ty) or ()
            for dim, size in enumerate(shape):
                if size > 0 and size % 2 == 0:
                    rule = {"param": leaf, "placement": f"S[{dim}]"}
                    return {"schema_version": 1, "mesh": {"x": 2}, "rules": [rule]}
    return None


def verified(mod: ir.IRModule, entry: str, strategy: str) -> Outcome:
    """Return what becomes of an entry under a strategy; its stage is ``ENTRY STRATEGY``."""
    stage = f"{entry} {strategy}"
    try:
        if strategy == FIRST_DIM:
            plan: Any = first_even_dim(mod, entry)
            if plan is None:
                return Outcome(stage, "not applicable", "", "no input has an even dim")
        else:
            plan = td.planning.make_plan(mod, strategy, STRATEGIES[strategy])
        dist = td.distribute(mod, plan)
        td.simulate(td.export(dist), td.System.load("dgx-a100"))
        td.verify(mod, plan, engine="virtual", locate=False, dist=dist).check()
    except Exception as error:
        outcome = failed(stage, error)
        if outcome.code in DIFFERENT:
            return Outcome(stage, "WRONG", outcome.code, outcome.message)
        return outcome
    return Outcome(stage, "equal")


def outcomes(path: Path) -> Iterator[Outcome]:
    """Yield the outcomes of a module: a line for each entry and strategy."""
    quick = tvm.target.Target({"kind": "llvm", "opt-level": 0})  # compiling is what takes time
    with quick, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            whole = td.load_model(str(path)).mod
        except Exception as error:
            yield failed("load", error)
            return
        for entry in entries(whole):
            try:
                mod = sized(keep_entry(whole, entry))
            except Exception as error:
                yield failed(f"{entry} dims", error)
                continue
            for strategy in (*STRATEGIES, FIRST_DIM):
                yield verified(mod, entry, strategy)


def verify(folder: Path, names: Sequence[str], total_s: float, limit_s: float) -> int:
    """Verify the modules that have no outcome yet, and append the outcomes."""
    until_s, bad = time.monotonic() + total_s, 0
    # A process for each module: a crash costs only its module.
    cases = run_cases(lambda number: outcomes(folder / names[number]), len(names), 1, limit_s)
    with (folder / "outcomes.jsonl").open("a") as lines:
        for number, results in cases:
            for outcome in results:
                lines.write(json.dumps({"module": names[number], **outcome.as_dict()}) + "\n")
                if outcome.kind in BAD:
                    bad += 1
                    print(names[number], *outcome.as_dict().values(), sep=" | ", flush=True)
            lines.flush()
            if time.monotonic() > until_s:
                break
    return int(bad > 0)


def verdict(rows: Iterable[dict[str, str]]) -> str:
    """Return the verdict on a module, the worst of its entries: see ``report``."""
    by_entry: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        kind = "no reference" if row["code"] in NO_REFERENCE else row["kind"]
        by_entry[row["stage"].partition(" ")[0]].add(kind)
    kinds = set().union(*by_entry.values())
    for kind in BAD:
        if kind in kinds:
            return kind
    each = [
        next(k for k in ("equal", "not applicable", "no reference", "refused") if k in result)
        for result in by_entry.values()
    ]
    return next(k for k in ("refused", "no reference", "equal", "not applicable") if k in each)


def report(folder: Path) -> int:
    """Print the verdicts per frontend, and the refusals by strategy and code."""
    modules: dict[str, list[dict[str, str]]] = defaultdict(list)
    for line in (folder / "outcomes.jsonl").read_text().splitlines():
        row = json.loads(line)
        modules[row["module"]].append(row)
    verdicts: dict[str, Counter[str]] = defaultdict(Counter)
    for name, rows in modules.items():
        for source in (name.partition("-")[0], "all"):
            verdicts[source][verdict(rows)] += 1
    kinds = ("equal", "refused", "no reference", "not applicable", *BAD)
    print("frontend", "modules", *kinds, "refused %", sep=" | ")
    for source, counts in sorted(verdicts.items(), key=lambda item: item[0] == "all"):
        judged = sum(counts.values()) - counts["not applicable"] - counts["no reference"]
        share = 100 * counts["refused"] / judged if judged else 0.0
        print(source, sum(counts.values()), *(counts[k] for k in kinds), f"{share:.1f}", sep=" | ")
    rows = [row for each in modules.values() for row in each]
    kinds_of = Counter((row["stage"].partition(" ")[2], row["kind"], row["code"]) for row in rows)
    print("\nstrategy | outcome | code | rows")
    for (stage, kind, code), count in sorted(kinds_of.items(), key=lambda item: -item[1]):
        print(stage, kind, code, count, sep=" | ")
    refused = {name for name, each in modules.items() if verdict(each) == "refused"}
    reasons: Counter[str] = Counter()
    for name in sorted(refused):
        matches = {row["message"] for row in modules[name] if FIRST_DIM in row["stage"]}
        for text in matches or {row["message"] for row in modules[name]}:
            reasons[re.sub(r"\d+", "N", text)[:110]] += 1
    print("\nmodules | refusal of the first even dim, numbers as N")
    for text, count in reasons.most_common():
        print(count, text, sep=" | ")
    return 0


def main() -> int:
    """Run a command, and return its exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("command", choices=("collect", "verify", "report"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("tests", nargs="*", help="test files of TVM, or tests of them")
    parser.add_argument("--total-s", type=float, default=540.0)
    parser.add_argument("--limit-s", type=float, default=60.0, help="per module")
    parser.add_argument("--source", default="", help="the frontend, such as onnx")
    parser.add_argument("--match", default="", help="modules whose file name holds this text")
    parser.add_argument("--every", type=int, default=1, metavar="K", help="each K-th module")
    args = parser.parse_args()
    if args.command == "collect":
        return collect(args.folder, args.tests, args.total_s)
    if args.command == "report":
        return report(args.folder)
    output = args.folder / "outcomes.jsonl"
    lines = output.read_text().splitlines() if output.exists() else []
    known = {json.loads(line)["module"] for line in lines}
    names = sorted(path.name for path in args.folder.glob(f"{args.source}*.json"))
    names = [name for name in names if args.match in name][:: args.every]
    return verify(args.folder, [n for n in names if n not in known], args.total_s, args.limit_s)


if __name__ == "__main__":
    sys.exit(main())
