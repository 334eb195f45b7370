# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Checks that a rule offers only factors that a local form carries out.

A rule declares which dims may be sharded, and a local form the computation of a device. A
registration that names a local form is responsible for it, and :mod:`.validate` validates both
together by execution. For a registration without a local form each factor is proved from the op's
TIR, as for derived rules, or the rule is refused. So a rule for ``tril`` that shards rows, whose
results depend on their positions, is no silent error.
"""

from __future__ import annotations

import dataclasses

from tvm.ir import Call

from tvm_distir.core.ops.derive.derivation import derive_call
from tvm_distir.support import PropagationError

from .dims import same
from .draft import CallShape
from .factor import Factor, Rule
from .match import describe_factor
from .padding import Reduced
from .registration import SAME_OP, Registration


def with_local_forms(call: Call, shape: CallShape, rule: Rule, registration: Registration) -> Rule:
    """Check that every factor of a rule has a local form.

    Parameters
    ----------
    call : Call
    shape : CallShape
        The shapes of the call.
    rule : Rule
        The rule as its writer returned it.
    registration : Registration
        The registration of the op.

    Returns
    -------
    rule : Rule
        The same; a reduced dim is sharded evenly only where nothing is said of its padding, and a
        factor proved from TIR is uneven only where that shows that it may be.

    Raises
    ------
    PropagationError
        DIST0418 for a factor without a local form.
    """
    factors = rule.factors
    if registration.local is None and factors:
        proved = _derived(call, shape)
        factors = tuple(_proved(rule, f, proved) for f in factors)
    elif registration.local is SAME_OP:
        for factor in factors:
            if _exchanges(factor):
                why = "the communication inside the call is not part of the op"
                raise _refused(rule, factor, why)
    if registration.padding.reduced is Reduced.UNKNOWN:
        factors = tuple(
            dataclasses.replace(f, uneven=False) if f.reduces and f.uneven else f for f in factors
        )
    return rule if factors == rule.factors else dataclasses.replace(rule, factors=factors)


def _exchanges(factor: Factor) -> bool:
    """Return whether devices must exchange data or rescale results besides running the op."""
    return factor.kind in ("halo", "stat") or factor.rescale or factor.comm_bytes > 0


def _derived(call: Call, shape: CallShape) -> Rule | str:
    """Return the rule of the op's TIR, or why there is none."""
    if call.op.get_attr("FLegalize") is None:
        return "it has no legalization to prove it with"
    try:
        return derive_call(call, shape)
    except PropagationError as error:
        return str(error.what)


def _proved(rule: Rule, factor: Factor, derived: Rule | str) -> Factor:
    if isinstance(derived, str):
        raise _refused(rule, factor, f"no local form is declared, and {derived}")
    for other in derived.factors:
        cut = (other.ins, other.outs, other.kind)
        if cut == (factor.ins, factor.outs, factor.kind) and same(other.size, factor.size):
            if _exchanges(factor):
                break
            return dataclasses.replace(factor, uneven=factor.uneven and other.uneven)
    reasons = [
        why
        for side, dims in (("in", factor.ins), ("out", factor.outs))
        for number, dim in enumerate(dims)
        if dim is not None
        and (why := derived.why_replicated.get(f"{side}{number}.dim{dim}")) is not None
    ]
    why = reasons[0] if reasons else "its TIR does not have this sharding"
    raise _refused(rule, factor, f"no local form is declared, and {why}")


def _refused(rule: Rule, factor: Factor, why: str) -> PropagationError:
    what = f"the rule shards {describe_factor(factor)} ({factor.kind})"
    problem = f"{what}, which no local form implements: {why}"
    remedy = (
        "Register the rule with local=SAME_OP if the op on the shards computes the shards of the "
        "result, else with a function that writes what a device computes; prove it with "
        f"python -m tvm_distir.execution.rule_validation --op {rule.op}."
    )
    return PropagationError("DIST0418", problem, location=rule.op, remedy=remedy)
