"""Files that version 0.2.0 wrote: they must load for ever, so nothing here is ever written again."""

from pathlib import Path

HERE = Path(__file__).parent
