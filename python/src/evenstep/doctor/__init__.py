"""`evenstep doctor`: checks everything that training needs."""

from evenstep.doctor.command import add_arguments

__all__ = ["add_arguments"]
