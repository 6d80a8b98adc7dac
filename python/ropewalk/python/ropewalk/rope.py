"""RoPE methods, and what they do to a model."""

from ._ropewalk import Plan, inspect, methods

__all__ = ["Plan", "inspect", "methods"]
