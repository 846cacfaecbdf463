"""Where datasets are looked for, and where what was computed from them is kept."""

import os
from pathlib import Path


def data_folder(explicit: str | Path = "") -> Path:
    """The folder with the datasets: the one named, else $SNTG_DATA, else the platform's cache folder.

    >>> data_folder("pictures").name
    'pictures'
    """
    named = str(explicit) if explicit else os.environ.get("SNTG_DATA", "")
    return Path(named).expanduser() if named else _platform_cache() / "data"


def cache_folder() -> Path:
    """The folder for whitening matrices, which take minutes to compute: $SNTG_CACHE, else the platform's cache folder.

    >>> isinstance(cache_folder(), Path)
    True
    """
    named = os.environ.get("SNTG_CACHE", "")
    return Path(named).expanduser() if named else _platform_cache() / "whitening"


def _platform_cache() -> Path:
    try:
        import platformdirs  # only here: whoever names a folder does not need it
    except ModuleNotFoundError:  # run from the source where nothing can be installed
        return Path.home() / ".cache" / "sntg"
    return Path(platformdirs.user_cache_dir("sntg"))
