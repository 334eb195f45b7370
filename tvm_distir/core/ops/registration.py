# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Declares an op in a single place: its rule, its local form, and the padding it needs."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tvm_distir.core.ops.local.call import LocalCall
from tvm_distir.support import PropagationError

from .draft import CallShape, Draft
from .padding import NO_PADDING, Padding

RuleWriter = Callable[[CallShape], Draft]


class _Form(enum.Enum):
    SAME_OP = "the op itself, with the same attributes, on the shards"


SAME_OP: Final = _Form.SAME_OP
"""Local form of an op that does on shards what it does on the whole, wherever they lie."""

LocalForm = Callable[[LocalCall], Any] | _Form
"""The local form of a sharded call: :data:`SAME_OP`, or a function that writes it."""

Examples = Callable[[], Sequence[Any]]
"""Calls by which a rule is proved (:class:`.cases.Case`), made when they are asked for."""


@dataclass(frozen=True)
class Registration:
    """Rule, local form and padding needs of an op.

    Attributes
    ----------
    write : callable
        The function that drafts the rule from a call's shapes.
    local : LocalForm or None
        None: nothing is said; each cut must then be proved from the op's TIR.
    padding : Padding
    examples : callable, optional
        Calls by which the rule is proved.
    """

    write: RuleWriter
    local: LocalForm | None = None
    padding: Padding = NO_PADDING
    examples: Examples | None = None


def second_rule(name: str) -> PropagationError:
    """Build the error for an op that has a rule already."""
    problem = "the op already has a sharding rule"
    remedy = "Pass override=True to replace it."
    return PropagationError("DIST0406", problem, location=name, remedy=remedy)


@dataclass
class Family:
    """Collection of the ops of a module; :mod:`.families` lists the modules.

    >>> FAMILY = Family()
    >>> @FAMILY.rule("relax.my_op", local=SAME_OP)
    ... def my_op(call):
    ...     draft = Draft(call)
    ...     draft.tie({0: 0}, {0: 0})
    ...     return draft
    """

    entries: dict[str, Registration] = field(default_factory=dict)

    def rule(
        self, *names: str, local: LocalForm, padding: Padding = NO_PADDING
    ) -> Callable[[RuleWriter], RuleWriter]:
        """Declare the rule and local form of some ops (DIST0406 when an op has a rule already)."""

        def keep(writer: RuleWriter) -> RuleWriter:
            for name in names:
                if name in self.entries:
                    raise second_rule(name)
                self.entries[name] = Registration(writer, local, padding)
            return writer

        return keep

    def __iter__(self) -> Iterator[tuple[str, Registration]]:
        return iter(self.entries.items())
