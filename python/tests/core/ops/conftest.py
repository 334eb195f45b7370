# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Makes the helpers of this folder importable by its tests, and prints what was proved."""

from __future__ import annotations

import pytest

from tvm_distir.execution.rule_validation.proof import Proof

KEY = pytest.StashKey[Proof]()


@pytest.fixture
def proved(request):
    """What the tests of this session have proved so far."""
    return request.config.stash.setdefault(KEY, Proof())


def pytest_terminal_summary(terminalreporter, config):
    """Print how many rules were executed, when the tests of this folder ran."""
    proof = config.stash.get(KEY, None)
    if proof is not None and proof.failures:
        terminalreporter.write_sep("-", "sharding rules")
        terminalreporter.write_line(proof.summary())
