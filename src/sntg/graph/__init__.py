"""Teacher graphs, pair sampling, and the SNTG loss on them."""

from sntg.graph.graphs import GRAPHS, FixedGraph, Graph, HardGraph, KNNGraph, Nodes, SoftGraph, hard_target
from sntg.graph.loss import SNTGLoss, sntg_loss
from sntg.graph.pairs import PAIR_MODES, Pairs, check_pairs, sample_pairs

__all__ = ["GRAPHS", "PAIR_MODES", "FixedGraph", "Graph", "HardGraph", "KNNGraph", "Nodes", "Pairs", "SNTGLoss"]
__all__ += ["SoftGraph", "check_pairs", "hard_target", "sample_pairs", "sntg_loss"]
