"""The old name of kvrecord.add_text, for one release."""

import sys

from kvrecord.add_text import main

if __name__ == "__main__":
    sys.exit(main())
