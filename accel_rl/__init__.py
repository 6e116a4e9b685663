"""Accelerated deep reinforcement learning on one machine with many CPU cores and GPUs."""

__version__ = "0.2.0"

__all__ = ["__version__"]
