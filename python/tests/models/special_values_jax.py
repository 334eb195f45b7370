# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""What JAX makes of NaN and infinities: ``special_values_jax.py TYPE FOLDER``.

Writes the program of all cases as StableHLO, and what each of them gives.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

NAN, INF = np.nan, np.inf
ROWS = np.array(
    [
        [1.0, NAN, -2.0, INF, 0.5, -0.0],
        [NAN, 0.5, -INF, 3.0, NAN, 7.0],
        [-INF, -INF, -INF, -INF, -INF, -INF],
        [INF, INF, 2.0, INF, -INF, 1.0],
        [NAN, NAN, NAN, NAN, NAN, NAN],
        [-3.0, 2.0, 2.0, 1.0, 0.0, -1.5],
    ]
)
JAX = {
    "isnan": lambda j, a: j.isnan(a),
    "isfinite": lambda j, a: j.isfinite(a),
    "nan_to_num": lambda j, a: j.nan_to_num(a),
    "nansum": lambda j, a: j.nansum(a, 1),
    "nanmax": lambda j, a: j.nanmax(a, 1),
    "maximum": lambda j, a: j.maximum(a, 0),
    "minimum": lambda j, a: j.minimum(a, a * 0 + 1),
    "max": lambda j, a: a.max(1),
    "min": lambda j, a: a.min(0),
    "clip": lambda j, a: j.clip(a, -1, 1),
    "sort": lambda j, a: j.sort(a, 1),
    "argsort": lambda j, a: j.argsort(a, 1),
    "argmax": lambda j, a: j.argmax(a, 1),
    "argmin": lambda j, a: j.argmin(a, 0),
    "sign": lambda j, a: j.sign(a),
    "not less": lambda j, a: ~(a <= 0),
    "unequal": lambda j, a: a != a,
    "take filled": lambda j, a: j.take(a, np.array([0, 9, -1, -9]), axis=0, mode="fill"),
    "take clipped": lambda j, a: j.take(a, np.array([0, 9, 5]), axis=0, mode="clip"),
    "set outside": lambda j, a: a.at[np.array([0, 9])].set(4.0),
}


def main(dtype: str, folder: Path) -> None:
    """Write ``all.mlir`` and ``wanted.npz``."""
    import jax

    def every(a):
        return tuple(write(jax.numpy, a) for write in JAX.values())

    a = ROWS.astype(dtype)
    with jax.enable_x64(True):
        program = jax.jit(every)
        (folder / "all.mlir").write_text(program.lower(a).as_text(), encoding="utf-8")
        results = program(a)
    expected = {name: np.asarray(single) for name, single in zip(JAX, results, strict=True)}
    np.savez(folder / "wanted.npz", **expected)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
