# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Standard streams that are closed, full or no longer read: no traceback, no internal error."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.interface.command.cli_inputs import write_inputs
from tvm_distir.interface.command import app

ROOT = Path(str(app.__file__)).parents[3]
# The frame of the command with a sub-command of a line: it starts without TVM.
FRAME = f"""
import os, sys, types, warnings
package = types.ModuleType('tvm_distir')
package.__path__ = [{str(ROOT / "tvm_distir")!r}]
package.__version__ = '0'
sys.modules['tvm_distir'] = package
from tvm_distir.interface.command import main, opt
from tvm_distir.interface.command.outputs import Outputs
from tvm_distir.interface.command.terminal import print_message, print_result
from tvm_distir.support.errors import ModelError

def run(arguments):
    outputs = Outputs()
    path = outputs.reserve(arguments.output, '-o')
    if arguments.passes == 'fail':
        raise ModelError('DIST0301', 'no such file', location='m.onnx', remedy='Look.')
    print_message('a message')
    outputs.add(path, 'a file\\n' * 20000)
    outputs.commit()
    print_result('a result\\n' * 20000)
    # What is opened next must not get the number of a standard stream.
    return 0 if os.open(os.devnull, os.O_RDONLY) > 2 else 99

opt.run = run
sys.exit(main(sys.argv[1:]))
"""
USUAL = "opt -p x in.py"
NO_ROOM = "DIST0153 standard output: the results cannot be written: No space left on device"


def shell(command: str, folder: Path) -> tuple[int, str]:
    """Exit code and stderr of a line of bash, in which ``$run`` is the command."""
    (folder / "frame.py").write_text(FRAME, encoding="utf-8")
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        cwd=folder,
        env={**os.environ, "run": f"{sys.executable} frame.py", "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        ("$run opt -p x in.py > /dev/full", 2, f"a message\n{NO_ROOM}"),
        ("$run --version > /dev/full", 2, NO_ROOM),
        ("$run --help > /dev/full", 2, NO_ROOM),
        (
            "$run opt -p x in.py >&-",
            2,
            "a message\nDIST0153 standard output: .*: the stream is closed",
        ),
        ("$run opt -p x in.py 2>&-", 0, ""),
        ("$run opt -p x in.py <&- 2>&-", 0, ""),
        ("$run opt -p fail in.py <&- >&- 2>&-", 1, ""),
        ("$run opt -p x in.py 2>/dev/full", 0, ""),
        ("$run opt -p fail in.py 2>/dev/full", 1, ""),
        ("$run opt -p x in.py | head -n 1", 141, "a message\n"),
        ("$run opt -p x in.py | true", 141, "a message\n"),
        ("{ sleep 1; $run opt -p x in.py; } 2>&1 | true", 141, ""),
        ("{ sleep 1; $run opt -p fail in.py; } 2>&1 | true", 141, ""),
        ("$run opt -p x in.py -o /dev/stdout | head -n 1", 141, "a message\n"),
        ("$run opt -p x in.py -o /dev/full", 2, "a message\nDIST0153 output: /dev/full cannot be"),
        ("$run opt -p x in.py -o /proc/r.html", 2, "DIST0153 -o: /proc/r.html cannot be written"),
        ("$run opt -p x in.py -o -", 2, 'DIST0152 -o: "-" does not stand for standard output'),
    ],
)
def test_streams(command: str, code: int, said: str, tmp_path: Path) -> None:
    got, stderr = shell(command, tmp_path)
    assert got == code, stderr
    assert re.match(said if "*" in said else re.escape(said), stderr), stderr
    assert bool(stderr) == bool(said)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["frame.py"]


@pytest.mark.parametrize("path", ["/dev/stdout", "/dev/fd/1", "./-"])
@pytest.mark.parametrize("through", ["> all.txt", "| cat > all.txt"])
def test_a_file_may_be_standard_output(path: str, through: str, tmp_path: Path) -> None:
    """The results follow; they are not overwritten."""
    code, _ = shell(f"$run opt -p x in.py -o {path} {through}", tmp_path)
    assert code == 0
    lines = (tmp_path / "all.txt").read_text().splitlines()
    if path == "./-":
        lines = (tmp_path / "-").read_text().splitlines() + lines
    assert lines == ["a file"] * 20000 + ["a result"] * 20000


def test_a_terminal_of_few_characters_gets_them_escaped(tmp_path: Path) -> None:
    frame = FRAME.replace("'a result\\n' * 20000", "'2 × µs\\n'")
    assert frame != FRAME
    (tmp_path / "frame.py").write_text(frame, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "frame.py", *USUAL.split()],
        cwd=tmp_path,
        env={**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "2 \\xd7 \\xb5s\n"), done.stderr


def test_a_model_is_read_without_a_standard_error(tmp_path: Path) -> None:
    """TVM's C++ code and ours write to, and silence, the file number 2."""
    write_inputs(tmp_path)
    model = "mlp.onnx --strategy data_parallel --mesh dp=2 --system dgx-a100"
    command = f"{sys.executable} -m tvm_distir_command analyze {model}"
    code, _ = shell(f"{command} <&- 2>&- | grep -q 'per step'", tmp_path)
    assert code == 0
