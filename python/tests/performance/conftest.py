# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Runs tests of the simulator on its native kernels and on their oracles."""

from __future__ import annotations

import pytest

from tests.references import KERNELS, using


@pytest.fixture(params=KERNELS)
def kernels(request):
    """Run the test once on the native kernels of the simulator, once on their oracles."""
    with using(request.param):
        yield request.param
