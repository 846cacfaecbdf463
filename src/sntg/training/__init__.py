"""Settings, schedules, the training loop and the run folder."""

from sntg.training.config import Config, read_setting
from sntg.training.loop import Record, Trained, train
from sntg.training.recipes import recipe, resolve

__all__ = ["Config", "Record", "Trained", "read_setting", "recipe", "resolve", "train"]
