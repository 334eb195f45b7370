# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Judge the passes of the installed TVM wheel: are the faults as recorded?

``python scripts/upstream/run.py [NAME...] [--with-ours] [--write]``

Runs every reproducer of ``faults/`` in a process of its own and every file of ``tests/``, with
stock TVM and nothing else, and compares what they find with ``states.json``, which records it per
version of TVM, and, on the newest one, the texts of ``issues/`` and the table of
``docs/upstream.md`` with what they say. Prints a table; exit code 0 when all is as recorded, 1
when something differs.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import issue_text
import judging

STATES = judging.HERE / "states.json"
NOT_RECORDED = "not recorded"


def series() -> str:
    """Return the version under which states are recorded, such as 0.27."""
    return ".".join(version("apache-tvm").split(".")[:2])


def is_newest(recorded: Iterable[str]) -> bool:
    """Return whether no newer version is recorded: the issues say what the newest one does."""
    return series() == max(recorded, key=lambda text: [int(part) for part in text.split(".")])


def judge(names: list[str], together: bool, recorded: dict[str, str]) -> dict[str, judging.Found]:
    """Run reproducers; those that are known to crash have their own process in any case."""
    if not together:
        return {name: judging.judge(name) for name in names}
    quiet = [name for name in names if not recorded.get(name, "").startswith("crash")]
    return judging.judge_together(quiet)


def compare(title: str, recorded: dict[str, str], matches: dict[str, str], whole: bool) -> bool:
    """Print a table of what was recorded and found; return whether they agree."""
    names = sorted({*recorded, *matches} if whole else matches)
    print(f"| {title} | found | as recorded |\n|--|--|--|")
    equal = True
    for name in names:
        expected, got = recorded.get(name, NOT_RECORDED), matches.get(name, "did not run")
        equal = equal and expected == got
        print(f"| {name} | {got} | {'yes' if expected == got else f'no: {expected}'} |")
    print(flush=True)
    return equal


def stale_issues(matches: dict[str, judging.Found], write: bool) -> list[str]:
    """Return the faults whose issue says other things than were found; write those."""
    stale = []
    for name, single in matches.items():
        path, text = issue_text.path_of(name), issue_text.text_of(name, single)
        if path.is_file() and issue_text.same(path.read_text(encoding="utf-8"), text):
            continue
        if write:
            path.write_text(text, encoding="utf-8")
        else:
            stale.append(name)
    return stale


def stale_page(states: dict[str, str], write: bool) -> bool:
    """Whether the table of the documentation's page says other states; write it if asked."""
    page = issue_text.PAGE.read_text(encoding="utf-8")
    text = issue_text.in_page(page, states)
    if write:
        issue_text.PAGE.write_text(text, encoding="utf-8")
    return not write and text != page


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    argument_parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    argument_parser.add_argument(
        "names", nargs="*", metavar="NAME", help="reproducers; all without any"
    )
    argument_parser.add_argument(
        "--states", type=Path, default=STATES, help="file of recorded states"
    )
    argument_parser.add_argument(
        "--write", action="store_true", help="record what is found, write the issues"
    )
    argument_parser.add_argument(
        "--with-ours", action="store_true", help="also run the tests with tvm_distir's passes"
    )
    argument_parser.add_argument("--no-tests", action="store_true", help="reproducers only")
    argument_parser.add_argument(
        "--together",
        action="store_true",
        help="reproducers in one process, but for those recorded as crashing, which are left out",
    )
    return argument_parser


def main() -> int:
    """Judge, compare, print."""
    arguments = parser().parse_args()
    known = judging.fault_names()
    unknown = sorted(set(arguments.names) - set(known))
    if unknown:
        print(f"no reproducer {', '.join(unknown)}; there are: {', '.join(known)}", file=sys.stderr)
        return 2
    states: dict[str, Any] = json.loads(arguments.states.read_text("utf-8"))
    recorded = states["versions"].setdefault(series(), {"faults": {}, "tests": {}})
    print(f"apache-tvm {version('apache-tvm')}, states recorded for {series()}\n")
    result = judge(arguments.names or known, arguments.together, recorded["faults"])
    by_name = {name: single.state for name, single in result.items()}
    tests = {} if arguments.no_tests or arguments.names else judging.run_tests(ours=False)
    if arguments.write:
        recorded["faults"] |= by_name
        recorded["tests"] = tests or recorded["tests"]
        arguments.states.write_text(json.dumps(states, indent=2, sort_keys=True) + "\n", "utf-8")
    whole = not arguments.names
    equal = compare("fault", recorded["faults"], by_name, whole and not arguments.together)
    if tests:
        equal = compare("test", recorded["tests"], tests, whole) and equal
    if arguments.with_ours:
        ours = judging.run_tests(ours=True)
        equal = compare("test with tvm_distir", dict.fromkeys(ours, "passed"), ours, True) and equal
    newest = is_newest(states["versions"])
    stale = stale_issues(result, arguments.write) if newest else []
    for name in stale:
        file = issue_text.path_of(name).name
        print(f"issues/{file} does not say what was found: run.py --write")
    if newest and stale_page(recorded["faults"], arguments.write):
        print(f"{issue_text.PAGE.name} does not say what is recorded: run.py --write")
        return 1
    return 0 if equal and not stale else 1


if __name__ == "__main__":
    sys.exit(main())
