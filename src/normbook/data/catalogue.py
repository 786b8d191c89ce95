"""What data sets there are: files, sizes, hashes, addresses, licences.

A new data set is one more :class:`Source` in :data:`SOURCES` and a module with
its ``load()``; looking up, downloading and checking then work for it as they
are, in Python and on the command line.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass


@dataclass(frozen=True)
class Archive:
    """A zip or tar archive of files: only these have a known size and hash."""

    limit: int  # bytes that it may have at most
    folder: str = ""  # where the files are in it, with / at the end
    # What it may be called in a folder of the reader; none where he has to unpack it.
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class DataFile:
    """One file as its authors publish it, never repacked."""

    name: str  # on the mirrors and in a folder of the reader alike
    size: int  # bytes
    sha256: str  # of the content, in hexadecimal
    urls: tuple[str, ...]  # where it can be downloaded, in the order in which to try
    archive: Archive | None = None  # what the addresses hold, if not the file itself

    @property
    def limit(self) -> int:
        """Bytes that may come from an address at most."""
        return self.archive.limit if self.archive else self.size

    def fault(self, content: bytes) -> str:
        """Return how `content`, or a byte too much of it, differs; empty if not."""
        if len(content) > self.size:
            return f"it is larger than the {self.size} bytes it must have"
        if len(content) < self.size:
            return f"it has {len(content)} bytes instead of {self.size}"
        sha256 = hashlib.sha256(content).hexdigest()
        if sha256 != self.sha256:
            return f"its SHA-256 is {sha256} instead of {self.sha256}"
        return ""


@dataclass(frozen=True)
class Source:
    """Where a data set comes from, and on what terms."""

    name: str  # on the command line, and of the folder that holds the files
    title: str  # as the authors write it
    licence: str  # "none stated" where the authors state none
    citation: str  # the publication to cite
    files: tuple[DataFile, ...] = ()  # none where a package that is needed has them
    package: str = ""  # the distribution that contains the data

    @property
    def size(self) -> int:
        """Size of all files together (bytes)."""
        return sum(file.size for file in self.files)


def _files(
    mirrors: tuple[str, ...], manifest: str, archive: Archive | None = None
) -> tuple[DataFile, ...]:
    """Files of a manifest (names, sizes, hashes), in folders or in archives."""
    words = manifest.split()
    rows = zip(words[::3], words[1::3], words[2::3], strict=True)

    def urls(name: str) -> tuple[str, ...]:
        return mirrors if archive else tuple(mirror + name for mirror in mirrors)

    return tuple(
        DataFile(name, int(size), sha256, urls(name), archive)
        for name, size, sha256 in rows
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
        """
        train-images-idx3-ubyte.gz 9912422
        440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609
        train-labels-idx1-ubyte.gz 28881
        3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c
        t10k-images-idx3-ubyte.gz 1648877
        8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6
        t10k-labels-idx1-ubyte.gz 4542
        f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6
        """,
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
        """
        train-images-idx3-ubyte.gz 26421880
        3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84
        train-labels-idx1-ubyte.gz 29515
        a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845
        t10k-images-idx3-ubyte.gz 4422102
        346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073
        t10k-labels-idx1-ubyte.gz 5148
        67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5
        """,
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
        """
        cifar-10-python.tar.gz 170498071
        6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce
        """,
    ),
)

# The authors publish an archive whose hash is not known to us. Those of the two files
# in it are, so each is checked when it has been unpacked.
JAPANESE_VOWELS = Source(
    name="japanese-vowels",
    title="Japanese Vowels",
    licence="CC BY 4.0 (so UCI)",
    citation=(
        "M. Kudo, J. Toyama and M. Shimbo (1999), Multidimensional curve "
        "classification using passing-through regions, Pattern Recognition Letters "
        "20(11-13), 1103-1111; UCI Machine Learning Repository, doi:10.24432/C5NS47"
    ),
    files=_files(
        ("https://archive.ics.uci.edu/static/public/128/japanese+vowels.zip",),
        """
        ae.train 514651
        7ae33b2b678b6c0df7a4137e5b82e127e95d63b2e2d7764e7e4ea3fe1b659935
        ae.test 685540
        7894594714a3186f8961c75535654cdc6bd232d3dd97d7c04c99bfa3013f57a9
        """,
        Archive(limit=5_000_000),
    ),
)

OMNIGLOT_STROKES = Source(
    name="omniglot-strokes",
    title="Omniglot, strokes (background set, small 1 and 2)",
    licence="MIT",
    citation=(
        "B. M. Lake, R. Salakhutdinov and J. B. Tenenbaum (2015), Human-level concept "
        "learning through probabilistic program induction, Science 350(6266), "
        "1332-1338, doi:10.1126/science.aab3050"
    ),
    files=_files(
        (
            "https://github.com/brendenlake/omniglot/raw/"
            "057f034baf2ecb8530bc5710e5a23584d2a519cc/python/",
        ),
        """
        strokes_background_small1.zip 3056274
        8cb3960fb6cf4ccf5f064ad83169f828c36c36782a0f6e7faacb7ecfae4468a2
        strokes_background_small2.zip 4100947
        345bf2141efbea062833dbb2828abbc23d9e07825e46f2afdd4daecddfed6e78
        """,
    ),
)

BABI = Source(
    name="babi",
    title="bAbI tasks v1.2, 10 000 questions for training each",
    licence="CC BY 3.0",
    citation=(
        "J. Weston, A. Bordes, S. Chopra, A. M. Rush, B. van Merrienboer, A. Joulin "
        "and T. Mikolov (2015), Towards AI-complete question answering: a set of "
        "prerequisite toy tasks, arXiv:1502.05698"
    ),
    # Three of the twenty tasks. The folder "en" of the archive has files of the same
    # names with 1 000 questions: the tests are the same, and the questions for training
    # are the first of these. One address: the other that is known offers no https.
    files=_files(
        ("https://s3.amazonaws.com/text-datasets/babi_tasks_1-20_v1-2.tar.gz",),
        """
        qa1_single-supporting-fact_train.txt 944248
        749ea9f7c99070feb2d88c975a254417a0dcc8274add4435ae5ae24c7afc7e9d
        qa1_single-supporting-fact_test.txt 94477
        55acf66cef2f6d798e2aa1d056e1ec8f24e910ea9215b639450574321132959b
        qa2_two-supporting-facts_train.txt 1794716
        d4074c0c5d54f70ce2f538056ce2b6ef6a313da336da4245f1a24f1298e37ef3
        qa2_two-supporting-facts_test.txt 179835
        eff93fb9cd81ba02eb765772cf7cc269769ed44ec71cbbbc19cfb16ee5eba0f6
        qa5_three-arg-relations_train.txt 2122413
        2506910935b701bac64fc8b1d7ff12bd8d0f47ceefca183454282bec784c12a5
        qa5_three-arg-relations_test.txt 207037
        ec825c1c8a76e63a31f0d7a7763cd63740e98332fa9bdf246a19068949bd5f97
        """,
        Archive(
            limit=20_000_000,
            folder="tasks_1-20_v1-2/en-10k/",
            names=(
                "tasks_1-20_v1-2.tar.gz",
                "babi_tasks_1-20_v1-2.tar.gz",
                "tasks_1-20_v1-2_en.tar.xz",
            ),
        ),
    ),
)

_ALL = (DIGITS, MNIST, FASHION_MNIST, CIFAR_10, JAPANESE_VOWELS, OMNIGLOT_STROKES, BABI)
SOURCES = {source.name: source for source in _ALL}
