"""Drivers: readings of the causes that slow this process, taken at the boundary of an iteration."""

from evenstep.measure.drivers.names import NAMES
from evenstep.measure.drivers.reader import Drivers

__all__ = ["NAMES", "Drivers"]
