# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0

from .draft import CallShape as CallShape
from .draft import Draft as Draft
from .factor import Factor as Factor
from .factor import Rule as Rule
from .factor import Work as Work
from .lookup import rule_of as rule_of
from .lookup import work_of as work_of
from .match import match_factor as match_factor
from .packed import PackedCall as PackedCall
from .packed import PackedForm as PackedForm
from .packed import register_packed_rule as register_packed_rule
from .padding import Padding as Padding
from .padding import Reduced as Reduced
from .padding import Zeros as Zeros
from .registration import SAME_OP as SAME_OP
from .registry import register_sharding_rule as register_sharding_rule
from .registry import registration_of as registration_of
