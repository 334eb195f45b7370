# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0

from .account import ROLES as ROLES
from .account import Holder as Holder
from .account import MemoryAccount as MemoryAccount
from .curve import curve as curve
from .entries import EntryMemory as EntryMemory
from .entries import entry_memory as entry_memory
from .framework import Framework as Framework
from .peaks import Peaks as Peaks
from .planned import ALLOCATORS as ALLOCATORS
from .planned import place_number as place_number
from .planned import planned_account as planned_account
from .ranks import RankMemories as RankMemories
from .ranks import RankMemory as RankMemory
from .remedies import Verdict as Verdict
from .remedies import verdict as verdict
