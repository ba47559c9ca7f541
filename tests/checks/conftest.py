"""Checks of the tree and of the tests' own tools, which need no build: `./test checks`."""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
