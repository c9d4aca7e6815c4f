"""`python -m evenstep`: the command line, also for torchrun."""

import sys

from evenstep.cli import main

if __name__ == "__main__":
    sys.exit(main())
