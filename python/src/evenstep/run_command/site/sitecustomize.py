# ruff: noqa: INP001, ANN001, ANN002, ANN003, ANN202, ANN204, ANN205  # Any version of Python imports this file, without the package.
# mypy: ignore-errors
"""Python imports this module when it starts in the environment of `evenstep run`; it imports nothing of evenstep.

Another ``sitecustomize`` that it hides is run first. When PyTorch defines DistributedDataParallel, and only then,
the class gets the hook of :mod:`evenstep.run_command.hook`. Programs of any version of Python may be started in this
environment, so it has only syntax that all of them know.
"""

import os
import sys

_TARGET = "torch.nn.parallel.distributed"


class _Hooked(object):  # noqa: UP004  # Python 2.
    """Loads a module as its own loader does, and adds the hook."""

    def __init__(self, loader):
        self._loader = loader

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        self._loader.exec_module(module)
        stock = module.DistributedDataParallel.__init__

        def init(self, *args, **kwargs):
            stock(self, *args, **kwargs)
            try:
                from evenstep.run_command import hook  # noqa: PLC0415  # Only when a model is made.
            except Exception as error:  # noqa: BLE001  # Another Python may not even read it.
                module.DistributedDataParallel.__init__ = stock
                sys.stderr.write("evenstep: this Python cannot import evenstep, so nothing is balanced: %s\n" % error)  # noqa: UP031
                return
            hook.made(self)

        init.__doc__, init.__wrapped__ = stock.__doc__, stock  # As functools.wraps.
        module.DistributedDataParallel.__init__ = init

    def __getattr__(self, name):
        return getattr(self._loader, name)


class _Finder(object):  # noqa: UP004  # Python 2.
    """Finds the one module that gets the hook."""

    @staticmethod
    def find_spec(name, path, target=None):
        if name != _TARGET:
            return None
        sys.meta_path.remove(_Finder)
        from importlib.machinery import PathFinder  # noqa: PLC0415  # Python 3.

        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Hooked(spec.loader)
        return spec


def _run_hidden():
    """Runs the next module of this name in the path, as Python would, and restores the path of the script."""
    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120  # pathlib takes long to import.
    sys.path[:] = [path for path in sys.path if os.path.abspath(path or ".") != here]  # noqa: PTH100
    ours = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # noqa: F401, PLC0415  # The next one.
    except ImportError as error:
        if getattr(error, "name", "sitecustomize") != "sitecustomize":
            raise
        sys.modules["sitecustomize"] = ours


try:
    _run_hidden()
finally:
    if os.environ.get("EVENSTEP_RUN"):
        sys.meta_path.insert(0, _Finder)
