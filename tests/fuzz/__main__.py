"""`python -m tests.fuzz NAME... --seconds N`: see README.md beside this file."""

import sys

from tests.fuzz.driver import main

sys.exit(main())
