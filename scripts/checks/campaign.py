#!/usr/bin/env python3
# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Run random modules, meshes and plans against one device, and shrink what fails.

Usage: scripts/checks/campaign.py --seeds A:B [--out DIR] [--limit-s S] [--shrink-s S]
       [--threads-every K] [--most N] [--values KIND]
Prints the outcomes counted and each failure. With --out, up to N distinct failures are shrunk and
saved there as NAME.tvmscript and NAME.json (python/tests/campaign/regressions holds such files),
with all outcomes in outcomes.jsonl. Exits 1 when a case failed. With --values all seeds draw their
floats so: "nan" has NaN among them, which no seed has by itself. Half of the seeds are programs of
16-bit floats, half of which have inputs of sizes from 1e-3 to 1e3; they are compared with float64.
"""

from __future__ import annotations

import argparse
import collections
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))

from tests.campaign.campaign_check import THREADS_EVERY, Case, Outcome
from tests.campaign.campaign_modules import FLOATS, NARROW, SCALED
from tests.campaign.campaign_runner import CASE_LIMIT_S, outcomes
from tests.campaign.campaign_saved import save
from tests.campaign.campaign_shrink import shrink


def seed_range(text: str) -> tuple[int, int]:
    """Read ``A:B``."""
    first, _, last = text.partition(":")
    if not first.isdigit() or not last.isdigit() or int(first) >= int(last):
        raise argparse.ArgumentTypeError(f'"{text}" is not A:B with A < B')
    return int(first), int(last)


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--seeds", type=seed_range, required=True, metavar="A:B")
    parser.add_argument("--out", type=Path, metavar="DIR")
    parser.add_argument("--limit-s", type=float, default=CASE_LIMIT_S, help="per case")
    parser.add_argument("--shrink-s", type=float, default=90.0, help="per saved failure")
    parser.add_argument(
        "--threads-every", type=int, default=THREADS_EVERY, help="0: only on the virtual engine"
    )
    parser.add_argument("--most", type=int, default=20, help="failures to save")
    parser.add_argument(
        "--values", choices=(*FLOATS, *SCALED), default="", help="floats of all seeds"
    )
    options = parser.parse_args()
    counts: collections.Counter[tuple[str, str, str]] = collections.Counter()
    remaining: dict[tuple[str, str, str], tuple[int, Outcome]] = {}
    narrow: collections.Counter[str] = collections.Counter()
    start = time.monotonic()
    log = None
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        log = (options.out / "outcomes.jsonl").open("a", encoding="utf-8")
    for seed, outcome in outcomes(
        *options.seeds,
        limit_s=options.limit_s,
        threads_every=options.threads_every,
        values=options.values,
    ):
        counts[outcome.key] += 1
        if outcome.dtype in NARROW and outcome.kind != "unusable":
            narrow[outcome.values] += 1
        if log is not None:
            log.write(json.dumps({"seed": seed, **outcome.as_dict()}) + "\n")
            log.flush()
        if outcome.bad:
            print(seed, *outcome.key, outcome.message, sep=" | ", flush=True)
            remaining.setdefault(outcome.key, (seed, outcome))
    if log is not None:
        log.close()
        for seed, outcome in list(remaining.values())[: options.most]:
            case = Case.of_seed(seed, options.values)
            if outcome.kind not in ("HANG", "CRASH"):
                case = shrink(case, outcome, options.shrink_s)
            print("saved", save(case, outcome, options.out), flush=True)
    for key, number in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        print(f"{number:8d}  {' '.join(word for word in key if word)}")
    print(f"{sum(counts.values()):8d}  cases in {time.monotonic() - start:.0f} s")
    values = ", ".join(f"{number} {kind}" for kind, number in sorted(narrow.items()))
    print(f"{sum(narrow.values()):8d}  of 16-bit floats with usable inputs ({values or 'none'})")
    return 1 if remaining else 0


if __name__ == "__main__":
    raise SystemExit(main())
