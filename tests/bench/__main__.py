"""`python -m tests.bench`. A new process never imports a `__main__` again, so lanes are measured without the benchmark's modules."""

import sys

if __name__ == "__main__":
    from .run import main

    sys.exit(main())
