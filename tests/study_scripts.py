"""Scripts of `studies/` as modules: they are in no package, and tests use their functions."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

STUDIES = Path(__file__).parents[1] / "studies"


def load_study(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, STUDIES / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(STUDIES))  # as for a script: one may import another
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(STUDIES))
    return module
