"""`python -m kvreplay`."""

import sys

from kvreplay.program import main

sys.exit(main())
