# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Commands print the same where oracles in Python take the place of all native functions."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.child_processes import child_environment
from tvm_distir.interface.command.app import main

COMMANDS = (
    "analyze zoo:gpt?size=tiny --strategy data_parallel+megatron --mesh dp=2,tp=2 --system h100 "
    "--advice bounds --json",
    "verify zoo:mlp?layers=2,hidden=16 --strategy tensor_parallel --mesh tp=2 --engine virtual "
    "--json",
    "verify zoo:mlp?layers=2,hidden=16 --strategy tensor_parallel --mesh tp=2 --engine threads "
    "--json",
)

RUN_ALL = f"""
from unittest.mock import patch

from tests.references import use_everywhere
from tvm_distir.interface.command.app import main

use_everywhere()
with patch("tvm_ffi.load_module", side_effect=AssertionError):
    for command in {COMMANDS!r}:
        assert main(command.split()) == 0
"""


def parsed(text):
    """Return the JSON objects of a text, without the times that stages took."""
    decoder, values = json.JSONDecoder(), []
    text = text.strip()
    while text:
        value, end = decoder.raw_decode(text)
        assert value.pop("timings_s")
        values.append(json.dumps(value))
        text = text[end:].strip()
    return values


@pytest.mark.optimized  # as the process of the command compiles
def test_the_output_is_that_of_the_oracles(capfd):
    for command in COMMANDS:
        assert main(command.split()) == 0
    expected = parsed(capfd.readouterr().out)
    done = subprocess.run(
        [sys.executable, "-c", RUN_ALL],
        env=child_environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert parsed(done.stdout) == expected
    assert len(expected) == len(COMMANDS)
