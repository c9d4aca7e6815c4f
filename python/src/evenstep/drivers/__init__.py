"""Drivers: readings of the causes that slow this process, taken at the boundary of an iteration."""

from evenstep.drivers.names import NAMES
from evenstep.drivers.reader import Drivers

__all__ = ["NAMES", "Drivers"]
