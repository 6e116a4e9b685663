"""Vector environments: a kit that checks whether one keeps Gymnasium's rules."""

from accel_rl.vector.check import CountingEnv, Finding, Report, check, check_vectoriser

__all__ = ["CountingEnv", "Finding", "Report", "check", "check_vectoriser"]
