"""One method for each transaction: rows in, records out. `unclaimed` needs no claim, `claimed` writes under one."""

from .claimed import Transactions

__all__ = ["Transactions"]
