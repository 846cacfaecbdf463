"""What a run trains on: its dataset, whitened, with the labels its split keeps and the points it holds out."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sntg.data import Dataset, Split, load_dataset, make_split, read_split, whiten
from sntg.errors import UsageError
from sntg.training.config import Config, check_config


@dataclass(frozen=True)
class Inputs:
    """A run's data as the network sees them before augmentation.

    data: the whitened points; where some are held out, they stand in for the test set and are gone from training.
    labels: (N,) what training sees, -1 where hidden. split: the same in the dataset's own row numbers.
    """

    data: Dataset
    labels: Tensor
    split: Split


Whitened = dict[tuple[str, str], Dataset]  # by what they were, the content's hash, and by the kind of whitening


def load_inputs(config: Config, whitened: Whitened | None = None) -> Inputs:
    """Reads or draws a run's data, checks that they are those it was started with, whitens and splits them.

    whitened: what runs before this one have whitened; if it is the same again, they share it.

    >>> from sntg.training import resolve
    >>> inputs = load_inputs(resolve("two-moons", 12, "pi"))
    >>> int((inputs.labels >= 0).sum())
    12
    """
    check_config(config)
    data = load_dataset(config.dataset, config.seed, config.data)
    if config.data_hash not in ("", data.content_hash):
        raise UsageError(
            f"{config.dataset} is not what the run was started with: its content has the hash "
            f"{data.content_hash[:12]}..., not {config.data_hash[:12]}...; put the data, or the settings in the run's "
            "config.json, back as before (a new run on other data has data_hash = '')"
        )
    split = _split(config, data)
    same = data.content_hash, config.whitening
    data = (whitened or {}).get(same) or whiten(data, config.whitening, config.device)
    if whitened is not None and data.content_hash:
        whitened[same] = data
    if not len(split.validation):
        return Inputs(data, split.labels, split)
    stays = torch.ones(len(data.train_y), dtype=torch.bool)
    stays[split.validation] = False
    training = replace(data, train_x=data.train_x[stays], train_y=data.train_y[stays])
    tested = replace(training, test_x=data.train_x[~stays], test_y=data.train_y[~stays])
    return Inputs(tested, split.labels[stays], split)


def _split(config: Config, data: Dataset) -> Split:
    y, classes = data.train_y, data.classes
    if config.split_file:
        return read_split(config.split_file, y, classes, config.seed, config.validation)
    return make_split(y, config.labels, classes, config.seed, config.split, config.label_noise, config.validation)
