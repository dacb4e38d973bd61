"""`python -m tests.bench`. A new process imports no `__main__` again, so a lane is measured without the benchmark's modules."""

import sys

if __name__ == "__main__":
    from tests.bench.run import main

    sys.exit(main())
