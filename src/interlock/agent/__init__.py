"""The facade: Agent, Session, AgentRunConfig."""

from __future__ import annotations

from .agent import Agent
from .answers import Allow, Deny, Edit
from .config import AgentRunConfig
from .session import Session

__all__ = ["Agent", "AgentRunConfig", "Allow", "Deny", "Edit", "Session"]
