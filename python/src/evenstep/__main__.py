"""Entry point of ``python -m evenstep``, also usable with torchrun."""

import sys

from evenstep.cli import main

if __name__ == "__main__":
    sys.exit(main())
