# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""``td.sweep`` and ``tvm-distir sweep``: rows, their files, and what is refused."""

from __future__ import annotations

import argparse
import csv
import re
from pathlib import Path
from typing import Any

import pytest

import tvm_distir as td
from tvm_distir.interface.command import analyze as analyze_command
from tvm_distir.interface.command import main
from tvm_distir.planning.option_names import option_names
from tvm_distir.planning.strategies.composition import make_plan
from tvm_distir.planning.sweep import sweep_run
from tvm_distir.planning.sweep.configuration import INTEGERS
from tvm_distir.support.errors.tree import ModelError, SimulationError, UsageError

MODEL = "zoo:gpt?size=tiny,hidden=32,heads=4,vocab=64,seq=8,positions=8"
SYSTEM = "dgx-a100-megatron"
SWEEP = ["sweep", MODEL, "--system", "dgx-a100", "--grid", "dp=1,2"]


def read(path: Path) -> list[dict[str, str]]:
    """Rows of a CSV file."""
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize(
    ("decide", "options"),
    [("bytes", {}), ("times", {"system": SYSTEM, "bucket_bytes": 0, "ahead_bytes": 0})],
)
def test_row_is_the_step_written_out(decide: str, options: Any) -> None:
    """A row is what the functions of the pipeline give for the same configuration."""
    grid = {"tp": [2], "pp": [2], "dp": [2], "micro_batches": [2], "layers": [4], "zero": [1]}
    train = {"optimizer": "adam"}
    (row,) = td.sweep(MODEL, grid, SYSTEM, train=train, decide=decide).to_dicts()
    schedule = {"kind": "1f1b", "stages": 2, "micro_batches": 2, "cuts": ["layer_output1"]}
    keys = {"hidden": 32, "heads": 4, "vocab": 64, "seq": 8, "positions": 8, "layers": 4}
    model = td.zoo.gpt(size="tiny", batch=2, **keys)
    step = td.train_step(model, optimizer="adam", schedule=schedule)
    text = "pipeline:micro_batches=2+zero:stage=1+megatron"
    plan = make_plan(step, text, {"pp": 2, "dp": 2, "tp": 2})
    local = td.distribute(step, plan, **options)
    result = td.simulate(td.export(local), SYSTEM)
    assert row["status"] == "ok"
    assert row["time_s"] == result.time_s
    assert row["peak_memory_bytes"] == result.peak_memory_bytes
    assert (row["fits"], row["global_batch"], row["devices"]) == (1, 4, 8)
    assert (row["hidden"], row["heads"], row["vocab"]) == ("32", "4", "64")


def test_auto_stays_within_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where Megatron leaves activations whole it is made again; no structure predicts such rows."""
    requests: list[int] = []

    class NoStructures:
        structures, refused, notes = 0, None, ()

        def __init__(self, *_: object) -> None:
            pass

        def run(self, rows: Any, workers: Any) -> list[Any]:
            requests.extend(rows.tolist())
            return []

    monkeypatch.setattr(sweep_run, "LEAST_ROWS", 1)
    monkeypatch.setattr(sweep_run, "StructureSweep", NoStructures)
    model = "zoo:gpt?size=tiny,layers=2,seq=64"
    grid: dict[str, Any] = {"tp": [2], "pp": [2], "micro_batch": [4], "micro_batches": [4]}

    def peaks(*recompute: str) -> list[int]:
        grid["recompute"] = list(recompute)
        result = td.sweep(model, grid, "dgx-a100", train={"optimizer": "adam"})
        return [int(row["peak_memory_bytes"]) for row in result.to_dicts()]

    most, least = peaks("none", "full")
    assert requests == [0, 1]
    bound = (most + least) // 2
    (peak,) = peaks(f"auto:memory_gib={bound / 2**30!r},activations=2,weights=2")
    assert least <= peak <= bound
    assert requests == [0, 1]


def test_impossible_rows_say_why() -> None:
    grid = {"tp": [1, 3], "pp": [1, 3], "global_batch": [2], "micro_batch": [1, 4]}
    result = td.sweep(MODEL, grid, "dgx-a100", train={}).to_dicts()
    message = {(row["tp"], row["pp"], row["micro_batch"]): row["status"] for row in result}
    assert message[1, 1, 1] == "ok"
    assert "not a multiple of dp x micro_batch = 4" in message[1, 1, 4]
    assert "2 layers are not divisible by 3 stages" in message[1, 3, 1]
    assert "number of heads 4 is not divisible" in message[3, 1, 1]
    assert all(row["time_s"] == "" for row in result if row["status"] != "ok")


def test_forward_steps_and_imported_names(tmp_path: Path) -> None:
    """Names of published tables are known, and other columns handed on."""
    path = tmp_path / "rows.csv"
    path.write_text("tensor_parallelism,hidden_size,measured,pp\n2,32,1.5,1\n1,64,2.5,2\n")
    single, two = td.sweep(MODEL, path, "dgx-a100").to_dicts()
    assert (single["tp"], single["hidden"], single["measured"], single["status"]) == (
        2,
        "32",
        "1.5",
        "ok",
    )
    assert "pp=2 requires a training step" in two["status"]


def test_lists_of_mappings_are_rows_of_a_file(tmp_path: Path) -> None:
    """A list of configurations gives what a CSV file with the same rows gives."""
    path = tmp_path / "rows.csv"
    path.write_text("tp,data_parallelism,hidden,measured\n2,1,32,1.5\n1,2,64,\n")
    records = [
        {"tp": 2, "data_parallelism": 1, "hidden": 32, "measured": 1.5},
        {"tp": 1, "data_parallelism": 2, "hidden": 64, "measured": None},
    ]
    listed = td.sweep(MODEL, records, "dgx-a100").to_dicts()
    assert [row["status"] for row in listed] == ["ok", "ok"]
    assert listed == td.sweep(MODEL, path, "dgx-a100").to_dicts()


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([], "no configurations are given"),
        (7, "no configurations are given, but 7"),
        ([{"tp": 1}, 2], r"rows\[1\]: it is no mapping"),
        ([{"tp": "x"}], r'rows\[0\]: tp is "x"'),
        ([{"tp": 1, "tensor_parallelism": 1}], "'tp' occurs twice"),
    ],
)
def test_malformed_lists(rows: Any, words: str) -> None:
    with pytest.raises(SimulationError, match=words) as caught:
        td.sweep(MODEL, rows, "dgx-a100")
    assert caught.value.code == "DIST0750"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "it has no rows"),
        ("tp,pp\n", "it has no rows"),
        ("tp,tp\n1,1\n", "'tp' occurs twice"),
        ("tp,tensor_parallelism\n1,1\n", "'tp' occurs twice"),
        ("tp,\n1,1\n", "a column has no name"),
        ("tp,pp\n1,1\n1\n", r"rows.csv:3.*1 values for 2 columns"),
        ("tp,pp\n1,x\n", r'rows.csv:2.*pp is "x"'),
        ("tp,pp\n0,1\n", r'tp is "0"'),
        ("global_batch\n-4\n", "global_batch is"),
        ("tp\n1e9\n", "tp is"),
        ("tp\n9999999999\n", "tp is|at most"),
        ("tp\n\0\n", "it cannot be read|tp is"),
    ],
)
def test_malformed_csv(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(text)
    with pytest.raises(SimulationError, match=words) as caught:
        td.sweep(MODEL, path, "dgx-a100")
    assert caught.value.code == "DIST0750"


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--grid", "tp"], 2, "DIST0152 --grid"),
        (["--grid", "dp=1"], 2, "DIST0152 --grid.*twice"),
        (["--grid", "tpp=1"], 2, "DIST0750 --grid.*no column"),
        (["--rows", "x.csv"], 2, "DIST0151.*mutually exclusive"),
        (["--resume"], 2, "DIST0151 --resume"),
        (["--cuts", "layer"], 2, "DIST0152 --cuts"),
        (["--decide", "time"], 2, "DIST0152 --decide"),
        (["--tensor", "megatronn"], 2, "DIST0230 .*megatronn"),
        (["--optimizer", "adam"], 2, "DIST0151.*needs --train"),
        (["-o", "/no/such/folder/x.csv"], 2, "DIST0153"),
    ],
)
def test_refusals(
    arguments: list[str], code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*SWEEP, *arguments]) == code
    assert re.search(words, capsys.readouterr().err)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"tp": 1, "batch": 16}, "global_batch"),
        ({"tp": 1, "strategy": "fsdp"}, 'no column "strategy"'),
        ({"tp": 1, "micro_batchs": 2}, 'Did you mean "micro_batches"'),
    ],
)
def test_options_of_other_commands_are_no_columns(
    row: dict[str, Any], words: str, tmp_path: Path
) -> None:
    """They had no effect, without a word."""
    path = tmp_path / "rows.csv"
    path.write_text("\n".join((",".join(row), ",".join(map(str, row.values())))) + "\n")
    for rows in ([row], path):
        with pytest.raises(SimulationError, match=words) as caught:
            td.sweep(MODEL, rows, "dgx-a100")
        assert caught.value.code == "DIST0750"


def test_every_option_of_analyze_is_known_to_tables() -> None:
    """Or it is a column of a sweep, or what a single analysis predicts."""
    parser = argparse.ArgumentParser()
    analyze_command.add_arguments(parser.add_subparsers().add_parser("analyze"))
    [actions] = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    names = {action.dest for action in actions.choices["analyze"]._actions}
    of_output = {"==SUPPRESS==", "advice", "folder", "force", "help", "json", "measure", "price",
                 "report", "trace", "trace_format"}  # fmt: skip
    of_analyses = {"tokens", "mtbf_hours", "checkpoint_minutes", "restart_minutes", "expert_skew"}
    assert names - of_output - of_analyses <= option_names() | INTEGERS.keys()


def test_notes_are_copied_and_devices_are_compared() -> None:
    rows = [{"tp": 1, "dp": 2, "note": "mine", "time": 3, "devices": n} for n in (2, 4)]
    first, second = td.sweep(MODEL, rows, "dgx-a100").to_dicts()
    assert (first["note"], first["status"], first["devices"]) == ("mine", "ok", 2)
    assert "devices=4 is not tp x pp x dp = 2" in second["status"]


def test_rows_name_their_model_and_system_and_may_be_those_of_a_result() -> None:
    result = td.sweep(MODEL, [{"dp": 2}], "dgx-a100")
    (row,) = result.to_dicts()
    assert (row["model"], row["system"]) == (MODEL, "dgx-a100")
    names = result.header[: result.header.index("time_s")]
    again = [{name: row[name] for name in names}]
    assert td.sweep(MODEL, again, "dgx-a100").rows == result.rows
    (other,) = td.sweep(MODEL, again, "h100").to_dicts()
    assert other["status"] == "DIST0751 system=dgx-a100, and the sweep is of h100"


def test_a_zoo_model_has_no_symbolic_dims() -> None:
    with pytest.raises(ModelError, match=r'DIST0313.*"foo"'):
        td.sweep(MODEL, [{"tp": 1}], "dgx-a100", dims={"foo": 2})


def test_a_batch_in_the_model_is_refused() -> None:
    """Rows say it; it was passed over without a word."""
    with pytest.raises(UsageError, match="batch follows from each row") as caught:
        td.sweep(f"{MODEL},batch=8", {"dp": [1]}, "dgx-a100")
    assert caught.value.code == "DIST0151"


def test_goes_on_where_it_was_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C keeps the rows so far; what is there is not made again."""
    path = tmp_path / "out.csv"
    requests: list[int] = []
    whole = sweep_run.through_pipeline

    def stopping(pipeline: Any, row: Any) -> Any:
        if len(requests) == 1:
            raise KeyboardInterrupt
        requests.append(row.dp)
        return whole(pipeline, row)

    monkeypatch.setattr(sweep_run, "through_pipeline", stopping)
    command = [*SWEEP, "-o", str(path)]
    assert main(command) == 130
    assert [row["dp"] for row in read(path)] == ["1"]
    assert main(command) == 2
    assert "already contains a sweep" in capsys.readouterr().err
    monkeypatch.setattr(sweep_run, "through_pipeline", whole)
    assert main([*command, "--resume", "--system", "dgx-h100"]) == 2
    assert "other settings (system)" in capsys.readouterr().err
    with path.open("a") as file:
        file.write("2,32,4,8")  # part of a line
    requests.clear()
    monkeypatch.setattr(
        sweep_run, "through_pipeline", lambda p, r: requests.append(r.dp) or whole(p, r)
    )
    assert main([*command, "--resume"]) == 0
    assert requests == [2]
    fresh = tmp_path / "fresh.csv"
    assert main([*SWEEP, "-o", str(fresh)]) == 0
    assert fresh.read_text() == path.read_text()
