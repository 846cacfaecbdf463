"""What PyTorch's compiler needs before it is loaded: a folder to keep its work in, named and made.

Without one it stops half-way through loading, and what asks for it next meets the half, which never loads again. Not
only compiled runs ask: VAT's derivatives load that half.
"""

import getpass
import os
import re
import tempfile

CACHE = "TORCHINDUCTOR_CACHE_DIR"  # PyTorch's variable for it


def name_cache() -> None:
    """Sees to it that the folder has a name, whether it is to be made or not.

    Its default has the user's name in it, and many a container's user has none, with which PyTorch before 2.13 does not
    cope; nor with a variable that is empty, or relative to the current folder.
    """
    named = os.environ.get(CACHE)
    if named == "":
        del os.environ[CACHE]
    elif named and not os.path.isabs(named):
        os.environ[CACHE] = os.path.abspath(named)
    try:
        getpass.getuser()
    except (ImportError, KeyError, OSError):  # the last variable that is asked; 2.13 gives the user the same name
        os.environ["LNAME"] = f"uid_{os.getuid()}" if hasattr(os, "getuid") else "unknown_user"


def make_cache() -> None:
    """Makes the folder, by PyTorch's own rule; OSError where it cannot be."""
    user = re.sub(r'[\\/:*?"<>|]', "_", getpass.getuser())
    os.makedirs(os.environ.get(CACHE) or os.path.join(tempfile.gettempdir(), f"torchinductor_{user}"), exist_ok=True)
