# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""``verify``: run the distributed program and the original on one input, and compare."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import ir

from ..errors import RuntimeError_
from .base import Engine
from .compare import VerifyReport, coarsest_float, compare_outputs, largest, not_finite
from .engines import engine as make_engine
from .layout import same_bits
from .reference import Reference, strip_annotations

Array = npt.NDArray[Any]

_DRAWS = 4
"""How many other draws may leave an output as it is before it counts as constant."""


def _ordered(mod: ir.IRModule, drawn: Sequence[Any] | Mapping[str, Any]) -> list[Array]:
    if isinstance(drawn, Mapping):
        return [np.asarray(drawn[str(p.name)]) for p in mod["main"].params]
    return [np.asarray(value) for value in drawn]


def file_weights(mod: ir.IRModule) -> dict[str, Any]:
    """Weights of the file a module came from, by name; none for modules without a file."""
    from ..ir.attributes import FRONTEND_ATTR

    attrs: Any = mod.attrs or {}
    if FRONTEND_ATTR not in attrs or not str(attrs[FRONTEND_ATTR]["source"]):
        return {}
    from ..frontend import load_weights

    return load_weights(mod)


class Draws:
    """Draws whole inputs for a module, in the order of main's parameters.

    Parameters
    ----------
    mod : IRModule
        At level 1 or 2.
    exact : bool
        Draw from {-2..2}, weights of the file included.
    """

    def __init__(self, mod: ir.IRModule, exact: bool) -> None:
        self._mod = mod
        self._exact = exact
        self._weights = {} if exact else file_weights(mod)

    def draw(self, seed: int) -> list[Array]:
        """One array per parameter (see :func:`tvm_distir.frontend.draw_inputs`)."""
        from ..frontend import draw_inputs

        return draw_inputs(self._mod, seed=seed, exact=self._exact, weights=self._weights)


def refuse_nothing_proved(outputs: Sequence[Array]) -> None:
    """Refuse a reference with NaN or Inf (DIST0620), or without outputs (DIST0621)."""
    if not outputs:
        raise RuntimeError_(
            "DIST0621", "the function has no output", place="main", remedy="Return a value."
        )
    for i, value in enumerate(outputs):
        if value.dtype.kind in "iub":
            continue
        bad = not_finite(value)
        if bad:
            raise RuntimeError_(
                "DIST0620",
                f"{bad} of {value.size} values of the reference are NaN or Inf",
                place=f"output {i}",
                remedy="Give other inputs or weights, or another seed.",
            )


def refuse_constant_outputs(
    reference: Reference, draws: Draws, first: Sequence[Array], seed: int
) -> None:
    """Refuse outputs that are the same bits for every draw of the inputs (DIST0621)."""
    constant = [i for i, value in enumerate(first) if value.size]
    for other in range(1, _DRAWS + 1):
        again = reference.run(draws.draw(seed + other))
        constant = [i for i in constant if same_bits(first[i], again[i])]
        if not constant:
            return
    raise RuntimeError_(
        "DIST0621",
        f"{_DRAWS} other draws of the inputs gave the same bits",
        place=f"output{'s' * (len(constant) > 1)} {', '.join(map(str, constant))}",
        remedy="Its value says nothing about the distribution: give weights that matter, or "
        "leave the output out.",
    )


def verify(
    mod: ir.IRModule,
    plan: Any,
    engine: str | Engine = "virtual",
    seed: int = 0,
    exact: bool = False,
    atol: float | None = None,
    rtol: float | None = None,
    *,
    inputs: Sequence[Any] | Mapping[str, Any] | None = None,
    dist: ir.IRModule | None = None,
) -> VerifyReport:
    """Distribute a module by a plan, run it, and compare with the original on one device.

    Parameters
    ----------
    mod : IRModule
        The original, at level 1 or 2, with a function ``main``.
    plan : Plan
        How to distribute it; not read when ``dist`` is given.
    engine : str or Engine
        See :func:`tvm_distir.runtime.run`.
    seed : int
        Of the inputs and of weights that the model's file does not have.
    exact : bool
        Draw from {-2..2} and demand equal bits.
    atol, rtol : float, optional
        Instead of the defaults of :data:`tvm_distir.runtime.compare.TOLERANCES`.
    inputs : sequence or mapping of whole arrays, optional
        Instead of drawn ones.
    dist : IRModule, optional
        The module already distributed and lowered.

    Returns
    -------
    report : VerifyReport
        ``report.check()`` raises where it is not equal.

    Raises
    ------
    RuntimeError_
        DIST0620 or DIST0621 when the comparison would prove nothing, and what
        :func:`tvm_distir.runtime.run` raises.
    """
    chosen = make_engine(engine)
    plain = strip_annotations(mod)
    draws = Draws(plain, exact)
    values = draws.draw(seed) if inputs is None else _ordered(plain, inputs)
    reference = Reference(plain)
    expected = reference.run(values)
    refuse_nothing_proved(expected)
    if dist is None:
        from ..transform import distribute

        dist = distribute(mod, plan)
    with ThreadPoolExecutor(1) as other_core:
        # TVM's kernels run without the interpreter's lock: two runs at a time.
        varied = other_core.submit(refuse_constant_outputs, reference, draws, expected, seed)
        try:
            got = chosen.run(dist, values)
        finally:
            # A comparison that proves nothing is refused first, whatever the run did.
            varied.result()
    if len(got) != len(expected):
        raise RuntimeError_(
            "DIST0603",
            f"{len(got)} outputs, the original has {len(expected)}",
            place="main",
            remedy="This is a bug of the lowering.",
        )
    outputs = compare_outputs(got, expected, coarsest_float(plain), exact, atol, rtol)
    return VerifyReport(
        equal=all(o.equal for o in outputs),
        max_abs_diff=largest(o.max_abs_diff for o in outputs),
        max_rel_diff=largest(o.max_rel_diff for o in outputs),
        atol=largest(o.atol for o in outputs),
        rtol=largest(o.rtol for o in outputs),
        engine=chosen.name,
        seed=seed,
        exact=exact,
        outputs=outputs,
        collectives=chosen.collectives,
    )
