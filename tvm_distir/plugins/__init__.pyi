# Licensed under the Apache License, Version 2.0; see LICENSE.
# SPDX-License-Identifier: Apache-2.0

from .docstrings import parameter_help as parameter_help
from .docstrings import summary as summary
from .kinds import Unreadable as Unreadable
from .kinds import as_term as as_term
from .notation import Call as Call
from .notation import Items as Items
from .notation import NamedFields as NamedFields
from .notation import Term as Term
from .notation import Word as Word
from .notation import read_calls as read_calls
from .options import REQUIRED as REQUIRED
from .options import Option as Option
from .options import options_of as options_of
from .registry import Offer as Offer
from .registry import Registry as Registry
from .registry import all_offers as all_offers
from .registry import offers as offers
