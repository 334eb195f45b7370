# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Malformed input: the documented exit code, one clear message, no file, no traceback."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interface.command.cli_inputs import write_inputs
from tvm_distir.interface.command import main
from tvm_distir.support.errors.codes import CODES

MLP = "analyze mlp.py --system dgx-a100"
STRATEGY = "--strategy data_parallel"
ONNX = f"analyze mlp.onnx --system dgx-a100 {STRATEGY}"
ZOO = "analyze --system dgx-a100 zoo:gpt"

# (name, exit code, error code, command). Every command also asks for all outputs it can write.
CASES = [
    # The command line itself.
    ("no command", 2, "DIST0150", ""),
    ("unknown command", 2, "DIST0150", "analyse mlp.py"),
    ("unknown option", 2, "DIST0150", f"{MLP} {STRATEGY} --mesh dp=2 --colour"),
    ("no system", 2, "DIST0150", f"analyze mlp.py {STRATEGY} --mesh dp=2"),
    ("plan and strategy", 2, "DIST0151", f"{MLP} --plan plan.json {STRATEGY} --mesh dp=2"),
    ("neither plan nor strategy", 2, "DIST0238", f"{MLP} --mesh dp=2"),
    ("strategy without mesh", 2, "DIST0151", f"{MLP} {STRATEGY}"),
    ("mesh of another plan", 2, "DIST0151", f"{MLP} --plan plan.json --mesh dp=4"),
    ("mesh text", 2, "DIST0152", f"{MLP} {STRATEGY} --mesh dp:2"),
    ("mesh axis twice", 2, "DIST0152", f"{MLP} {STRATEGY} --mesh dp=2,dp=2"),
    ("empty mesh", 2, "DIST0201", f"{MLP} {STRATEGY} --mesh ''"),
    ("mesh of size zero", 2, "DIST0201", f"{MLP} {STRATEGY} --mesh dp=0"),
    ("mesh of negative size", 2, "DIST0201", f"{MLP} {STRATEGY} --mesh dp=-2"),
    ("mesh of no number", 2, "DIST0201", f"{MLP} {STRATEGY} --mesh dp=two"),
    ("batch 0", 2, "DIST0152", f"{MLP} {STRATEGY} --mesh dp=2 --batch 0"),
    ("seed", 2, "DIST0152", f"verify mlp.py {STRATEGY} --mesh dp=2 --engine virtual --seed -1"),
    ("mesh of 20 digits", 2, "DIST0201", f"{MLP} {STRATEGY} --mesh dp={'1' * 20}"),
    ("mesh of 5,000 digits", 2, "DIST0201", f"{MLP} {STRATEGY} --mesh dp={'1' * 5000}"),
    ("mesh of a million devices", 2, "DIST0201", f"{MLP} {STRATEGY} --mesh dp=1000,tp=1000"),
    ("batch of 20 digits", 2, "DIST0152", f"{ONNX} --mesh dp=2 --batch {'1' * 20}"),
    ("batch of 5,000 digits", 2, "DIST0152", f"{ONNX} --mesh dp=2 --batch {'1' * 5000}"),
    (
        "seed of 5,000 digits",
        2,
        "DIST0152",
        f"verify mlp.py {STRATEGY} --mesh dp=2 --engine virtual --seed {'1' * 5000}",
    ),
    ("unknown pass", 2, "DIST0152", "opt -p propagat mlp.py"),
    ("empty pass", 2, "DIST0152", "opt -p annotate,,lower mlp.py"),
    ("annotate without plan", 2, "DIST0151", "opt -p annotate mlp.py"),
    # Outputs.
    ("no such folder", 2, "DIST0153", f"{MLP} {STRATEGY} --mesh dp=2 --report no/r.html"),
    ("output is a folder", 2, "DIST0153", f"{MLP} {STRATEGY} --mesh dp=2 --trace ."),
    ("folder is a file", 2, "DIST0153", f"{MLP} {STRATEGY} --mesh dp=2 -o plan.json"),
    ("folder in no folder", 2, "DIST0153", f"{MLP} {STRATEGY} --mesh dp=2 -o no/such"),
    ("two outputs, one file", 2, "DIST0151", f"{MLP} {STRATEGY} --mesh dp=2 --trace r.html"),
    ("output called -", 2, "DIST0152", f"{MLP} {STRATEGY} --mesh dp=2 --report -"),
    ("output into /proc", 2, "DIST0153", f"{MLP} {STRATEGY} --mesh dp=2 --report /proc/r.html"),
    ("opt into no folder", 2, "DIST0153", "opt -p propagate mlp.py -o no/out.py"),
    # Plans.
    ("missing plan", 1, "DIST0220", f"{MLP} --plan none.json"),
    ("plan is no JSON", 1, "DIST0220", f"{MLP} --plan notjson.json"),
    ("plan is a list", 1, "DIST0221", f"{MLP} --plan list.json"),
    ("plan key", 1, "DIST0221", f"{MLP} --plan key.json"),
    ("key of a rule", 1, "DIST0221", f"{MLP} --plan rulekey.json"),
    ("plan without mesh", 1, "DIST0221", f"{MLP} --plan nomesh.json"),
    ("plan of another version", 1, "DIST0222", f"{MLP} --plan version.json"),
    ("mesh size in a plan", 1, "DIST0201", f"{MLP} --plan meshes.json"),
    ("5,000 digits in a plan", 1, "DIST0220", f"{MLP} --plan digits.json"),
    ("too deep a plan", 1, "DIST0220", f"{MLP} --plan deep.json"),
    ("20 digits in a plan", 1, "DIST0201", f"{MLP} --plan big.json"),
    ("a million devices in a plan", 1, "DIST0201", f"{MLP} --plan many.json"),
    ("first device of 20 digits", 1, "DIST0221", f"{MLP} --plan start.json"),
    ("placement of 5,000 digits", 1, "DIST0203", f"{MLP} --plan bigdim.json"),
    ("placement of no decimal digit", 1, "DIST0203", f"{MLP} --plan odddim.json"),
    ("placement rank", 1, "DIST0204", f"{MLP} --plan rank.json"),
    ("placement text", 1, "DIST0203", f"{MLP} --plan placement.json"),
    ("placement dim", 1, "DIST0205", f"{MLP} --plan dim.json"),
    ("unknown mesh in a plan", 1, "DIST0206", f"{MLP} --plan axis.json"),
    ("rule for nothing", 1, "DIST0223", f"{MLP} --plan nothing.json"),
    ("not divisible", 1, "DIST0226", f"{MLP} --plan uneven2.json"),
    # Strategies.
    ("unknown strategy", 2, "DIST0230", f"{MLP} --strategy data_paralel --mesh dp=2"),
    ("strategy option", 2, "DIST0231", f"{MLP} {STRATEGY}:axes=dp --mesh dp=2"),
    (
        "strategy option of 5,000 digits",
        2,
        "DIST0231",
        f"{MLP} --strategy zero:stage={'1' * 5000} --mesh dp=2",
    ),
    ("strategy text", 2, "DIST0235", f"{MLP} {STRATEGY}: --mesh dp=2"),
    ("strategy axis", 1, "DIST0206", f"{MLP} {STRATEGY} --mesh tp=2"),
    ("mesh bigger than the batch", 1, "DIST0234", f"{MLP} {STRATEGY} --mesh dp=16"),
    ("batch not divisible", 1, "DIST0234", f"{MLP} {STRATEGY} --mesh dp=3"),
    ("megatron without layers", 1, "DIST0233", f"{MLP} --strategy megatron --mesh tp=2"),
    # Models.
    ("missing model", 1, "DIST0301", "analyze no.onnx --system dgx-a100 --plan plan.json"),
    ("missing script", 1, "DIST0301", "analyze no.py --system dgx-a100 --plan plan.json"),
    ("model of no kind", 1, "DIST0302", "analyze model.bin --system dgx-a100 --plan plan.json"),
    ("broken ONNX", 1, "DIST0303", "analyze garbage.onnx --system dgx-a100 --plan plan.json"),
    ("truncated ONNX", 1, "DIST0303", "analyze cut.onnx --system dgx-a100 --plan plan.json"),
    ("empty ONNX", 1, "DIST0303", "analyze empty.onnx --system dgx-a100 --plan plan.json"),
    (
        "unknown ONNX op",
        1,
        "DIST0311",
        "analyze unknown_op.onnx --system dgx-a100 --plan plan.json",
    ),
    ("batch of a script", 1, "DIST0314", f"{MLP} {STRATEGY} --mesh dp=2 --batch 4"),
    (
        "batch of a model that cannot",
        1,
        "DIST0314",
        f"analyze pinned.onnx --system dgx-a100 {STRATEGY} --mesh dp=2 --batch 4",
    ),
    ("no Python", 1, "DIST0320", "analyze syntax.py --system dgx-a100 --plan plan.json"),
    ("no text", 1, "DIST0320", "analyze latin.py --system dgx-a100 --plan plan.json"),
    ("no module", 1, "DIST0322", "analyze nomodule.py --system dgx-a100 --plan plan.json"),
    ("unknown op", 1, "DIST0323", "opt -p annotate --plan plan.json badop.py"),
    ("cyclic calls", 1, "DIST0408", f"analyze cycle.py --system dgx-a100 {STRATEGY} --mesh dp=2"),
    (
        "unknown zoo model",
        1,
        "DIST0330",
        f"analyze zoo:gtp --system dgx-a100 {STRATEGY} --mesh dp=2",
    ),
    (
        "unknown zoo key",
        1,
        "DIST0331",
        f"analyze zoo:gpt?sise=tiny --system dgx-a100 {STRATEGY} --mesh dp=2",
    ),
    ("zoo of 20 digits", 1, "DIST0332", f"{ZOO}?batch={'1' * 20} {STRATEGY} --mesh dp=2"),
    ("zoo of 5,000 digits", 1, "DIST0332", f"{ZOO}?hidden={'1' * 5000} {STRATEGY} --mesh dp=2"),
    ("zoo of 100,000 layers", 1, "DIST0332", f"{ZOO}?layers=100000 {STRATEGY} --mesh dp=2"),
    (
        "size of a dim of 5,000 digits",
        2,
        "DIST0152",
        f"analyze mlp.onnx --dim n={'1' * 5000} --system dgx-a100 {STRATEGY} --mesh dp=2",
    ),
    # Systems, programs, engines.
    (
        "too deep a system",
        1,
        "DIST0702",
        f"analyze mlp.py {STRATEGY} --mesh dp=2 --system deep.json",
    ),
    ("unknown system", 2, "DIST0701", f"analyze mlp.py {STRATEGY} --mesh dp=2 --system dgx-a1000"),
    (
        "broken system",
        1,
        "DIST0702",
        f"analyze mlp.py {STRATEGY} --mesh dp=2 --system notjson.json",
    ),
    ("system key", 1, "DIST0703", f"analyze mlp.py {STRATEGY} --mesh dp=2 --system plan.json"),
    ("missing program", 1, "DIST0710", "simulate no.json --system dgx-a100"),
    ("truncated program", 1, "DIST0710", "simulate notjson.json --system dgx-a100"),
    ("program is a plan", 1, "DIST0710", "simulate plan.json --system dgx-a100"),
    ("program of another version", 1, "DIST0711", "simulate version.json --system dgx-a100"),
    ("unknown engine", 2, "DIST0601", f"verify mlp.py {STRATEGY} --mesh dp=2 --engine virtal"),
    # The wrong level.
    ("lower before propagate", 1, "DIST0451", "opt -p lower mlp.py"),
]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all files that the commands name."""
    folder = tmp_path_factory.mktemp("inputs")
    write_inputs(folder)
    return folder


@pytest.fixture
def inside(inputs: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Work in the folder, and find it afterwards as it was."""
    monkeypatch.delenv("TVM_DISTIR_DEBUG", raising=False)
    monkeypatch.chdir(inputs)
    before = content(inputs)
    yield inputs
    assert content(inputs) == before


def content(folder: Path) -> dict[str, str]:
    """Every file under the folder, hidden ones too, with a digest."""
    return {
        str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest()
        if p.is_file()
        else ""
        for p in sorted(folder.rglob("*"))
    }


def with_outputs(command: str) -> list[str]:
    """Ask for every output that the command does not name itself."""
    words = shlex.split(command)
    expected = {
        "analyze": {"--report": "r.html", "--trace": "t.json", "-o": "out"},
        "simulate": {"--trace": "t.json"},
        "opt": {"-o": "out.py"},
    }.get(words[0] if words else "", {})
    for option, path in expected.items():
        if option not in words:
            words += [option, path]
    return words


def test_the_table_is_long_and_names_documented_codes() -> None:
    assert len(CASES) >= 25 and len({case[0] for case in CASES}) == len(CASES)
    assert {case[2] for case in CASES} <= set(CODES)


@pytest.mark.parametrize(
    ("exit_code", "code", "command"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_one_clear_message(
    exit_code: int, code: str, command: str, inside: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    got = main(with_outputs(command))
    out, err = capfd.readouterr()
    lines = [line for line in err.splitlines() if line.startswith("DIST")]
    assert len(lines) == 1, err
    assert (lines[0].split()[0].rstrip(":"), got) == (code, exit_code), err
    assert out == "" and "Traceback" not in err and ".py:" not in err.replace(lines[0], "")
    assert lines[0].endswith("]"), "the message has no remedy"
    # TVM's own log, e.g. of a builder that an error left half done, is not the command's.
    ours = [line for line in err.splitlines() if not re.match(r"\[\d\d:\d\d:\d\d\] ", line)]
    others = [line for line in ours if not line.startswith("DIST")]
    assert all(line.startswith(("usage:", " ")) for line in others), err


def test_json_in_files_is_what_the_cases_say(inputs: Path) -> None:
    for path in inputs.glob("*.json"):
        if path.name in ("notjson.json", "digits.json", "deep.json"):
            with pytest.raises((ValueError, RecursionError)):
                json.loads(path.read_text())
        else:
            json.loads(path.read_text())
