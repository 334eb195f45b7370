#!/usr/bin/env python3
# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Plant small faults in a copy of the package, and count those that its tests find.

Usage: scripts/checks/mutants.py [--seed N] [--count N] [--area NAME] [--sample N] [--jobs N]
The mutants follow from the seed; a sample leaves out those that are known to survive.
A mutant (``mutant_sites.py``) is killed by a failed test, an import error, or by running over its
time, where the same tests pass without it. The tests are those of its area that reach the
changed line, quickest first. ``--only ID`` runs one mutant and shows its diff and the output of
pytest. What tests reach is found out once, and kept in the file of ``--cache``.
Where the tests fail without the mutant too, or run over their time, nothing is known of it.
``surviving_mutants.tsv`` has the known survivors, each with its cause. Exits with 1 where fewer
than 90 % are killed, or where that file names something that is no mutant.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import queue
import random
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from mutant_areas import AREAS, PACKAGE, ROOT, draw, mutants_of_area
from mutant_copies import Copy, reached_by
from mutant_sites import Mutant
from mutant_tests import CHOSEN, Tests, nearest, run_at

SURVIVORS = Path(__file__).with_name("surviving_mutants.tsv")
LEAST_KILLED = 0.9
LIMIT_S = 60.0
TESTS_S = 25.0
"""Seconds that the tests of a mutant take without it; the others start the process, and slack."""


@dataclass(frozen=True)
class Outcome:
    """What became of a mutant.

    Parameters
    ----------
    name : str
        Its area and name.
    kind : str
        ``killed``, ``hangs``, ``survives``, ``unreached`` where no test reaches its line, or
        ``inconclusive`` where its tests do not pass within their time without it either.
    seconds : float
        How long its tests ran.
    tests : int
        How many tests were chosen.
    test : str
        The test that failed first.
    """

    name: str
    kind: str
    seconds: float = 0.0
    tests: int = 0
    test: str = ""

    @property
    def killed(self) -> bool:
        """Whether a test found it."""
        return self.kind in ("killed", "hangs")


def run_mutant(copy: Copy, mutant: Mutant, area: str, tests: Tests) -> tuple[Outcome, str]:
    """Return what becomes of a mutant, and the output of pytest."""
    name = f"{area}:{mutant.name}"
    source = (ROOT / PACKAGE / mutant.path).read_bytes()
    key = f"{mutant.path}:{run_at(source.decode(), mutant.line)}"
    chosen = nearest(tests, key, TESTS_S)
    if not chosen:
        return Outcome(name, "unreached"), ""
    files = [ROOT / path for path in dict.fromkeys(test.partition("::")[0] for test in chosen)]
    order = copy.folder / "chosen.json"
    order.write_text(json.dumps(chosen), encoding="utf-8")

    def run() -> tuple[int | None, str]:
        return copy.pytest(files, LIMIT_S, "-x", "--tb=short", **{CHOSEN: order})

    started_s = time.monotonic()
    copy.write(mutant.path, mutant.apply(source))
    status, output = run()
    copy.write(mutant.path, source)
    seconds = round(time.monotonic() - started_s, 1)
    if status == 0:
        kind = "survives"
    elif run()[0] != 0:  # not because of the mutant
        kind = "inconclusive"
    else:
        kind = "hangs" if status is None else "killed"
    failed = re.search(r"^(?:FAILED|ERROR) .*?(test_\w+\.py\S*)", output, re.MULTILINE)
    return Outcome(name, kind, seconds, len(chosen), failed[1] if failed else ""), output


def difference(mutant: Mutant) -> str:
    """Return the change of a mutant as a diff."""
    source = (ROOT / PACKAGE / mutant.path).read_bytes()
    before, after = (
        text.decode().splitlines(keepends=True) for text in (source, mutant.apply(source))
    )
    path = f"{PACKAGE}/{mutant.path}"
    return "".join(difflib.unified_diff(before, after, path, path, n=2))


def run_all(
    planted: list[tuple[str, Mutant]], tests: dict[str, Tests], jobs: int
) -> Iterator[tuple[Outcome, str]]:
    """Run mutants in some copies of the package at a time; yield outcomes in their order."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(jobs) as pool:
        copies: queue.SimpleQueue[Copy] = queue.SimpleQueue()
        for number in range(jobs):
            copies.put(Copy(Path(folder) / str(number)))

        def run(area: str, mutant: Mutant) -> tuple[Outcome, str]:
            copy = copies.get()
            try:
                return run_mutant(copy, mutant, area, tests[area])
            finally:
                copies.put(copy)

        yield from pool.map(run, *zip(*planted, strict=True))


def read_causes() -> dict[str, str]:
    """Return the causes of known survivors, each of which must be a mutant of today."""
    lines = SURVIVORS.read_text(encoding="utf-8").splitlines()[1:]
    causes = dict(line.split("\t") for line in lines)
    today = {f"{area}:{mutant.name}" for area in AREAS for mutant in mutants_of_area(area)}
    for name in sorted(causes.keys() - today):
        raise SystemExit(f"{SURVIVORS.name}: {name} is no mutant")
    return causes


def report(outcomes: list[Outcome], causes: dict[str, str]) -> bool:
    """Print survivors and how many were killed; return whether these are enough.

    Of inconclusive outcomes it is not known: they count neither way.
    """
    for outcome in outcomes:
        if not outcome.killed:
            print(f"{outcome.kind}: {outcome.name}: {causes.get(outcome.name, 'no cause known')}")
    known = [outcome for outcome in outcomes if outcome.kind != "inconclusive"]
    for area in AREAS:
        of_area = [outcome for outcome in known if outcome.name.startswith(f"{area}:")]
        if of_area:
            print(
                f"{area:12} {sum(outcome.killed for outcome in of_area)} of {len(of_area)} killed"
            )
    killed = sum(outcome.killed for outcome in known)
    share = killed / len(known) if known else 0.0
    unknown = f", {len(outcomes) - len(known)} inconclusive" if len(known) < len(outcomes) else ""
    print(f"{'all':12} {killed} of {len(known)} killed ({share:.1%}){unknown}")
    return share >= LEAST_KILLED


def read_arguments() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=0, help="which mutants are drawn")
    parser.add_argument("--count", type=int, default=25, help="mutants per area (25)")
    parser.add_argument("--area", choices=AREAS, action="append", help="only this area")
    parser.add_argument("--sample", type=int, metavar="N", help="run N that are to be killed")
    parser.add_argument("--sample-seed", type=int, default=0, metavar="N", help="which N")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="mutants at a time")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all outcomes")
    parser.add_argument("--only", metavar="ID", help="run one mutant, and show diff and output")
    parser.add_argument("--cache", type=Path, default=ROOT / "build/mutants.json", metavar="FILE")
    return parser.parse_args()


def main() -> int:
    """Run the mutants; return the exit status."""
    options = read_arguments()
    causes = read_causes()
    areas = options.area or list(AREAS)
    if options.only:
        areas = [options.only.partition(":")[0]]
    planted = []
    for area in areas:
        mutants = mutants_of_area(area)
        if options.only:
            chosen = [mutant for mutant in mutants if f"{area}:{mutant.name}" == options.only]
        else:
            chosen = draw(mutants, options.count, options.seed)
        planted += [(area, mutant) for mutant in chosen]
    if not planted:
        raise SystemExit(f"{options.only} is no mutant")
    if options.sample:
        unknown = [each for each in planted if f"{each[0]}:{each[1].name}" not in causes]
        rng = random.Random(options.sample_seed)
        planted = rng.sample(unknown, min(options.sample, len(unknown)))
    tests = {area: reached_by(area, options.cache) for area in {area: None for area, _ in planted}}
    outcomes = []
    for (outcome, output), (_, mutant) in zip(
        run_all(planted, tests, options.jobs), planted, strict=True
    ):
        print(
            f"{outcome.kind:9} {outcome.seconds:5.1f} s {outcome.name} {outcome.test}", flush=True
        )
        outcomes.append(outcome)
        if options.only:
            print(difference(mutant) + output)
    if options.json:
        options.json.write_text(json.dumps([asdict(o) for o in outcomes], indent=1) + "\n")
    return 0 if report(outcomes, causes) else 1


if __name__ == "__main__":
    sys.exit(main())
