"""Measurements of speed and of learning; `python benchmarks/FOLDER/SCRIPT.py` runs one."""
