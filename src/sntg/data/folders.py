"""Where datasets are looked for, and where what was computed from them is kept."""

import os
from pathlib import Path

from sntg.errors import UsageError


def data_folder(explicit: str | Path = "") -> Path:
    """The folder with the datasets: the one named, else $SNTG_DATA, else the platform's cache folder.

    >>> data_folder("pictures").name
    'pictures'
    """
    named = str(explicit) if explicit else os.environ.get("SNTG_DATA", "")
    return _expanded(named) if named else _platform_cache("--data or SNTG_DATA") / "data"


def cache_folder() -> Path:
    """The folder for whitening matrices, which take minutes to compute: $SNTG_CACHE, else the platform's cache folder.

    >>> isinstance(cache_folder(), Path)
    True
    """
    named = os.environ.get("SNTG_CACHE", "")
    return _expanded(named) if named else _platform_cache("SNTG_CACHE") / "whitening"


def _expanded(named: str) -> Path:
    try:
        return Path(named).expanduser()
    except RuntimeError:
        raise UsageError(f"the folder {named!r} begins with a home folder that is not known: name it in full") from None


def _platform_cache(instead: str) -> Path:
    try:
        found = _users_cache()
    except RuntimeError:
        found = Path()
    if not found.is_absolute():  # some versions of platformdirs leave a home folder that is not known as ~
        raise UsageError(f"this user's home folder is not known: name a folder by {instead}")
    return found


def _users_cache() -> Path:
    try:
        import platformdirs  # only here: whoever names a folder does not need it
    except ModuleNotFoundError:  # run from the source where nothing can be installed
        return Path.home() / ".cache" / "sntg"
    return Path(platformdirs.user_cache_dir("sntg"))
