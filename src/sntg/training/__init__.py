"""Settings, schedules, the training loop and the run folder."""

from sntg.training.adam import Adam
from sntg.training.config import Config, read_setting
from sntg.training.inputs import Inputs, load_inputs
from sntg.training.loop import Record, Stack, Trained, train
from sntg.training.recipes import recipe, resolve
from sntg.training.run import config_to_resume, resume, run
from sntg.training.run_folder import SERIES, RunFolder, load
from sntg.training.schedules import Schedule, ramp_down, ramp_up
from sntg.training.series import (
    final_errors,
    is_series,
    read_seeds,
    read_series,
    resume_series,
    run_series,
    seeds_done,
)
from sntg.training.stopping import Stopped
from sntg.training.workers import train_all

__all__ = [
    "SERIES",
    "Adam",
    "Config",
    "Inputs",
    "Record",
    "RunFolder",
    "Schedule",
    "Stack",
    "Stopped",
    "Trained",
    "config_to_resume",
    "final_errors",
    "is_series",
    "load",
    "load_inputs",
    "ramp_down",
    "ramp_up",
    "read_seeds",
    "read_series",
    "read_setting",
    "recipe",
    "resolve",
    "resume",
    "resume_series",
    "run",
    "run_series",
    "seeds_done",
    "train",
    "train_all",
]
