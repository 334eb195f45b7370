# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0

from .classes import ALIGNED as ALIGNED
from .grouped import grouped as grouped
from .profile import Profile as Profile
from .profile import Rule as Rule
from .profile import profile_names as profile_names
