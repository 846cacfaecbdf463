"""Settings, schedules, the training loop and the run folder."""

from sntg.training.adam import Adam
from sntg.training.config import Config, read_setting
from sntg.training.loop import Record, Trained, train
from sntg.training.recipes import recipe, resolve
from sntg.training.run import run
from sntg.training.run_folder import RunFolder, load
from sntg.training.schedules import Schedule, ramp_down, ramp_up
from sntg.training.workers import train_all

__all__ = ["Adam", "Config", "Record", "RunFolder", "Schedule", "Trained", "load", "ramp_down", "ramp_up"]
__all__ += ["read_setting", "recipe", "resolve", "run", "train", "train_all"]
