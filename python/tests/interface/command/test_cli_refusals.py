# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Models, optimizers and names that are refused or shown as they should be; what is quick."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interface.command.cli_inputs import FAULTY, RUDE, write_inputs
from tvm_distir.interface.command import main
from tvm_distir.interface.command.terminal import print_message, print_result
from tvm_distir.support.errors.user_input import printable

PLACES = "--strategy data_parallel --mesh dp=2"
ANALYZE = f"{PLACES} --system dgx-a100"
SHOWN = printable(RUDE)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of inputs."""
    folder = tmp_path_factory.mktemp("inputs")
    write_inputs(folder)
    return folder


@pytest.fixture(autouse=True)
def _inside(inputs: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("TVM_DISTIR_DEBUG", raising=False)
    monkeypatch.chdir(inputs)
    yield


@pytest.mark.parametrize("name", [name for name in FAULTY if name != "no_data"])
def test_an_onnx_model_that_breaks_the_rules(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(shlex.split(f"analyze {name}.onnx {ANALYZE}")) == 1
    out, err = capfd.readouterr()
    assert err.startswith("DIST0310 ") and len(err.splitlines()) == 1 and out == "", err


@pytest.mark.parametrize("command", ["verify --engine virtual", "deploy -o new"])
def test_values_that_lie_in_a_missing_file(
    command: str, inputs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(shlex.split(f"{command} no_data.onnx {PLACES}")) == 1
    assert capsys.readouterr().err.startswith("DIST0315 w: ")
    assert not (inputs / "new").exists()


@pytest.mark.parametrize(
    "optimizer",
    [
        "adam:rate=-1",
        "adam:rate=1e39",
        "adam:beta1=1",
        "adam:beta2=1.5",
        "adam:beta1=-0.1",
        "adam:epsilon=-1e-8",
        "adam:decay=-1",
        "adamw:beta2=1",
        "adamw:decay=-1",
        "lion:beta1=2",
        "lion:beta2=1",
        "lion:rate=-1",
        "sgd:rate=-1",
        "sgd:momentum=-1",
        "sgd:decay=-1",
    ],
)
def test_options_of_an_optimizer_out_of_range(
    optimizer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = f"analyze mlp.onnx {ANALYZE} --train --loss mse --optimizer {optimizer}"
    assert main(shlex.split(words)) == 2
    out, err = capsys.readouterr()
    name, _, option = optimizer.partition(":")
    option = option.partition("=")[0]
    assert err.startswith(f'DIST0351 --optimizer: "{option}" of the optimizer "{name}" is '), err
    assert out == "" and len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "old", "remedy"),
    [
        ("search M --devices 2 --system h100 --serve", "--serve", "tvm-distir serve-search."),
        ("search M --devices 2 --system h100 --jobs=3", "--jobs", "--workers."),
        ("search M --devices 2 --system h100 --fix tp=2", "--fix", "--fixed."),
        ("search M --devices 2 --micro-batch 1", "--micro-batch", "--micro-batch-sizes."),
        ("serve-search M --devices 2 --system h100 --kv-dtypes T", "--kv-dtypes", "--kv-dtype."),
        ("serve folder", "serve", "tvm-distir run FOLDER --job."),
    ],
)  # fmt: skip
def test_earlier_names_of_options(
    words: str, old: str, remedy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(shlex.split(words)) == 2
    command = words.split()[0]
    problem = f"DIST0150 tvm-distir {command}: {old} has another name now"
    assert capsys.readouterr().err == f"{problem} [Write {remedy}]\n"


def test_options_of_a_job_without_a_job(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "folder", "-o", "y.npz", "--steps", "x.npz"]) == 2
    assert capsys.readouterr().err.startswith("DIST0151 tvm-distir run: --steps needs --job [")


def test_a_model_to_serve_with_a_size_of_a_step(capsys: pytest.CaptureFixture[str]) -> None:
    words = "serve-analyze zoo:llama3?size=tiny,seq=9 --mesh tp=1 --system h100"
    assert main(shlex.split(words)) == 2
    assert capsys.readouterr().err.startswith("DIST0151 zoo:llama3?size=tiny,seq=9: the engine ")


@pytest.mark.parametrize(
    "command",
    [f"analyze rude.onnx {ANALYZE}", "analyze mlp.py --plan rude.json --system dgx-a100"],
)
def test_control_characters_of_names_are_shown(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(shlex.split(command)) == 1
    err = capsys.readouterr().err
    assert SHOWN in err and printable(err, allowed="\n") == err


def test_what_a_terminal_gets(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    print_result(f"a{RUDE}\n")  # a file gets what is
    print_message(f"b{RUDE}")
    assert capsys.readouterr() == (f"a{RUDE}\n", f"b{SHOWN}\n")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    print_result(f"\x1b[1mhead\x1b[0m\n\t{RUDE}é\n")
    assert capsys.readouterr().out == f"\x1b[1mhead\x1b[0m\n\t{SHOWN}é\n"
    monkeypatch.setenv("NO_COLOR", "1")
    print_result("\x1b[1mhead\n")
    assert capsys.readouterr().out == "\\x1b[1mhead\n"


@pytest.mark.parametrize(
    "command",
    [
        f"analyze missing.onnx {ANALYZE}",
        f"analyze missing.onnx --dim n=8 {ANALYZE} --train",
        f"analyze missing.py::Module {ANALYZE}",
        f"verify missing.onnx {PLACES} --engine virtual",
        f"deploy missing.onnx {PLACES} -o new",
        f"explain missing.py {PLACES} lv",
        "opt -p propagate missing.py",
    ],
)
def test_a_model_that_is_not_there_is_told_before_tvm_is_loaded(command: str) -> None:
    program = (
        "import sys\n"
        "from tvm_distir_command import main\n"
        "code = main()\n"
        "assert not {'tvm', 'numpy', 'onnx'} & set(sys.modules), 'loaded'\n"
        "sys.exit(code)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *shlex.split(command)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stderr.startswith("DIST0301 missing") and done.returncode == 1, done.stderr
