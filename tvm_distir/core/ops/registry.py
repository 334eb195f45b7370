# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Keeps the ops that have a rule: of the families, of installed packages, and of the user."""

from __future__ import annotations

import functools
from collections.abc import Callable

from tvm_distir.core.ops.families.families import FAMILIES
from tvm_distir.support import DependencyError, PropagationError, all_offers

from .padding import NO_PADDING, Padding
from .registration import Examples, LocalForm, Registration, RuleWriter, second_rule

#: Entry points of this group are loaded before the first look-up; each registers its rules.
ENTRY_POINT_GROUP = "tvm_distir.sharding_rules"

_known: dict[str, Registration] = {name: entry for family in FAMILIES for name, entry in family}
_generation = 0


def generation() -> int:
    """Return how often the rules have changed; earlier look-ups may be out of date."""
    return _generation


def note_change() -> None:
    """Record that rules have changed."""
    global _generation
    _generation += 1


def register_sharding_rule(
    *names: str,
    local: LocalForm | None = None,
    padding: Padding = NO_PADDING,
    examples: Examples | None = None,
    override: bool = False,
) -> Callable[[RuleWriter], RuleWriter]:
    """Register a hand-written rule for some ops.

    Parameters
    ----------
    names : str
        Full op names, such as ``relax.nn.conv2d``.
    local : LocalForm, optional
        The local form of a sharded call: :data:`.registration.SAME_OP`, or a function of a
        :class:`.local.LocalCall`. Without it, each factor must be proved from the op's TIR when the
        rule is looked up: see :mod:`.sound`.
    padding : Padding
        The requirements of the op on the padding of uneven dims.
    examples : callable, optional
        Gives the calls (:class:`.cases.Case`) by which :mod:`.validate` proves the rule.
    override : bool
        Replace a rule that exists, its local form included.

    Raises
    ------
    PropagationError
        DIST0406 when an op has a rule already.

    Examples
    --------
    >>> @register_sharding_rule("relax.my_op", local=SAME_OP)
    ... def my_op(call):
    ...     draft = Draft(call)
    ...     draft.tie({0: 0}, {0: 0})
    ...     return draft
    """

    def keep(writer: RuleWriter) -> RuleWriter:
        for name in names:
            if name in _known and not override:
                raise second_rule(name)
        _known.update(dict.fromkeys(names, Registration(writer, local, padding, examples)))
        note_change()
        return writer

    return keep


@functools.lru_cache(maxsize=1)
def load_entry_points() -> None:
    """Import the rules that other packages offer, once."""
    for offer in all_offers(ENTRY_POINT_GROUP):
        try:
            offer.load()
        except DependencyError as error:
            problem = f"sharding rules: {error.what}"
            raise PropagationError(
                "DIST0404", problem, location=error.location, remedy=error.remedy
            ) from error


def registered_ops() -> tuple[str, ...]:
    """Return the names of the ops with a hand-written rule, sorted."""
    load_entry_points()
    return tuple(sorted(_known))


def registration_of(name: str) -> Registration | None:
    """Return the registration of an op, or None."""
    load_entry_points()
    return _known.get(name)


def own_ops() -> frozenset[str]:
    """Return the ops whose registrations are those of the families of this package."""
    shipped = {name: entry for family in FAMILIES for name, entry in family}
    return frozenset(name for name, entry in _known.items() if shipped.get(name) is entry)
