# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Cases as files: the module as TVMScript, the plan and what was found as JSON."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

import tvm

from tests.campaign.campaign_check import Case, Outcome

FOLDER = Path(__file__).parent / "regressions"


@dataclass(frozen=True)
class Saved:
    """A case that failed once.

    Attributes
    ----------
    name : str
    case : Case
    found : Outcome
        When it was saved.
    expect : str
        Kind of the outcome it must have: ``ok``, or ``refused`` where the plan asks for what
        cannot be.
    still_open : str
        Why it still fails; empty once repaired.
    """

    name: str
    case: Case
    found: Outcome
    expect: str = "ok"
    still_open: str = ""


def save(case: Case, matches: Outcome, folder: Path) -> str:
    """Write ``NAME.tvmscript`` and ``NAME.json``; the name is returned."""
    words = [f"seed{case.seed}", matches.kind, matches.stage, matches.what]
    name = re.sub(r"\W+", "_", "_".join(word for word in words if word)).lower().strip("_")
    folder.mkdir(parents=True, exist_ok=True)
    text = str(case.mod.script(show_meta=True)).rstrip() + "\n"
    (folder / f"{name}.tvmscript").write_text(text, encoding="utf-8")
    data = {
        "seed": case.seed,
        "plan": case.plan,
        "exact": list(case.exact),
        "values": case.values,
        "found": matches.as_dict(),
        "expect": "ok",
        "open": "",
    }
    (folder / f"{name}.json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    return name


def load(path: Path) -> Saved:
    """Read a saved case by the path of its JSON file."""
    data = json.loads(path.read_text(encoding="utf-8"))
    mod = tvm.script.from_source(path.with_suffix(".tvmscript").read_text(encoding="utf-8"))
    values = data.get("values", "mixed")
    case = Case(mod, data["plan"], tuple(data["exact"]), data["seed"], values)
    return Saved(path.stem, case, Outcome(**data["found"]), data["expect"], data["open"])


def load_all(folder: Path = FOLDER) -> list[Saved]:
    """All saved cases, by name."""
    return [load(path) for path in sorted(folder.glob("*.json"))]
