"""Gives each process in whose PYTHONPATH this folder is an emulated GPU, once it imports torch."""

import importlib.util
import sys
from importlib.abc import MetaPathFinder


class _Finder(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module

        def load_and_emulate(module):
            load(module)
            importlib.import_module("torch_cuda")

        spec.loader.exec_module = load_and_emulate
        return spec


sys.meta_path.insert(0, _Finder())
