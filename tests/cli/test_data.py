"""`sntg data fetch`, and the rows of `sntg datasets`."""

from pathlib import Path

import pytest
from image_fixtures import small, write_set
from typer.testing import CliRunner

from sntg.cli import data as module
from sntg.cli.data import data_app, dataset_rows
from sntg.data import CATALOGUE
from sntg.data.image_sets import IMAGE_SETS
from sntg.errors import UsageError


@pytest.fixture
def fetched(monkeypatch):
    """Stands for the download, and remembers what was to be fetched and whereto."""
    calls = []

    def remember(images, folder):
        calls.append((images.name, folder))
        return folder / images.folders[0]

    monkeypatch.setattr(module, "fetch", remember)
    return calls


def run(*arguments):
    return CliRunner().invoke(data_app, list(map(str, arguments)))


# --- sntg data fetch -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "counts"), [("mnist", "60000 + 10000"), ("svhn", "73257 + 26032")])
def test_it_fetches_into_the_folder_and_says_what_and_where(name, counts, fetched, tmp_path):
    done = run("fetch", name, "--data", tmp_path)
    assert done.exit_code == 0, done.output
    assert fetched == [(name, tmp_path)]
    assert done.output == f"{name}: {counts} images in {tmp_path / IMAGE_SETS[name].folders[0]}\n"


def test_the_folder_is_the_environments_where_none_is_named(fetched, tmp_path, monkeypatch):
    monkeypatch.setenv("SNTG_DATA", str(tmp_path))
    run("fetch", "cifar10")
    assert fetched == [("cifar10", tmp_path)]


def test_an_unknown_name_is_answered_with_the_nearest(fetched):
    done = run("fetch", "cifar-10")
    assert isinstance(done.exception, UsageError)
    assert str(done.exception).startswith("unknown dataset 'cifar-10': did you mean 'cifar10'")
    assert fetched == []


def test_what_is_built_in_need_not_be_fetched(fetched):
    done = run("fetch", "digits")
    assert (done.exit_code, done.output) == (0, "digits is built in: there is nothing to fetch\n")
    assert fetched == []


# --- the rows --------------------------------------------------------------------------------------------------------


def rows(folder: Path) -> dict[object, dict[str, object]]:
    return {row["dataset"]: row for row in dataset_rows(folder)}


def test_every_dataset_has_one_row_of_equal_keys(tmp_path):
    names = [row["dataset"] for row in dataset_rows(tmp_path)]
    assert set(names) == {*CATALOGUE, *IMAGE_SETS}
    assert len(names) == len(set(names))
    keys = ["dataset", "training", "test", "classes", "on disk", "size on disk", "where", "what"]
    assert all(list(row) == keys for row in dataset_rows(tmp_path))


def test_sizes_and_words(tmp_path):
    assert [rows(tmp_path)["cifar100"][key] for key in ("training", "test", "classes")] == [50000, 10000, 100]
    assert [rows(tmp_path)["digits"][key] for key in ("training", "test", "classes")] == [1198, 599, 10]
    assert all(row["what"] for row in dataset_rows(tmp_path))


def test_built_in(tmp_path):
    assert [rows(tmp_path)["digits"][key] for key in ("on disk", "size on disk", "where")] == ["built in", "", ""]


def test_not_there(tmp_path):
    row = rows(tmp_path)["svhn"]
    assert (row["on disk"], row["size on disk"]) == ("no", "")
    assert row["where"] == f"looked in {tmp_path} for svhn, SVHN, ."


def test_there_and_partly_there(tmp_path):
    write_set(small(IMAGE_SETS["cifar10"]), tmp_path / "cifar10")
    row = rows(tmp_path)["cifar10"]
    assert (row["on disk"], row["where"]) == ("yes", str(tmp_path / "cifar10"))
    (tmp_path / "cifar10/test_batch.bin").unlink()
    assert rows(tmp_path)["cifar10"]["on disk"] == "partly"


def test_the_size_is_told_in_megabytes(tmp_path):
    (tmp_path / "svhn").mkdir()
    (tmp_path / "svhn/train_32x32.mat").write_bytes(bytes(1_540_000))
    (tmp_path / "svhn/test_32x32.mat").write_bytes(bytes(1_000_000))
    assert rows(tmp_path)["svhn"]["size on disk"] == "2.5 MB"


def test_the_pickled_version_alone_is_not_there_and_says_why(tmp_path):
    (tmp_path / "cifar-10-batches-py").mkdir()
    row = rows(tmp_path)["cifar10"]
    assert row["on disk"] == "no"
    assert row["where"] == f"{tmp_path / 'cifar-10-batches-py'} is pickle, which is never loaded"


def test_the_real_sets_are_found(real_data):
    found = {name: row["on disk"] for name, row in rows(real_data).items() if name in ("mnist", "cifar10", "svhn")}
    if set(found.values()) != {"yes"}:
        pytest.skip(f"not all of mnist, cifar10 and svhn are in {real_data}")
    assert all(Path(str(rows(real_data)[name]["where"])).is_dir() for name in found)
