"""Smooth Neighbors on Teacher Graphs: semi-supervised learning from a handful of labels (Luo et al., CVPR 2018).

The parts for one's own training loop are `SNTGLoss` and its siblings; `train` runs a whole method on a dataset by
name; `load` gives a trained network back.
"""

from importlib.metadata import PackageNotFoundError, version

from sntg.adversarial import adversarial_direction, lds
from sntg.data import Dataset, Split, balanced_split, flip, load_dataset, make_split, translate, whiten
from sntg.errors import DivergenceError, UsageError
from sntg.graph import (
    FixedGraph,
    Graph,
    HardGraph,
    KNNGraph,
    Nodes,
    Pairs,
    SNTGLoss,
    SoftGraph,
    sample_pairs,
    sntg_loss,
)
from sntg.losses import consistency_kl, consistency_mse, cross_entropy, entropy
from sntg.methods import METHODS, parse
from sntg.methods.mean_teacher import MeanTeacher
from sntg.methods.pi import Pi
from sntg.methods.supervised import Supervised
from sntg.methods.temporal_ensembling import TemporalEnsembling
from sntg.methods.vat import VAT
from sntg.models import MLP, Classifier, Conv13, Output, SmallNet
from sntg.training import (
    Adam,
    Config,
    Inputs,
    Schedule,
    Stopped,
    Trained,
    load,
    load_inputs,
    ramp_down,
    ramp_up,
    recipe,
    resolve,
    resume,
    resume_series,
    run,
    run_series,
    train,
)

try:
    __version__ = version("sntg")
except PackageNotFoundError:  # run from a source tree that was never installed
    __version__ = "0.0.0+source"

__all__ = [
    "METHODS",
    "MLP",
    "VAT",
    "Adam",
    "Classifier",
    "Config",
    "Conv13",
    "Dataset",
    "DivergenceError",
    "FixedGraph",
    "Graph",
    "HardGraph",
    "Inputs",
    "KNNGraph",
    "MeanTeacher",
    "Nodes",
    "Output",
    "Pairs",
    "Pi",
    "SNTGLoss",
    "Schedule",
    "SmallNet",
    "SoftGraph",
    "Split",
    "Stopped",
    "Supervised",
    "TemporalEnsembling",
    "Trained",
    "UsageError",
    "__version__",
    "adversarial_direction",
    "balanced_split",
    "consistency_kl",
    "consistency_mse",
    "cross_entropy",
    "entropy",
    "flip",
    "lds",
    "load",
    "load_dataset",
    "load_inputs",
    "make_split",
    "parse",
    "ramp_down",
    "ramp_up",
    "recipe",
    "resolve",
    "resume",
    "resume_series",
    "run",
    "run_series",
    "sample_pairs",
    "sntg_loss",
    "train",
    "translate",
    "whiten",
]
