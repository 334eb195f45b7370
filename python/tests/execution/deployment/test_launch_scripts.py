# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The scripts of a deployed folder, run with a launcher that prints the secret of the job."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tvm_distir.execution.deployment.launch_scripts import write_scripts

VARIABLE = "TVM_DISTIR_JOB_SECRET"
LAUNCHERS = {"run.sh": "torchrun", "run.sbatch": "srun"}


def secret(folder: Path, script: str, given: str | None = None) -> str:
    """The secret that the launcher of a script inherits."""
    assert subprocess.run(["sh", "-n", folder / script]).returncode == 0
    launcher = folder / LAUNCHERS[script]
    launcher.write_text(f'#!/bin/sh\nprintf %s "${VARIABLE}"\n')
    launcher.chmod(0o755)
    environment = {key: value for key, value in os.environ.items() if key != VARIABLE}
    environment["PATH"] = f"{folder}{os.pathsep}{environment['PATH']}"
    if given is not None:
        environment[VARIABLE] = given
    done = subprocess.run([folder / script], env=environment, capture_output=True, check=True)
    assert not done.stderr
    return done.stdout.decode()


@pytest.mark.parametrize(("script", "hosts"), [("run.sh", 1), ("run.sbatch", 1), ("run.sbatch", 2)])
def test_the_scripts_give_a_job_a_secret(script: str, hosts: int, tmp_path: Path) -> None:
    write_scripts(tmp_path, 2, hosts, False)
    first, second = secret(tmp_path, script), secret(tmp_path, script, given="")
    assert re.fullmatch("[0-9a-f]{32}", first)
    assert re.fullmatch("[0-9a-f]{32}", second)
    assert first != second
    assert secret(tmp_path, script, given="of the user") == "of the user"


def test_hosts_that_are_started_apart_get_no_secret_each(tmp_path: Path) -> None:
    write_scripts(tmp_path, 2, 2, False)
    assert secret(tmp_path, "run.sh") == ""
