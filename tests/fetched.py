"""What a fetch leaves in a folder, and what one that fails says."""

from pathlib import Path

import pytest

from sntg.data.fetch import fetch
from sntg.data.image_sets import ImageSet
from sntg.errors import UsageError

SOON = 0.3  # seconds until a mirror counts as dead


def files(folder: Path) -> list[str]:
    """All files under a folder but the lock."""
    found = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock")
    return sorted(str(path.relative_to(folder)) for path in found)


def expected_files(images: ImageSet) -> list[str]:
    return sorted(f"{images.folders[0]}/{file}" for file in images.files)


def refusal(images: ImageSet, folder: Path, timeout: float = SOON) -> str:
    with pytest.raises(UsageError) as refused:
        fetch(images, folder, timeout)
    assert "\n" not in str(refused.value)
    return str(refused.value)
