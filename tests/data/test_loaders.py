"""What holds for each data set that is read from files, with stand-ins for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import stand_ins

from normbook.__main__ import main
from normbook.data.catalogue import SOURCES, Source
from normbook.data.files import DataError
from normbook.lab.provenance import data_hashes
from normbook.lab.runner import LOADERS


@pytest.fixture(params=stand_ins.CONTENTS)
def source(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Source:
    return stand_ins.put(request.param, tmp_path, monkeypatch)


def test_every_data_set_with_files_has_a_stand_in() -> None:
    assert {name for name, s in SOURCES.items() if s.files} == {*stand_ins.CONTENTS}


@pytest.mark.parametrize("place", [0, -1], ids=["first", "last"])
def test_a_file_of_another_hash_is_refused_before_it_is_read(
    place: int, source: Source, tmp_path: Path
) -> None:
    file = source.files[place]
    (tmp_path / file.name).write_bytes(bytes(file.size))  # nothing can parse it
    with pytest.raises(DataError, match=rf"{file.name} must be the .*SHA-256 is .* or"):
        LOADERS[source.name]()


def test_a_file_that_is_nowhere_is_an_error_that_names_all(
    source: Source, tmp_path: Path
) -> None:
    (tmp_path / source.files[0].name).unlink()
    names = ".*".join(file.name for file in source.files)
    with pytest.raises(DataError, match=rf"(?s)is not on this machine.*{names}"):
        LOADERS[source.name]()


def test_the_command_knows_it(
    source: Source, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["data", "verify", source.name]) == 0
    assert main(["data", "fetch", source.name.replace("-", "_")]) == 0
    count = len(source.files)
    shown = capsys.readouterr().out
    assert f"{source.name}: {count} file{'s' * (count > 1)}, " in shown
    assert f" MB, verified, in {tmp_path}\n" in shown


def test_a_record_names_the_hashes_of_all_files_and_loading_writes_nothing(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    hashes = data_hashes(source.name, LOADERS[source.name]())
    assert hashes == {source.name: {file.name: file.sha256 for file in source.files}}
    assert {p.name for p in tmp_path.rglob("*")} == {f.name for f in source.files}


pictures = pytest.mark.parametrize(
    "source", ["mnist", "fashion-mnist", "cifar-10"], indirect=True
)


@pictures
def test_pictures_are_scaled_to_float32_from_0_to_1(source: Source) -> None:
    load: Any = LOADERS[source.name]
    scaled, raw = load(), load(is_scaled=False)
    for x, pixels in ((scaled.x_train, raw.x_train), (scaled.x_test, raw.x_test)):
        assert (x.dtype, pixels.dtype) == (np.float32, np.uint8)
        assert set(x[pixels == 255].tolist()) == {1}
        assert set(x[pixels == 51].tolist()) == {np.float32(0.2)}
        np.testing.assert_array_equal(np.rint(x * 255), pixels)
    assert {y.dtype for d in (scaled, raw) for y in d[1::2]} == {np.dtype(np.int64)}


@pictures
@pytest.mark.parametrize("is_scaled", [True, False])
def test_pictures_may_be_written_to(is_scaled: bool, source: Source) -> None:
    load: Any = LOADERS[source.name]
    assert all(array.flags.writeable for array in load(is_scaled))
