"""Puts the layers' NumPy references, layer_references.py, where the tests of the models can import them."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
