"""This machine and this process: cores, child processes, signals, user code, saved state."""
