"""Archives that are fetched: only the needed files come out, and none that is broken or hostile does harm."""

import hashlib
import io
import tarfile
from dataclasses import replace
from pathlib import Path

from fetched import expected_files, files, refusal
from mirrors import Server

from sntg.data.fetch import fetch
from sntg.data.image_sets import ImageSet


def archive(images: ImageSet, server: Server, *members: tuple[str, bytes | str]) -> ImageSet:
    """The set with an archive of these members on the server; a member of type str is a link to that path."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in members:
            member = tarfile.TarInfo(name)
            if isinstance(content, str):
                member.type, member.linkname = tarfile.SYMTYPE, content
                tar.addfile(member)
            else:
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    return packed(images, server, buffer.getvalue())


def packed(images: ImageSet, server: Server, content: bytes) -> ImageSet:
    download = images.downloads[0]
    server.files[download.file] = content
    return replace(images, downloads=(replace(download, sha256=hashlib.sha256(content).hexdigest()),))


def members_of(folder: Path) -> list[tuple[str, bytes | str]]:
    return [(f"cifar-100-binary/{file}", (folder / file).read_bytes()) for file in ("train.bin", "test.bin")]


def test_nothing_but_the_needed_files_comes_out_of_an_archive(offered, server, tmp_path):
    images = offered("cifar100", "good")
    hostile = [("../escaped", b"x"), ("cifar-100-binary/../../escaped", b"x"), (str(tmp_path / "escaped"), b"x")]
    hostile += [("cifar-100-binary/link", "/"), ("cifar-100-binary/link/escaped", b"x"), ("cifar-100-binary/a", b"x")]
    images = archive(images, server, *hostile, *members_of(tmp_path / "served"))
    fetch(images, tmp_path / "data")
    assert files(tmp_path / "data") == expected_files(images)
    assert not (tmp_path / "escaped").exists()


def test_a_link_under_a_needed_name_is_not_followed(offered, server, tmp_path):
    (tmp_path / "secret").write_text("secret")
    images = offered("cifar100", "good")
    _, test = members_of(tmp_path / "served")
    images = archive(images, server, ("cifar-100-binary/train.bin", str(tmp_path / "secret")), test)
    said = refusal(images, tmp_path / "data")
    assert said.startswith(f"{tmp_path / 'data/cifar-100-binary.tar.gz'}: expected an archive with the files ")
    assert "cifar-100-binary/train.bin" in said
    assert not (tmp_path / "data/cifar-100-binary/train.bin").exists()


def test_an_archive_that_is_none(offered, server, tmp_path):
    images = packed(offered("cifar100", "good"), server, b"no archive")
    said = refusal(images, tmp_path / "data")
    assert said.startswith(f"{tmp_path / 'data/cifar-100-binary.tar.gz'}: expected a tar archive, found ")


def test_an_archive_that_breaks_off(offered, server, tmp_path):
    images = offered("cifar100", "good")
    images = packed(images, server, server.files["cifar-100-binary.tar.gz"][:-3000])
    said = refusal(images, tmp_path / "data")
    assert said.startswith(f"{tmp_path / 'data/cifar-100-binary.tar.gz'}: expected ")
    assert not list((tmp_path / "data").rglob("*.part"))


def test_what_was_fetched_is_checked_before_it_is_called_done(offered, server, tmp_path):
    images = offered("cifar100", "good")
    train, _ = members_of(tmp_path / "served")
    images = archive(images, server, train, ("cifar-100-binary/test.bin", b"too short"))
    said = refusal(images, tmp_path / "data")
    assert said.startswith(f"{tmp_path / 'data/cifar-100-binary/test.bin'}: expected ")
