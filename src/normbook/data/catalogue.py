"""What data sets there are: files, sizes, hashes, addresses, licences.

A new data set is one more :class:`Source` in :data:`SOURCES` and a module with
its ``load()``; looking up, downloading and checking then work for it as they
are, in Python and on the command line.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DataFile:
    """One file as its authors publish it, never repacked.

    Attributes
    ----------
    name : str
        Name of the file, on the mirrors and in a folder of the reader alike.
    size : int
        Size (bytes).
    sha256 : str
        SHA-256 of the content, in hexadecimal.
    urls : tuple of str
        Where it can be downloaded, in the order in which to try.
    zip_limit : int
        Where the addresses hold a zip archive with this file in it: the bytes that
        the archive may have at most, since only the file has a known size and hash.
        0 where they hold the file itself.
    """

    name: str
    size: int
    sha256: str
    urls: tuple[str, ...]
    zip_limit: int = 0


@dataclass(frozen=True)
class Source:
    """Where a data set comes from, and on what terms.

    Attributes
    ----------
    name : str
        Name on the command line and of the folder that holds the files.
    title : str
        Name as the authors write it.
    licence : str
        Licence of the data; "none stated" where the authors state none.
    citation : str
        The publication to cite.
    files : tuple of DataFile
        Its files; none where a package that is installed anyway contains them.
    package : str
        The distribution that contains the data, or empty.
    """

    name: str
    title: str
    licence: str
    citation: str
    files: tuple[DataFile, ...] = ()
    package: str = ""

    @property
    def size(self) -> int:
        """Size of all files together (bytes)."""
        return sum(file.size for file in self.files)

    @property
    def folders(self) -> tuple[str, ...]:
        """Names that its folder may have: with ``-`` and with ``_``."""
        return tuple(dict.fromkeys((self.name, self.name.replace("-", "_"))))


def _files(
    mirrors: tuple[str, ...], contents: dict[str, tuple[int, str]]
) -> tuple[DataFile, ...]:
    """Files that have the same names on every mirror."""
    return tuple(
        DataFile(name, size, sha256, tuple(mirror + name for mirror in mirrors))
        for name, (size, sha256) in contents.items()
    )


DIGITS = Source(
    name="digits",
    title="Optical Recognition of Handwritten Digits (test part)",
    licence="CC BY 4.0",
    citation=(
        "E. Alpaydin and C. Kaynak (1998), Optical Recognition of Handwritten "
        "Digits, UCI Machine Learning Repository, doi:10.24432/C50P49"
    ),
    package="scikit-learn",
)

MNIST = Source(
    name="mnist",
    title="MNIST",
    licence="CC BY-SA 3.0",
    citation=(
        "Y. LeCun, L. Bottou, Y. Bengio and P. Haffner (1998), Gradient-based "
        "learning applied to document recognition, Proceedings of the IEEE "
        "86(11), 2278-2324, doi:10.1109/5.726791"
    ),
    files=_files(
        (
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
        ),
        {
            "train-images-idx3-ubyte.gz": (
                9_912_422,
                "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            ),
            "train-labels-idx1-ubyte.gz": (
                28_881,
                "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            ),
            "t10k-images-idx3-ubyte.gz": (
                1_648_877,
                "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            ),
            "t10k-labels-idx1-ubyte.gz": (
                4_542,
                "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
            ),
        },
    ),
)

FASHION_MNIST = Source(
    name="fashion-mnist",
    title="Fashion-MNIST",
    licence="MIT",
    citation=(
        "H. Xiao, K. Rasul and R. Vollgraf (2017), Fashion-MNIST: a novel image "
        "dataset for benchmarking machine learning algorithms, arXiv:1708.07747"
    ),
    files=_files(
        (
            "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
            "https://storage.googleapis.com/tensorflow/tf-keras-datasets/",
        ),
        {
            "train-images-idx3-ubyte.gz": (
                26_421_880,
                "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
            ),
            "train-labels-idx1-ubyte.gz": (
                29_515,
                "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
            ),
            "t10k-images-idx3-ubyte.gz": (
                4_422_102,
                "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
            ),
            "t10k-labels-idx1-ubyte.gz": (
                5_148,
                "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
            ),
        },
    ),
)

CIFAR_10 = Source(
    name="cifar-10",
    title="CIFAR-10",
    licence="none stated",
    citation=(
        "A. Krizhevsky (2009), Learning multiple layers of features from tiny "
        "images, technical report, University of Toronto, "
        "https://www.cs.toronto.edu/~kriz/learning-features-2009-TR.pdf"
    ),
    # One address, where the others have two: the author names no mirror. Who has the
    # file from elsewhere puts it into a folder and names that in NORMBOOK_DATA.
    files=_files(
        ("https://www.cs.toronto.edu/~kriz/",),
        {
            "cifar-10-python.tar.gz": (
                170_498_071,
                "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
            ),
        },
    ),
)

# The authors publish an archive whose hash is not known to us. Those of the two files
# in it are, so each is checked when it has been unpacked. The archive is small, and is
# downloaded once for each of the two.
_VOWELS_URLS = ("https://archive.ics.uci.edu/static/public/128/japanese+vowels.zip",)
_VOWELS_LIMIT = 5_000_000
JAPANESE_VOWELS = Source(
    name="japanese-vowels",
    title="Japanese Vowels",
    licence="CC BY 4.0 (so UCI)",
    citation=(
        "M. Kudo, J. Toyama and M. Shimbo (1999), Multidimensional curve "
        "classification using passing-through regions, Pattern Recognition Letters "
        "20(11-13), 1103-1111; UCI Machine Learning Repository, doi:10.24432/C5NS47"
    ),
    files=(
        DataFile(
            "ae.train",
            514_651,
            "7ae33b2b678b6c0df7a4137e5b82e127e95d63b2e2d7764e7e4ea3fe1b659935",
            _VOWELS_URLS,
            _VOWELS_LIMIT,
        ),
        DataFile(
            "ae.test",
            685_540,
            "7894594714a3186f8961c75535654cdc6bd232d3dd97d7c04c99bfa3013f57a9",
            _VOWELS_URLS,
            _VOWELS_LIMIT,
        ),
    ),
)

SOURCES = {
    source.name: source
    for source in (DIGITS, MNIST, FASHION_MNIST, CIFAR_10, JAPANESE_VOWELS)
}
