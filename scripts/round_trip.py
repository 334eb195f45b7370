#!/usr/bin/env python3
# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Every zoo model at every level, written in every form and read again.

``python scripts/round_trip.py [NAME ...]``. TVMScript and TVM's JSON must read back as the same
module. StableHLO (levels 1 to 4; its dialect ``shard`` all levels) has other operations than Relax:
what is read must be at the level that the text can say, and, written once more, read as itself.
Texts with Shardy's words do not say which arguments are data, so it is said when they are read.
Exits with 1 where one is not.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi

import tvm_distir as td
from tvm_distir import transform
from tvm_distir.analysis import LEVELS, level_of
from tvm_distir.cli.opt import script
from tvm_distir.errors import DistIRError
from tvm_distir.frontend import load_model
from tvm_distir.ir import num_input, param_names

MESH = {"dp": 2, "tp": 2}
SIZES = {"mlp": {"batch": "8", "layers": "3", "hidden": "64"}}
SAID = {3: "annotated", 4: "annotated"}
"""What texts of StableHLO say of a level, where that is less."""


def levels(name: str) -> Iterator[tuple[int, Any]]:
    """A model at all levels."""
    mod = td.zoo.build(name, SIZES.get(name, {"size": "tiny", "batch": "4"}))
    plan = td.strategy.make_plan(mod, "data_parallel+tensor_parallel", MESH)
    annotated = transform.AnnotateSharding(plan)(mod)
    placed = transform.PropagateSharding()(annotated)
    yield from ((1, mod), (2, annotated), (3, placed))
    yield 4, transform.LegalizeRedistribute()(placed)
    yield 5, td.distribute(mod, plan)


def in_files(mod: Any, folder: Path) -> dict[str, bool]:
    """Whether TVMScript and JSON hold the module."""
    (folder / "m.py").write_text(script(mod), encoding="utf-8")
    (folder / "m.json").write_text(str(tvm.ir.save_json(mod)), encoding="utf-8")
    kinds = ("py", "json")
    return {k: tvm_ffi.structural_equal(load_model(f"{folder}/m.{k}").mod, mod) for k in kinds}


def in_stablehlo(mod: Any, level: int, form: str) -> bool:
    """Whether what is read of the text says what the text can, and is read as itself."""
    main_ = mod["main"]
    data = param_names(main_)[: num_input(main_) or 0] if form == "auto" else None
    found = td.from_stablehlo(td.to_stablehlo(mod, form), inline=0, data=data)
    again = td.from_stablehlo(td.to_stablehlo(found, form), inline=0, data=data)
    said = SAID.get(level, LEVELS[level])
    return level_of(found) == said and tvm_ffi.structural_equal(found, again)


def main() -> int:
    """Run the command."""
    bad = count = 0
    for name in sys.argv[1:] or td.zoo.NAMES:
        for level, mod in levels(name):
            with tempfile.TemporaryDirectory() as folder:
                held = in_files(mod, Path(folder))
            forms = [("sdy", "auto")] if level < 5 else []
            for title, form in [*forms, ("shard", "shard")]:
                try:
                    held[title] = in_stablehlo(mod, level, form)
                except DistIRError as error:
                    held[title] = False
                    print(f"  {name} {level} {title}: {error}"[:300])
            bad += sum(not good for good in held.values())
            count += len(held)
            print(f"{name} {level}", *(f"{k}={'yes' if v else 'NO'}" for k, v in held.items()))
    print(f"{count} round trips, {bad} differ")
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
