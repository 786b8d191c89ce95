"""Japanese Vowels: 640 recordings of several lengths (Kudo et al. 1999).

Nine men say the vowels /ae/. A recording is a sequence of 7 to 29 steps (one each
6.4 ms), and a step 12 numbers (cepstrum coefficients from linear prediction). The
task is to tell who speaks.

The authors publish two files in a zip archive; a folder of yours may hold them as they
are. They are text with a line for each step. Behind the last step of a sequence stands
a line of twelve ones, which is no step. Who speaks is not in the files: the speakers
follow each other, with as many sequences as the authors state.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from normbook.data import files
from normbook.data.catalogue import JAPANESE_VOWELS
from normbook.data.sequences import Sequences

# Behind each sequence; in the file for training one of them is written otherwise.
END = [1.0] * 12
# Sequences of each speaker, in the order of the files.
TRAIN_COUNTS = (30,) * 9
TEST_COUNTS = (31, 35, 88, 44, 29, 24, 40, 50, 29)


def load() -> Sequences:
    """Load Japanese Vowels: 270 and 370 arrays ``(T_i, 12)``, by speaker.

    T_i is 7 to 26 for training, 7 to 29 for testing. Labels are the speaker, 0 to 8.
    """
    train, test = (
        read(files.read(JAPANESE_VOWELS, file)) for file in JAPANESE_VOWELS.files
    )
    return Sequences(train, _labels(TRAIN_COUNTS), test, _labels(TEST_COUNTS))


def read(content: bytes) -> tuple[NDArray[np.float64], ...]:
    r"""Return the sequences, each ``(T_i, 12)``, in a file whose hash has matched.

    Blank lines in it mean nothing.

    Examples
    --------
    >>> step, end = b"2 " * 12 + b"\r\n", b"1.0 " * 12 + b"\r\n"
    >>> [x.shape for x in read(step + step + end + step + end)]
    [(2, 12), (1, 12)]
    """
    sequences: list[NDArray[np.float64]] = []
    steps: list[list[float]] = []
    for line in filter(bytes.strip, content.splitlines()):
        step = [float(word) for word in line.split()]
        if step == END:
            sequences.append(np.array(steps))
            steps = []
        else:
            steps.append(step)
    return tuple(sequences)


def _labels(counts: tuple[int, ...]) -> NDArray[np.int64]:
    return np.repeat(np.arange(len(counts), dtype=np.int64), counts)
