"""Fashion-MNIST: 70 000 pictures of clothes of 28 x 28 pixels.

A drop-in for MNIST that is harder to classify: same files, sizes and counts.

References
----------
H. Xiao, K. Rasul and R. Vollgraf (2017), Fashion-MNIST: a novel image
dataset for benchmarking machine learning algorithms, arXiv:1708.07747.
"""

from __future__ import annotations

from normbook.data import Dataset
from normbook.data.catalogue import FASHION_MNIST
from normbook.data.idx import load_images

# What the labels 0 to 9 mean, in the authors' words.
CLASSES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)


def load(is_scaled: bool = True) -> Dataset:
    """Load Fashion-MNIST from a folder of yours, the cache, or the network.

    Parameters
    ----------
    is_scaled : bool, optional
        Whether pixels are scaled from 0 .. 255 to [0, 1], as float32. Without
        scaling they are uint8, a quarter of the memory.

    Returns
    -------
    Dataset
        `x_train` ``(60000, 28, 28)`` and `x_test` ``(10000, 28, 28)``, 0 is the
        background; `y_train` ``(60000,)`` and `y_test` ``(10000,)``, int64, the
        index into ``CLASSES``. The order is that of the files.

    Raises
    ------
    DataError
        If a file is damaged in the folder named by ``NORMBOOK_DATA``, or is
        nowhere to be had; the message lists each place and the cure. See
        :func:`normbook.data.files.read` for the places.

    Examples
    --------
    >>> from normbook.data import fashion_mnist
    >>> fashion_mnist.CLASSES[9]
    'Ankle boot'
    >>> dataset = fashion_mnist.load()  # doctest: +SKIP
    >>> dataset.x_test.shape, dataset.x_test.dtype  # doctest: +SKIP
    ((10000, 28, 28), dtype('float32'))
    """
    return load_images(FASHION_MNIST, is_scaled)
