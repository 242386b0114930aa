"""Files that version 0.3.0 wrote: version 0.4 must load them."""

from pathlib import Path

HERE = Path(__file__).parent
