# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""The place of a process in its job, from the variables of each launcher."""

from __future__ import annotations

import os

import pytest

from tvm_distir.execution.runtime.engines.torch.job_environment import (
    find_job_membership,
    first_host,
    is_torchrun_process,
)
from tvm_distir.support.errors.tree import EngineError

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "MASTER_ADDR": "a"}
SLURM = {"SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "4", "SLURM_LOCALID": "0"}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
}


def test_torchrun():
    place = find_job_membership({**TORCHRUN, "MASTER_PORT": "123", **SLURM})
    assert (place.launcher, place.rank, place.size, place.local_rank) == ("torchrun", 3, 8, 1)
    assert (place.address, place.port) == ("a", 123)
    assert is_torchrun_process(TORCHRUN)


def test_slurm_names_the_first_host_and_a_port_of_the_job():
    names = {**SLURM, "SLURM_STEP_NODELIST": "gpu[03-07,12]", "SLURM_JOB_ID": "70001"}
    place = find_job_membership(names)
    assert (place.launcher, place.rank, place.size, place.local_rank) == ("Slurm", 2, 4, 0)
    assert place.address == "gpu03"
    other = find_job_membership({**names, "SLURM_JOB_ID": "70002"})
    assert place.port != other.port
    assert not is_torchrun_process(names)


def test_mpirun_on_one_host_needs_no_address():
    place = find_job_membership(OPEN_MPI)
    assert (place.rank, place.size, place.address) == (1, 4, "127.0.0.1")
    assert place.port == 20000 + os.getppid() % 20000
    with pytest.raises(EngineError, match="DIST0633 environment variable MASTER_ADDR"):
        find_job_membership({**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "2"})
    mpich = {"PMI_RANK": "0", "PMI_SIZE": "2", "MASTER_ADDR": "b"}
    assert find_job_membership(mpich).address == "b"


def test_no_launcher_and_no_number():
    assert find_job_membership({"HOME": "/"}) is None
    with pytest.raises(EngineError, match=r"DIST0633 environment variable WORLD_SIZE: .*no number"):
        find_job_membership({**TORCHRUN, "WORLD_SIZE": "eight"})


@pytest.mark.parametrize(
    ("hosts", "first"),
    [
        ("a", "a"),
        ("a,b", "a"),
        ("n[1-4]", "n1"),
        ("n[07,9]x,m", "n07x"),
        ("h-1.site[2]", "h-1.site2"),
    ],
)
def test_first_host(hosts, first):
    assert first_host(hosts) == first
