"""The methods and the grammar of their names. A new method is a file here and a line in METHODS."""

from dataclasses import dataclass

from sntg.errors import UsageError, unknown
from sntg.methods.base import Batch, Method, Passes, Setup
from sntg.methods.mean_teacher import MeanTeacher
from sntg.methods.objective import GraphTerm, Objective, Seen
from sntg.methods.pi import Pi
from sntg.methods.supervised import Supervised
from sntg.methods.temporal_ensembling import TemporalEnsembling
from sntg.methods.vat import VAT

__all__ = ["METHODS", "Batch", "GraphTerm", "Method", "MethodName", "Objective", "Passes", "Seen", "Setup"]
__all__ += ["all_names", "parse"]

METHODS: dict[str, type[Method]] = {m.name: m for m in (Supervised, Pi, TemporalEnsembling, MeanTeacher, VAT)}


@dataclass(frozen=True)
class MethodName:
    """A parsed name: the base method and what is added to it."""

    base: str
    ent: bool = False
    sntg: bool = False

    def __str__(self) -> str:
        if self == MethodName("supervised", sntg=True):
            return "sntg"  # the paper's ablation L_S + R_S
        return self.base + "+ent" * self.ent + "+sntg" * self.sntg


def parse(name: str) -> MethodName:
    """Reads `base[+ent][+sntg]`; `sntg` alone is the ablation L_S + R_S.

    >>> parse("vat+ent+sntg")
    MethodName(base='vat', ent=True, sntg=True)
    >>> str(parse("sntg"))
    'sntg'
    """
    if not isinstance(name, str):
        raise unknown("method", str(name), all_names())
    base, *added = name.strip().lower().split("+")
    if base == "sntg":
        base, added = "supervised", ["sntg", *added]
    if base not in METHODS or not set(added) <= {"ent", "sntg"}:
        raise unknown("method", name, all_names())
    if len(added) != len(set(added)):
        raise UsageError(f"method {name!r} adds the same term twice: write each of +ent and +sntg once")
    return MethodName(base, "ent" in added, "sntg" in added)


def all_names() -> list[str]:
    """Every name there is, in the order of the table.

    >>> all_names()[:4]
    ['supervised', 'supervised+ent', 'sntg', 'supervised+ent+sntg']
    """
    return [str(MethodName(base, ent, sntg)) for base in METHODS for sntg in (False, True) for ent in (False, True)]
