"""Many runs from one command: the product of lists of options, run in turn, ending in one table."""
