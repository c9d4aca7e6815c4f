"""`evenstep doctor`: whether everything is there that training needs."""

from evenstep.doctor.command import add_arguments

__all__ = ["add_arguments"]
