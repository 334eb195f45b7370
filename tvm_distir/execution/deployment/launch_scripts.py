# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Write the scripts that start a deployed folder as a job of torchrun or Slurm."""

from __future__ import annotations

from pathlib import Path

from tvm_distir.execution.runtime.engines.torch.failure_store import SECRET_VARIABLE
from tvm_distir.support import EngineError

SCRIPTS = ("run.sh", "run.sbatch")
"""The names of the scripts in a deployed folder."""

_RANDOM = r"od -An -N16 -tx1 /dev/urandom | tr -d ' \n'"
_SECRET = f"""[ "${SECRET_VARIABLE}" ] || {SECRET_VARIABLE}=$({_RANDOM})
export {SECRET_VARIABLE}
"""


def processes_per_host(devices: int, hosts: int) -> int:
    """Return the number of processes of each host.

    Raises
    ------
    EngineError
        DIST0643 where the devices cannot be divided among the hosts.
    """
    if hosts < 1 or devices % hosts:
        problem = f"{devices} devices cannot be divided among {hosts} hosts"
        remedy = "Give a divisor of the number of devices."
        raise EngineError("DIST0643", problem, location="hosts", remedy=remedy)
    return devices // hosts


def write_scripts(folder: Path, devices: int, hosts: int, has_gpus: bool) -> list[str]:
    """Write ``run.sh`` for torchrun and ``run.sbatch`` for Slurm; returns their names.

    Parameters
    ----------
    folder : Path
    devices : int
        The number of processes.
    hosts : int
    has_gpus : bool
        Whether each process has a GPU.
    """
    each = processes_per_host(devices, hosts)
    contents = (_torchrun(each, hosts), _slurm(each, hosts, has_gpus))
    for name, content in zip(SCRIPTS, contents):
        (folder / name).write_text(content, encoding="utf-8")
        (folder / name).chmod(0o755)
    return list(SCRIPTS)


def _torchrun(each: int, hosts: int) -> str:
    if hosts == 1:
        how, use, secret = "--standalone", "#   ./run.sh --inputs x.npz -o y.npz", _SECRET
    else:
        how = f'--nnodes {hosts} --rdzv-backend c10d --rdzv-endpoint "$HEAD"'
        use = "#   HEAD=first-host:29500 ./run.sh --inputs x.npz -o y.npz      (on every host)"
        secret = ""  # the hosts would not have the same
    return f"""#!/bin/sh
# Run this folder with a process per device, {each} on each of {hosts} host{"s" * (hosts > 1)}:
{use}
{secret}exec torchrun {how} --nproc-per-node {each} \\
  -m tvm_distir_command run --job "$(dirname "$0")" "$@"
"""


def _slurm(each: int, hosts: int, has_gpus: bool) -> str:
    gpus = f"#SBATCH --gpus-per-node={each}\n" if has_gpus else ""
    return f"""#!/bin/sh
#SBATCH --nodes={hosts}
#SBATCH --ntasks-per-node={each}
{gpus}# Run this folder with a process per device, from inside of it:
#   sbatch run.sbatch --inputs x.npz -o y.npz
{_SECRET}exec srun python -m tvm_distir_command run --job "${{SLURM_SUBMIT_DIR:-.}}" "$@"
"""
