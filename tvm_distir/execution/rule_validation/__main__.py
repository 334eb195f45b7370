# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Validate sharding rules of installed packages by execution.

Each call of a rule's examples is run on the shards of its operands, along every factor of its rule
over 2 and 3 devices, by the local form that lowering writes; and so is every operand group that
the rule declares linear. Joined results are compared with the full call.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from .cases import Case, all_cases
from .proof import CHUNK, Proof, prove


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tvm_distir.execution.rule_validation",
        description=(__doc__ or "").split("\n", 1)[0],
        epilog="scripts/checks/check_rules.py of the sources validates the rules that ship.",
    )
    parser.add_argument(
        "names", nargs="*", metavar="WORD", help="select cases whose name contains this word"
    )
    parser.add_argument(
        "--op", action="append", default=[], metavar="NAME", help="select the cases of this op"
    )
    return parser


def main(
    arguments: Sequence[str] | None = None,
    shipped: Sequence[Case] = (),
    reasons: Mapping[str, str] = MappingProxyType({}),
) -> int:
    """Run the command: 0 where all held, 1 where something is wrong or nothing was run.

    Parameters
    ----------
    arguments : sequence of str, optional
        Those of the process by default.
    shipped : sequence of Case
        Cases of the rules that ship, which are in the tests.
    reasons : mapping of str to str
        Ops that no case of these proves, and why not.
    """
    options = _parser().parse_args(arguments)
    cases, unproved = all_cases(shipped, reasons)
    everything = not options.names and not options.op
    chosen = [
        c
        for c in cases
        if everything or c.op in options.op or any(word in c.name for word in options.names)
    ]
    left = {op: why for op, why in unproved.items() if everything or op in options.op}
    total = Proof()
    for at in range(0, len(chosen), CHUNK):
        total.add(prove(chosen[at : at + CHUNK], hints=bool(options.op)))
        if sys.stderr.isatty():
            print(f"{at + CHUNK} of {len(chosen)}", end="\r", file=sys.stderr)
    for name, faults in total.wrong.items():
        print(name, *faults, sep="\n  ")
    for op, why in left.items():
        print(f"not validated: {op}: {why}")
    for hint in total.hints():
        print(f"hint: {hint}")
    print(total.summary())
    return 1 if total.wrong or (not chosen) else 0


if __name__ == "__main__":
    raise SystemExit(main())
