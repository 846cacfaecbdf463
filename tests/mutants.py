"""Do the tests notice? Each mutant below breaks one sign, constant or detach of the package; a test must then fail.

Run as `python tests/mutants.py` (part of `make test-all`). The mutants are made in copies of src and tests in a
temporary folder, never in the working tree; only the tests named beside them are run. Exits with 1 if a mutant
survives or its text is no longer in the source exactly once, or if the tests already fail without it.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).resolve().parents[1]
WORKERS = 2  # each with a copy of its own
TESTS_FAILED = 1  # pytest's exit status; the higher ones mean that it could not run them, which catches nothing

# (file under src/sntg, tests expected to notice): [(text in the file, what replaces it), ...]
MUTANTS: dict[tuple[str, str], list[tuple[str, str]]] = {
    ("losses.py", "test_losses.py"): [
        ("-(chosen * (labels >= 0))", "(chosen * (labels >= 0))"),  # the cross-entropy's sign
        ("(labels >= 0)).mean(-1)", "(labels >= 0)).sum(-1) / (labels >= 0).sum(-1)"),  # over all rows, not these
        ("log_target - F.log", "log_target + F.log"),
        ("divergence * known)", "divergence)"),
        ("-(log_p.exp() * log_p)", "(log_p.exp() * log_p)"),  # the entropy's sign
    ],
    ("losses.py", "methods/test_pi.py"): [("- target).square()", "- target.detach()).square()")],
    ("graph/loss.py", "graph/test_loss.py"): [
        ("pull = W * squared", "pull = (1 - W) * squared"),
        (".clamp(min=0).square()", ".square()"),  # beyond the margin nothing pushes
        (":]).square().mean(-1)", ":]).square().sum(-1)"),  # the distance is averaged over the features
        ("torch.where(zero, 1.0, squared).sqrt()", "squared.sqrt()"),  # NaN gradient at zero distance
        ("else teacher.detach()", "else teacher"),  # no gradient into the teacher, whatever the graph
    ],
    ("graph/checks.py", "graph/test_refusals.py"): [
        ("labels.dtype not in WHOLE", "labels.is_floating_point()"),
        ("low < 0 or high >= n_points", "high > n_points"),  # a row that does not exist
    ],
    ("graph/graphs.py", "graph/test_graphs.py"): [
        ("(a - b) * (log_a - log_b)", "a * (log_a - log_b)"),  # both directions of the divergence
        ("-divergence / self.temperature", "-divergence"),
        (".clamp(min=torch.finfo(torch.float32).tiny)", ""),  # 0 log 0 = 0
        ("else p.detach().float()", "else p.float()"),  # the soft graph is a constant to the student
        ("torch.where(labels >= 0, certain, p)", "p"),  # a label is a certain teacher
        ("self._lists(a, b) | self", "self._lists(a, b) & self"),  # either end's list is enough
    ],
    ("graph/pairs.py", "graph/test_pairs.py"): [
        ("slice(n // 2, 2 * (n // 2))", "slice(1, n // 2 + 1)"),
        ("other + (other >= i)", "other + (other > i)"),  # a row paired with itself
    ],
    ("adversarial.py", "test_adversarial.py"): [
        ("torch.where(largest > 0, largest + 1e-12, 1.0)", "(largest + 1e-12)"),
        ("clean_logits.detach()", "clean_logits"),
        ("torch.where(likeliest, 0.0, (F.softmax(logits, -1) - p) / xi)", "(F.softmax(logits, -1) - p) / xi"),
        ("torch.where(likeliest, -others.sum(-1, keepdim=True), others)", "others"),  # they sum to zero
        ("tangent - tangent.gather(-1, logits.argmax(-1, keepdim=True))", "tangent"),  # certainty would cancel the rest
        ("pull(v / scale) * scale", "pull(v) * (scale / scale)"),  # float16 loses what is small
        ("pull(v / scale) * scale", "pull(v / scale) * (scale / scale)"),  # r stays short where all is certain
    ],
    ("methods/supervised.py", "methods/test_supervised.py"): [
        ("torch.no_grad(), frozen", "frozen"),
        ("torch.no_grad(), frozen_statistics(self.model)", "torch.no_grad()"),
    ],
    ("methods/base.py", "methods/test_base.py"): [
        ("share = 1 - ema", "share = ema"),  # which way it moves
        (".requires_grad_(False)", ""),
        ("torch._foreach_copy_(list(self.average.buffers()), list(self.model.buffers()))", "pass"),
        ("self.augment(self.flip(x))", "self.augment(x)"),
        ("        self.average.load_state_dict(average)", "        pass"),
    ],
    ("methods/pi.py", "methods/test_pi.py"): [
        ("F.softmax(logits_b, -1)", "F.softmax(logits_b.detach(), -1)"),  # Pi's gradient flows through both branches
        ("x = self.flip(batch.x)", "x = batch.x"),
        ("self.augment(x), self.augment(x)", "self.view(batch.x), self.view(batch.x)"),  # the branches share the flip
        ("target, batch.unlabelled)", "target, None)"),
    ],
    ("methods/temporal_ensembling.py", "methods/test_temporal_ensembling.py"): [
        ("else self.labelled_batch", "else 0"),  # of a row drawn twice, whichever is written last
        ("1 - self.alpha**visits", "1 - self.alpha ** (visits + 1)"),
        ("self.alpha * self.Z + (1 - self.alpha) * self.z", "(1 - self.alpha) * self.Z + self.alpha * self.z"),
        ("self.visits += self.seen", "self.visits += 1"),  # a row's own visits
        ("first:, :].detach(), -1)", "first:, :], -1)"),
        ("known & unlabelled", "known"),
    ],
    ("methods/temporal_ensembling.py", "methods/test_base.py"): [
        ('STORE = ("Z", "z", "seen", "visits")', 'STORE = ("Z", "z", "seen")'),
        ('STORE = ("Z", "z", "seen", "visits")', 'STORE = ("Z", "seen", "visits")'),  # an epoch may be saved half-way
    ],
    ("methods/mean_teacher.py", "methods/test_mean_teacher.py"): [
        ("self.average(self.view", "self.model(self.view"),
        ("self.average(self.view(batch.x))", "self.average.eval()(self.view(batch.x))"),
        ("target, batch.unlabelled)", "target, None)"),
        ("self.average(self.view(batch.x))", "self.average(self.augment(batch.x))"),
    ],
    ("methods/mean_teacher.py", "methods/test_base.py"): [
        ("        return self.average", "        return super().averaged()"),  # the teacher's own running means
    ],
    ("methods/vat.py", "methods/test_vat.py"): [
        ("self.epsilon * direction", "direction"),
        ("        with shared_noise(self.model):", "        if True:"),
        ("            with frozen_statistics(self.model):", "            if True:"),
        ("        with two_batches(self.model, n):", "        if True:"),  # the labelled rows' statistics are their own
        ("clean.logits.detach()", "clean.logits"),  # no gradient through the clean pass
        ('clean if self.graph_features == "clean" else ', ""),  # whose features the graph term takes
        ('clean if self.graph_features == "clean" else Output(clean.logits, moved.features)', "clean"),
        ("Output(clean.logits, moved.features)", "moved"),  # the entropy stays the clean pass's
    ],
    ("methods/objective.py", "methods/test_objective.py methods/test_temporal_ensembling.py"): [
        ("entropy(passes.student.logits)", "entropy(passes.student.logits.detach())"),
        ("passes.student.features", "passes.student.features.detach()"),
    ],
    ("training/schedules.py", "training/test_schedules.py"): [
        ("math.exp(-12.5", "math.exp(12.5"),
        ("down * 0.9 + (1.0 - down) * 0.5", "down * 0.5 + (1.0 - down) * 0.9"),
        ("self.ramp_up and epoch < 1", "self.ramp_up and epoch < 0"),  # the first epoch has no weight
        ("self.w_max * self.label_factor *", "self.w_max *"),
        ("w * self.k * self.graph", "self.k * self.graph"),
        ("(epochs - epoch) / length)", "(epochs - epoch) / epochs)"),  # VAT's decay is in the last epochs only
        ("0.9 if epoch < self.epochs - self.ramp_down else 0.5", "0.9"),  # and beta1 jumps when it starts
        ("if epoch < self.early_epochs", "if epoch <= self.early_epochs"),
    ],
    ("training/batches.py", "training/test_batches.py"): [
        ("torch.full_like(rest.labels, -1)", "rest.labels"),  # Mean Teacher's 99 come without labels
        (">= labelled_batch\n", "> labelled_batch\n"),
        ("self.place += self.n", "pass"),
        ("stream.place.fill_(stream.taken)", "pass"),
    ],
    ("training/loop.py", "training/test_loop.py"): [
        ("        vars(self).clear()\n", ""),  # a run's memory would wait for Python to look for circles
        ("                with other_draws(runs.device):\n    ", ""),  # a callback's draws would change the run
        ("self.batches.load_state(before)", "before"),  # an epoch is one shuffle
    ],
    ("training/adam.py", "training/test_adam.py"): [
        ("_share(1 - beta1, self.m)", "_share(beta1, self.m)"),
        ("(1 - beta1**t)", "(1 - 0.9**t)"),  # the current beta1, while it ramps down
        ("self.gradient.zero_()", "pass"),  # a parameter without a gradient has not the last step's
        ("in found])\n        for parameter in self.parameters:\n            parameter.grad = None", "in found])"),
        (
            "load_state(state)\n        for parameter in self.parameters:\n            parameter.grad = None",
            "load_state(state)",
        ),
    ],
    ("training/adam.py", "training/test_loss_scale.py"): [
        ("of_m * taken, of_v * taken, rate * taken", "of_m, of_v, rate * taken"),  # momenta that a lost step moves
    ],
    ("figures/embeddings.py", "figures/test_figures.py"): [
        ("if not PERPLEXITY < len", "if not 0 < len"),
        ("off / np.abs(off).max()", "off"),
    ],
    ("training/run.py", "training/test_tensorboard.py"): [
        ("held.enter_context(closing(Board(folder.path, runs.step or None)))", "Board(folder.path, runs.step or None)")
    ],
    ("training/loss_scale.py", "training/test_loss_scale.py"): [
        ("gradient / spread(self.value, run_of)", "gradient"),
        ("values[run_of]", "values[0]"),
        ("finite | (self.value <= 1)", "finite"),  # a run that has diverged would stand still, and not be told
        ("index_add(0, run_of,", "index_add(0, 0 * run_of,"),  # one run's overflow would be another's
        ("self.steady.copy_(steady % STEADY)", "pass"),
        (
            "torch.where(finite, self.steady + 1, 0)",
            "self.steady + 1",
        ),  # steps since the last overflow, not the last change
        ("clamp_(1.0, self.start)", "clamp_(1.0)"),
    ],
    ("training/timetable.py", "training/test_timetable.py"): [
        ("first + i + 1)", "i + 1)"),  # the bias correction counts the steps of the run
        ("step / self.steps if", "step // self.steps if"),
        ("self.place.fill_(step % self.steps)", "self.place.zero_()"),  # an epoch may be gone on with half-way
        ("if self.loaded != epoch:", "if self.loaded is None:"),
    ],
    ("training/engines.py", "training/test_compiled.py"): [
        ('if step.device.type == "cpu":', "if False:"),  # random numbers of the compiler's own
    ],
    ("training/run.py", "training/test_resume.py"): [
        ('not in ("", now)', "in ()"),  # other labels than it began with
    ],
    ("training/recipes.py", "training/test_recipes.py"): [
        ('data_folder(settings["data"]).absolute()', 'data_folder(settings["data"])'),  # true in one folder only
    ],
    ("training/run_folder.py", "training/test_run_folder.py"): [
        ("in (inside, *(", "in (*("),  # room for what a run keeps in its folder
        ("path.absolute().relative_to(existing).parts", "()"),  # names too long below folders that are yet to be made
    ],
    ("training/graphs.py", "training/test_graphs.py"): [
        ('return {"classes": term.graph.classes} if term', "return {} if term"),  # the graph it began with
    ],
    ("training/run.py", "training/test_series.py"): [
        ("(real.parent / SERIES).exists()", "False"),  # one seed of a pass would begin anew
    ],
    ("models/patches.py", "models/test_patches.py"): [
        ("permute(0, 4, 5, 1, 2, 3)", "permute(0, 5, 4, 1, 2, 3)"),  # row by row, as the weight is
    ],
    ("bench/report.py", "bench/test_report.py"): [("(row.warm_up_s or 0.0) + ", "")],  # a start counts
    ("bench/__init__.py", "bench/test_bench.py"): [
        ("if results.rows and code != FAILED:", "if False:"),  # figures that Ctrl-C kept from being written
    ],
    ("bench/__init__.py", "bench/test_resuming.py"): [
        ("if not measured.issuperset(group)", ""),  # what is missing is measured
        ("measured.difference(*groups)", "()"),  # figures of what it does not measure
        ('path.with_suffix(".png").exists() or', "True or"),  # or the plot that is missing drawn
    ],
    ("training/leftovers.py", "training/test_leftovers.py"): [
        ("since <= file.stat()", "0 <= file.stat()"),  # what was whole before
        (".st_mtime_ns < until", ".st_mtime_ns < inf"),  # what may be of one that still compiles
        ("for mark in gone if until == inf", "for mark in gone"),  # who comes next has to know
        ("        mark.unlink()", "        pass"),  # done
        ("            await_others(marks)\n", ""),  # half a library would be loaded
        ("with FileLock(_lock(marks)):", "if True:"),  # who begins at the same time would be swept away
        ("sweep(marks, {Path(cache_dir()), Path(default_cache_dir())})", "sweep(marks, {Path(cache_dir())})"),
    ],
    ("training/engines.py", "training/test_engines.py"): [
        (" or lines  # in which, not why", " and lines  # in which, not why"),
        ("    undo()\n    return start_engine", "    return start_engine"),
        ("        undo()\n        return name, run", "        return name, run"),
        (" and beside_others.get()", " and False"),  # a seed that waits for memory would be slow for good
        ('"TORCHDYNAMO_DISABLE") == "1"', '"TORCHDYNAMO_DISABLE") == ""'),  # compiled in name alone
        ("torch._dynamo.config.disable or ", ""),
        ("    stop_if_asked()\n", ""),  # a compiler killed by Ctrl-C would make the run eager for good
    ],
    ("training/automatic.py", "training/test_automatic.py"): [
        ('"float32" if by_differences else', "0 or"),  # a direction by differences that 16 bits lose
        ("and steps >= LONG", ""),  # a short run would be over before it is compiled
    ],
    ("training/arithmetic.py", "training/test_arithmetic.py"): [
        ("        cudnn.allow_tf32 = tf32_convolutions\n", ""),  # old and new would contradict each other
        ("            place.fp32_precision = precision\n", "            pass\n"),  # nobody would put them back
        ("_set((BACKENDS, cudnn), UNSAID)", "[]"),  # products would no more follow what is said in general
        ("cudnn.deterministic, cudnn.benchmark = True, False", "cudnn.deterministic = True"),
        ("memory.fill_uninitialized_memory = False\n", "pass\n"),  # every tensor would be written twice
    ],
    ("models/modes.py", "training/test_evaluation.py"): [("PASS_BYTES * channels", "PASS_BYTES * COLOURS")],
    ("training/randomness.py", "training/test_randomness.py"): [
        ('        full_float32(tf32_convolutions=config.precision == "tf32"),\n', ""),  # the caller's would hold
        ('if config.pairs != "half"', "if False"),  # threads would add up as they come
        ("_apart(config.seed)", "config.seed"),  # the first noise would be the weights
        ('    with other_draws(torch.device("cpu")):\n', "    if True:\n"),  # the run would draw what the weights left
        ("threading.RLock()", "threading.Lock()"),  # no series could have a run
        ("os.getpid()", "0"),  # a forked process would wait for a thread it does not have
        (
            "torch.default_generator.manual_seed(_apart",
            "torch.manual_seed(_apart",
        ),  # other GPUs would go on with our numbers
    ],
    ("training/loop.py", "training/test_randomness.py"): [
        ("with initial_weights(config.seed):", "with own_randomness(config):"),
    ],
    ("training/loop.py", "training/test_engines.py"): [
        ('if name == "eager":', "if False:"),  # the kernels may be what failed
    ],
    ("training/loop.py", "training/test_within_an_epoch.py"): [
        ("self.log.steps += 1", "self.log.steps += 1; self.log.diverged()"),  # the device is asked once an epoch
        ("        self._run()\n", "        self._run()\n        self.log.losses.cpu()\n"),  # nor is it copied from
    ],
    ("training/loop.py", "training/test_series.py"): [
        ("self.log.diverged() | self.diverged", "self.log.diverged()"),  # the first reason is the one
        ("if not self.living:", "if self.diverged:"),  # the others may do better
    ],
    ("training/timetable.py", "training/test_compiled.py"): [
        ("self.place.add_(1)", "self.place.add_(0)"),
    ],
    ("training/lanes.py", "training/test_lanes.py"): [
        ("        torch.set_rng_state(self.on_host)", "        pass"),  # everybody's numbers
        ("self.on_gpu = self.generator.graphsafe_get_state()", "pass"),  # a recording that failed put another there
        ("self.generator.clone_state()", "self.generator.graphsafe_get_state()"),  # all lanes with one state
        ("                steps.close()", "                pass"),  # folders stay locked
        ("        gc.collect()", "        pass"),  # every run's data would stay
        ("if stopped or not waiting", "if not waiting"),
        ("beside_others.set(len(training) > 1)", "pass"),
    ],
    ("models/launch.py", "models/test_launch.py"): [("compiling().submit(", "str(")],
    ("models/slices.py", "models/test_launch.py"): [
        ("isinstance(size, torch.SymInt)", "False"),  # what a compiler leaves open would be known after
    ],
    ("training/stopping.py", "training/test_stopping.py"): [
        ("if others := _asked.get():", "if others := None:"),  # one of several runs would hear what all are asked
    ],
    ("training/series.py", "training/test_series.py"): [
        ("partial(_with_same_split, load, series)", "load"),  # a split file may have changed since
        ("check_graph(configs)  #", "#"),  # a graph that later seeds cannot have
        ("        _check_copy(configs, home, load)\n", ""),  # the copy of it, too
        ("replace(config, split_file=copy)", "replace(read_config(_folder(series, config).path), split_file=copy)"),
        (".split_hash:  # earlier", '.split_hash or "none":  # earlier'),
    ],
    ("training/evaluation.py", "training/test_evaluation.py"): [("part.to(device)", "part")],
    ("training/series.py", "training/test_series_in_turns.py"): [
        ("own_randomness(configs[0]), stop", "stop"),  # who ends first takes the others' kernels along
    ],
    ("training/metrics.py", "training/test_metrics.py"): [
        ("sums.zero_()", "pass"),
        ("opinions.sum(-1)", "opinions.numel()"),
    ],
    ("models/layers.py", "models/test_layers.py"): [
        ("1 - self.bn_momentum", "self.bn_momentum"),
        ("            self.track(self.running_mean, mean.detach())", "            self.track(self.running_mean, mean)"),
        ("views[..., -1, :]", "views[..., 0, :]"),  # branch b is the last view
        ("self.batch_mean((y - mean.detach()).square())", "self.batch_mean(y.square())"),
        ("self.batch_mean((y - mean.detach()).square())", "y.var(self.batch_axes, keepdim=True)"),  # over n, not n - 1
        ("dtype=torch.promote_types(y.dtype, torch.float32)", "dtype=y.dtype"),  # a 16-bit mean loses what varies
        ("self.track(self.running_var, variance.detach())", "self.track(self.running_var, variance.detach().sqrt())"),
        ("BN_EPS = 1e-6", "BN_EPS = 1e-5"),
        ("/ (variance + BN_EPS).sqrt()", "/ (variance.sqrt() + BN_EPS)"),
        ("self.g.div_(deviation", "self.g.mul_(deviation"),
    ],
    ("models/convnet.py", "models/test_convnet.py models/test_conv13.py"): [
        ('"batch": (BatchNormConv, AffineDense)', '"batch": (BatchNormConv, BatchNormDense)'),
        ('"mean-only": (Conv, Dense)', '"mean-only": (Conv, AffineDense)'),
        ("x.mean((-2, -1), dtype=torch.promote_types(x.dtype, torch.float32))", "x.amax((-2, -1))"),
        ("last.pooled(x, dropout, sums, trace)", "last.pooled(x, Dropout(0.0), sums, trace)"),
    ],
    ("models/means.py", "models/test_means.py"): [
        ("output < self.outputs(length)", "output <= self.outputs(length)"),
        ("(output >= 0) & ", ""),
        ("x.sum(1, dtype=torch.float32)", "x.sum(1)"),  # 16 bits would lose most images
    ],
    ("models/convolutions.py", "models/test_shifted.py"): [
        ("self.track(self.running_mean, mean)", "pass"),
        ("not self.first_rows and ", ""),  # two batches have two means
    ],
    ("models/flat.py", "models/test_flat.py"): [
        ("part.storage_offset() == place and ", ""),
        ("same and ", ""),
        (" and part.is_contiguous()", ""),
    ],
    ("models/precision.py", "models/test_precision.py"): [
        ("module.dtype = PRECISIONS[precision]", "pass"),
        ('precision != "float32"', "False"),
    ],
    ("models/conv13.py", "models/test_conv13.py"): [
        ('(512, 3, "valid")', '(512, 3, "same")'),
    ],
    ("models/noise.py", "models/test_modes.py"): [
        (
            "if self.first_rows and self.shared",
            "if False and self.shared",
        ),  # the first of two batches has the shared noise
        ("x.shape[:rows].numel() == 1", "False"),  # else the mask is laid out in another way
    ],
    ("models/layers.py", "models/test_linearised.py"): [
        ("scale * (t - self.batch_mean(t) - unit", "scale * (t - unit"),
        (" - unit * self.batch_mean(unit * t)", ""),  # the variance moves, too
        ("self.linear_map(rest(u), weight.mT)", "self.linear_map(u, weight.mT)"),
    ],
    ("models/linearised.py", "models/test_linearised.py"): [("in reversed(maps)", "in maps")],
    ("models/layers.py", "models/test_modes.py"): [
        ("self._mean(part).repeat", "self._mean(y).repeat"),  # two batches in a pass have two means
    ],
    ("models/modes.py", "models/test_modes.py"): [
        ("done / (done + len(chunk))", "done / (done + len(chunk) + 1)"),
        ("model.train(was_training)", "model.eval()"),
        ('"initialising", True), frozen_statistics(model):', '"initialising", True):'),
    ],
    ("data/augmentation.py", "data/test_augmentation.py"): [
        ("x.flip(-1)", "x.flip(-2)"),  # left to right
        ("torch.rand(*x.shape[:-3], 1, 1, 1", "torch.rand(*x.shape[:-4], 1, 1, 1, 1"),  # one coin for a whole batch
        ('"zero": "constant"', '"zero": "replicate"'),
        ("torch.randint(0, 2 * pixels + 1", "torch.randint(0, 2 * pixels"),  # every shift there is
        ("pixels : padded.shape[-2] - pixels", "pixels + 1 : padded.shape[-2] - pixels + 1"),
    ],
}


def run(copy: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs Python in a copy, whose sntg comes first on the path: before an installed one, editable or not."""
    # Without bytecode: two versions of a file written within a second would share it.
    env = os.environ | {"PYTHONPATH": str(copy / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run([sys.executable, *arguments], cwd=copy, env=env, capture_output=True, text=True)


def run_tests(copy: Path, tests: str) -> subprocess.CompletedProcess[str]:
    return run(copy, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *(f"tests/{t}" for t in tests.split()))


def verdict(copy: Path, file: str, tests: str, old: str, new: str) -> str:
    """What became of one mutant; the copy is as before afterwards."""
    path = copy / "src" / "sntg" / file
    source = path.read_text()
    if source.count(old) != 1:
        return f"DOES NOT APPLY (its text is there {source.count(old)} times)"
    path.write_text(source.replace(old, new))
    status = run_tests(copy, tests).returncode
    path.write_text(source)
    return {0: "SURVIVED", TESTS_FAILED: "caught"}.get(status, f"PYTEST COULD NOT RUN (status {status})")


def make_copy(folder: Path) -> Path:
    for name in ("src", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    where = run(folder, "-c", "import sntg; print(sntg.__file__)").stdout.strip()
    if not Path(where).is_relative_to(folder):
        sys.exit(f"the tests would run on {where or 'no sntg at all'}, not on the copy in {folder}")
    return folder


def main() -> int:
    started = time.monotonic()
    mutants = [(file, tests, *change) for (file, tests), changes in MUTANTS.items() for change in changes]
    with tempfile.TemporaryDirectory(prefix="sntg-mutants-") as temporary, ThreadPoolExecutor(WORKERS) as pool:
        folder = Path(temporary).resolve()
        copies: SimpleQueue[Path] = SimpleQueue()
        for worker in range(WORKERS):
            copies.put(copy := make_copy(folder / str(worker)))
        clean = run_tests(copy, " ".join(dict.fromkeys(tests for _, tests in MUTANTS)))
        if clean.returncode != 0:
            print(clean.stdout, clean.stderr, "the tests fail without any mutant", sep="\n")
            return 1

        def judge(mutant: tuple[str, str, str, str]) -> str:
            copy = copies.get()
            try:
                return verdict(copy, *mutant)
            finally:
                copies.put(copy)

        caught = 0
        for number, (mutant, word) in enumerate(zip(mutants, pool.map(judge, mutants), strict=True), 1):
            file, _, old, new = mutant
            caught += word == "caught"
            print(f"{number:3}/{len(mutants)} {word}: {file}: {old!r} -> {new!r}", flush=True)
    print(f"{caught} of {len(mutants)} mutants caught in {time.monotonic() - started:.0f} s")
    return 0 if caught == len(mutants) else 1


if __name__ == "__main__":
    sys.exit(main())
