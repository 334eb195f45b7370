# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""An analysis takes over the stages whose inputs did not change, and no others."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tvm

import tvm_distir as td
from tvm_distir.core.ops import note_change
from tvm_distir.interface import analysis
from tvm_distir.models import Model, load_model
from tvm_distir.planning import StageMemo
from tvm_distir.support import warn

MODEL = "zoo:mlp?size=tiny,layers=1"
STEP: dict[str, Any] = {
    "strategy": "data_parallel+tensor_parallel", "mesh": {"dp": 2, "tp": 2},
    "train": {"optimizer": "adam"}, "system": "h100",
}  # fmt: skip
FIRST = ["load", "forward", "train", "plan"]
PASSES = ["annotate", "propagate", "order", "legalize", "optimize", "lower"]
LATER = ["bucket", "bucket-gathers", "split", "schedule", "defer", "prefetch"]


class CountedMemo(StageMemo):
    """A memo that lists the stages that are computed."""

    def __init__(self) -> None:
        super().__init__(most=200)
        self.computed: list[str] = []

    def result(self, stage: str, inputs: Any, make: Any) -> Any:
        """Return the result of a stage."""

        def counted() -> Any:
            self.computed.append(inputs[0] if stage == "pass" else stage)
            return make()

        return super().result(stage, inputs, counted)


@pytest.fixture
def memo(monkeypatch: pytest.MonkeyPatch) -> Iterator[CountedMemo]:
    memo = CountedMemo()
    monkeypatch.setattr(analysis, "ANALYSIS_MEMO", memo)
    yield memo


def computed(memo: CountedMemo, model: Any = MODEL, **changes: Any) -> list[str]:
    """Return the stages that an analysis computes; one that takes some over equals a fresh one."""
    memo.computed.clear()
    options = {**STEP, **changes}
    result = td.analyze(model, **options)
    if not {"load", "forward"}.intersection(memo.computed):
        assert numbers(result) == numbers(td.analyze(model, **options, reuse=False))
    return list(memo.computed)


def numbers(result: Any) -> dict[str, Any]:
    return {key: value for key, value in result.to_dict().items() if key != "timings_s"}


def test_only_changed_stages_are_computed(memo: CountedMemo) -> None:
    assert computed(memo) == [*FIRST, *PASSES, *LATER, "export"]
    assert computed(memo) == []
    assert computed(memo, price=2.5) == []
    assert computed(memo, allocator="pytorch") == []
    assert set(computed(memo, bucket_bytes=0)) <= {*LATER, "export"}
    assert computed(memo, mesh={"dp": 4, "tp": 1})[0] == "plan"
    assert computed(memo, mesh={"tp": 2, "dp": 2})[0] == "plan"  # another order of the axes
    assert computed(memo, train={"optimizer": "sgd"})[0] == "train"
    assert computed(memo, model=f"{MODEL},batch=8")[0] == "load"
    assert computed(memo) == []


def test_a_module_is_known_by_its_functions(memo: CountedMemo) -> None:
    mod = td.zoo.build("mlp", {"batch": 8, "layers": 2, "hidden": 16})
    step = {"strategy": "data_parallel", "mesh": {"dp": 2}, "system": "h100", "train": None}
    assert "forward" in computed(memo, mod, **step)
    assert computed(memo, mod, **step) == []
    mod["layer"] = mod["layer"].with_attr("replaced", 1)
    assert "forward" in computed(memo, mod, **step)


def test_a_changed_file_is_loaded(memo: CountedMemo, tmp_path: Path) -> None:
    config = {
        "model_type": "llama", "hidden_size": 32, "intermediate_size": 64, "vocab_size": 64,
        "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 64,
    }  # fmt: skip
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    assert computed(memo, f"{path}?batch=4,seq=8")[0] == "load"
    assert computed(memo, f"{path}?batch=4,seq=8") == []
    path.write_text(json.dumps({**config, "num_hidden_layers": 2}))
    assert computed(memo, f"{path}?batch=4,seq=8")[0] == "load"


def test_what_is_not_taken_over() -> None:
    memo, calls = StageMemo(most=2), list[str]()

    def run(name: str, inputs: object = 0, warns: bool = False) -> None:
        def make() -> None:
            calls.append(name)
            if warns:
                warn("a warning")

        memo.result(name, inputs, make)

    def runs(*arguments: Any) -> int:
        before = len(calls)
        run(*arguments)
        return len(calls) - before

    assert (runs("a"), runs("a")) == (1, 0)
    assert (runs("a", 0.0), runs("a", False), runs("a", None), runs("a", "0")) == (1, 1, 1, 1)
    assert (runs("a"), runs("a", [0, 1]), runs("a", [0, 1]), runs("a", (0, 1))) == (1, 1, 0, 1)
    with pytest.warns(UserWarning, match="a warning"):
        assert runs("b", 0, True) == 1
    with pytest.warns(UserWarning, match="a warning"):
        assert runs("b", 0, True) == 1
    assert (runs("c", SimpleNamespace(x=1)), runs("c", len), runs("c", len)) == (1, 1, 1)
    assert (runs("d"), runs("d")) == (1, 0)
    note_change()  # a sharding rule or a gradient was registered
    assert (runs("d"), runs("d")) == (1, 0)
    with tvm.transform.PassContext(instruments=[tvm.ir.instrument.PassTimingInstrument()]):
        assert (runs("d"), runs("d")) == (1, 1)
    memo.clear()
    assert runs("d") == 1


def test_modules_that_callers_edit_do_not_change_what_is_kept(memo: CountedMemo) -> None:
    sizes = {"size": "tiny", "layers": "1"}
    mod, other = (td.zoo.build("mlp", {**sizes, "batch": n}) for n in ("4", "64"))
    options = {**STEP, "train": False}
    result = td.analyze(mod, **options)
    expected = numbers(result)
    result.module["main"] = other["main"]
    assert numbers(td.analyze(mod, **options)) == expected
    saved = mod.clone()
    mod["main"] = other["main"]
    assert numbers(td.analyze(saved, **options)) == expected


def test_a_warning_of_a_model_is_issued_by_each_analysis(
    memo: CountedMemo, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*values: Any, **keywords: Any) -> Model:
        warn("a dim is guessed")
        return load_model(*values, **keywords)

    monkeypatch.setattr("tvm_distir.planning.model_loading.load_model", load)
    for _ in range(2):
        with pytest.warns(UserWarning, match="is guessed"):
            td.analyze("zoo:mlp?size=tiny", **{**STEP, "train": False})
