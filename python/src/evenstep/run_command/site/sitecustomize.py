# ruff: noqa: INP001  # Python imports it as a module of its own.
"""Python imports this module when it starts in the environment of `evenstep run`; it imports nothing of evenstep.

Another ``sitecustomize`` that it hides is run as well. When PyTorch defines DistributedDataParallel, and only then,
the class gets the hook of :mod:`evenstep.run_command.hook`.
"""

import os
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec
from types import ModuleType

_TARGET = "torch.nn.parallel.distributed"


class _Hooked(Loader):
    """Loads a module as its own loader does, and adds the hook."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        stock = module.DistributedDataParallel.__init__

        def init(self: object, *args: object, **kwargs: object) -> None:
            stock(self, *args, **kwargs)
            try:
                from evenstep.run_command import hook  # noqa: PLC0415  # Only when a model is made.
            except ImportError as error:
                module.DistributedDataParallel.__init__ = stock
                sys.stderr.write(f"evenstep: this Python cannot import evenstep, so nothing is balanced: {error}\n")
                return
            hook.made(self)

        init.__doc__, init.__wrapped__ = stock.__doc__, stock  # type: ignore[attr-defined]  # As functools.wraps.
        module.DistributedDataParallel.__init__ = init


class _Finder(MetaPathFinder):
    """Finds the one module that gets the hook."""

    def find_spec(self, name: str, path: object, target: object = None) -> ModuleSpec | None:
        if name != _TARGET:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path, target)  # type: ignore[arg-type]  # As the import system calls it.
        if spec is not None and spec.loader is not None:
            spec.loader = _Hooked(spec.loader)
        return spec


def _run_hidden() -> None:
    """Runs the next module of this name in the path, as Python would."""
    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120  # pathlib takes long to import.
    paths = [path for path in sys.path if os.path.abspath(path or ".") != here]  # noqa: PTH100
    spec = PathFinder.find_spec("sitecustomize", paths)
    if spec is None or spec.loader is None:
        return
    module = module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


if os.environ.get("EVENSTEP_RUN"):
    sys.meta_path.insert(0, _Finder())
_run_hidden()
