"""The digits of scikit-learn: small, embedded, no download.

Images of handwritten digits, 8 x 8 pixels, made by counting the dark pixels in
4 x 4 blocks of a scan, so that a pixel is a whole number from 0 to 16. They are
the test part of the data set of Alpaydin and Kaynak (1998), as scikit-learn has it.
"""

from __future__ import annotations

import numpy as np

from normbook.data import Dataset, check_size
from normbook.extra import of_the_book

TEST_EXAMPLES = 360  # a fifth of 1 797; 1 437 are left to train on
MAX_PIXEL = 16
MAX_SEED = 2**32 - 1  # of the generator in scikit-learn


def load(seed: int = 0) -> Dataset:
    """Load the digits: images ``(1437, 64)`` and ``(360, 64)``, labels the digit.

    Pixels are float64, row by row, scaled from 0 .. 16 to [0, 1]. The split is
    stratified: each class has the same share of both parts, up to rounding. It is drawn
    by ``sklearn.model_selection.train_test_split`` and depends on nothing but `seed`,
    from 0 to 2**32 - 1.

    Examples
    --------
    Three pixels are 0 in every image:

    >>> x_train, y_train, x_test, y_test = load()
    >>> (x_train[:, [0, 32, 39]] == 0).all()
    np.True_
    """
    check_size("seed", seed, 0, MAX_SEED)
    # Imported here: scikit-learn takes a second, and only this function needs it.
    with of_the_book():
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split

    pixels, labels = load_digits(return_X_y=True)
    x = pixels.astype(np.float64) / MAX_PIXEL  # (1797, 64)
    y = labels.astype(np.int64)  # (1797,)
    x_train, x_test, y_train, y_test = train_test_split(
        x, y, test_size=TEST_EXAMPLES, random_state=int(seed), stratify=y
    )
    return Dataset(x_train, y_train, x_test, y_test)
