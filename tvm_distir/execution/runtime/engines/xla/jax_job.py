# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Run replicas on the devices of a JAX job, of which each process has some.

A process gives the inputs of its devices and has their results. The i-th device of
``jax.devices()``, which JAX orders by process, is the i-th smallest device id of the program.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tvm_distir.execution.runtime.program.tensors import Array
from tvm_distir.support import EngineError

from .worker import Xla, collectives

if TYPE_CHECKING:
    import jax


def is_jax_job() -> bool:
    """Return whether this process has joined a JAX job (``jax.distributed.initialize``)."""
    jax = sys.modules.get("jax")
    return jax is not None and bool(jax.distributed.is_initialized())


class JaxJob:
    """The JAX job that this process has joined.

    Parameters
    ----------
    ranks : sequence of int
        The device ids of a program, ascending.

    Attributes
    ----------
    local_ranks : list of int
        Those whose devices belong to this process.

    Raises
    ------
    EngineError
        DIST0632 where the job has fewer devices, or a process without a device of the program.
    """

    def __init__(self, ranks: Sequence[int]) -> None:
        import jax

        devices = jax.devices()
        if len(devices) < len(ranks):
            problem = f"the job has {len(devices)} devices, the program requires {len(ranks)}"
            remedy = "Start more processes, or processes with more devices."
            raise EngineError("DIST0632", problem, location="engine xla", remedy=remedy)
        self._jax = jax
        self._devices = devices[: len(ranks)]
        idle = set(range(jax.process_count())) - {d.process_index for d in self._devices}
        if idle:
            raise EngineError(
                "DIST0632",
                f"process {min(idle)} of the job has none of the program's {len(ranks)} devices",
                location="engine xla",
                remedy="Start fewer processes, or distribute the program over more devices.",
            )
        self._position = {
            rank: i
            for i, (rank, device) in enumerate(zip(ranks, self._devices))
            if device.process_index == jax.process_index()
        }
        self.local_ranks = list(self._position)

    def check_program(self, fingerprint: str) -> None:
        """Refuse (DIST0631) processes that run different programs."""
        from jax.experimental import multihost_utils

        digest = hashlib.sha256(fingerprint.encode()).digest()
        rows = multihost_utils.process_allgather(np.frombuffer(digest, np.uint8))
        other = next((i for i, row in enumerate(rows) if not np.array_equal(row, rows[0])), None)
        if other is not None:
            problem = f"process {other} has another program or form of outputs than process 0"
            remedy = "Give every process the same module, lowered in the same way."
            raise EngineError("DIST0631", problem, location="engine xla", remedy=remedy)

    def run(
        self, text: str, inputs: Mapping[int, Sequence[Array]]
    ) -> tuple[dict[int, list[Array]], list[tuple[str, int, int]]]:
        """Compile and run a program on the inputs of the local ranks.

        Returns
        -------
        results : dict of int to list of ndarray
            The results of the local ranks.
        collectives : list of tuple
            The collectives of the compiled program, see :func:`.worker.collectives`.

        Raises
        ------
        EngineError
            DIST0606 where XLA refuses the program.
        """
        xla = Xla()
        with self._jax.enable_x64(True):
            try:
                program = xla.compiled(text, self._devices, replicas=True)
            except Exception as err:  # of classes that JAX does not publish
                problem = f"XLA refused the program: {str(err).strip()[:600]}"
                remedy = "Check its text: tvm_distir.to_stablehlo(module)."
                raise EngineError("DIST0606", problem, location="xla", remedy=remedy) from err
            columns = {self._position[rank]: list(arrays) for rank, arrays in inputs.items()}
            rows = xla.run_replicas(program, columns, self._devices)
        hlo = program.hlo_modules()[0].to_string()
        results = {rank: rows[position] for rank, position in self._position.items()}
        return results, collectives(hlo, len(self._devices))

    def gathered(self, results: Mapping[int, list[Array]], ranks: Sequence[int]) -> jax.Array:
        """Return the results of all ranks, on every process."""
        from jax.experimental import multihost_utils
        from jax.sharding import Mesh, NamedSharding, PartitionSpec

        by_device = NamedSharding(Mesh(np.array(self._devices), ("d",)), PartitionSpec("d"))
        rows: dict[int, list[Array]] = {rank: [] for rank in ranks}
        outputs = len(next(iter(results.values()), []))
        with self._jax.enable_x64(True):
            for index in range(outputs):
                parts = [
                    self._jax.device_put(results[rank][index][None], self._devices[position])
                    for rank, position in self._position.items()
                ]
                shape = (len(ranks), *parts[0].shape[1:])
                joined = self._jax.make_array_from_single_device_arrays(shape, by_device, parts)
                full = multihost_utils.process_allgather(joined, tiled=True)
                for rank, array in zip(ranks, full):
                    rows[rank].append(np.asarray(array))
        return rows
