"""Checks of the installation: Python, torch, evenstep, and the devices that torch sees."""

import importlib.metadata
import platform
import sys
from collections.abc import Mapping

from evenstep.doctor.check import Check

PYTHON_MIN = (3, 10)
#: Before 2.8 a Gloo group could hang when it was destroyed: its destructor held the interpreter's lock while it waited
#: for a thread that needed that lock (pytorch/pytorch#154976).
TORCH_MIN = (2, 8)


def installed() -> dict[str, str]:
    """Returns the installed versions by name; packages that are not installed are absent."""
    found = {package: _installed(package) for package in ("evenstep", "torch")}
    versions = {package: version for package, version in found.items() if version is not None}
    return {"python": platform.python_version(), **versions}


def _installed(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def check_versions(versions: Mapping[str, str], python: tuple[int, int] = sys.version_info[:2]) -> Check:
    """Checks that Python and torch are new enough."""
    found = ", ".join(f"{name} {version}" for name, version in versions.items())
    if python < PYTHON_MIN:
        return Check("versions", "failed", found, f"evenstep needs Python {_dotted(PYTHON_MIN)} or newer")
    torch = versions.get("torch")
    if torch is None:
        return Check("versions", "failed", f"{found}, but torch is not installed", "pip install torch")
    if major_minor(torch) < TORCH_MIN:
        return Check("versions", "failed", found, f"evenstep needs torch {_dotted(TORCH_MIN)} or newer")
    return Check("versions", "ok", found)


def check_devices() -> Check:
    """Checks the devices that torch can use."""
    try:
        import torch  # noqa: PLC0415  # The command must start without torch to report that it is missing.
    except ImportError as error:
        return Check("devices", "failed", f"torch cannot be imported: {error}", "reinstall torch")
    if not torch.cuda.is_available():
        return Check("devices", "ok", "no CUDA device: training runs on the CPU")
    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return Check("devices", "ok", f"{len(names)} CUDA: {', '.join(names)}")


def major_minor(version: str) -> tuple[int, int]:
    """Returns the first two numbers of a version such as `2.8.0+cpu`; missing ones are 0."""
    parts = version.split(".")[:2]
    numbers = [int(part) if part.isdigit() else 0 for part in parts]
    return (numbers[0], numbers[1] if len(numbers) > 1 else 0)


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))
