# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0
"""Every case that failed once, replayed."""

from __future__ import annotations

import json

import pytest

from tests.campaign import campaign_saved
from tests.campaign.campaign_check import check

PATHS = sorted(campaign_saved.FOLDER.glob("*.json"))


def _parameter(path):
    reason = json.loads(path.read_text(encoding="utf-8"))["open"]
    marks = [pytest.mark.xfail(strict=True, reason=reason)] if reason else []
    return pytest.param(path, id=path.stem, marks=marks)


@pytest.mark.parametrize("path", [_parameter(path) for path in PATHS])
def test_a_case_that_failed_once(path):
    """It is right now; a case known to be open still fails, or its file is out of date."""
    saved = campaign_saved.load(path)
    outcome = check(saved.case, threads=saved.found.stage == "threads")
    assert outcome.kind == saved.expect, outcome
