"""Permissions: what an agent may do, by rules that a person can read and test. See ``Policy`` for the file."""

from .extension import Denied, Permissions
from .floor import FLOOR, FloorRule
from .policy import Decision, Example, Policy, Rule, Verdict

__all__ = ["FLOOR", "Decision", "Denied", "Example", "FloorRule", "Permissions", "Policy", "Rule", "Verdict"]
