import re
from urllib.parse import urlsplit

import pytest

from normbook.data import files
from normbook.data.catalogue import SOURCES, DataFile, Source

FILES = [(source, file) for source in SOURCES.values() for file in source.files]
every_file = pytest.mark.parametrize(
    ("source", "file"), FILES, ids=[f"{s.name}/{f.name}" for s, f in FILES]
)


# Their authors name no mirror, or none with https.
ONE_MIRROR = {"cifar-10", "japanese-vowels", "omniglot-strokes", "babi"}


@every_file
def test_a_file_has_two_mirrors_on_different_hosts_over_https(
    source: Source, file: DataFile
) -> None:
    addresses = [urlsplit(url) for url in file.urls]
    hosts = {address.hostname for address in addresses}
    assert len(hosts) >= 2 or (len(hosts) == 1 and source.name in ONE_MIRROR)
    assert {address.scheme for address in addresses} == {"https"}
    ends = (".zip", ".tar.gz") if file.archive else f"/{file.name}"
    assert all(address.path.endswith(ends) for address in addresses)


@every_file
def test_all_mirrors_that_hang_cost_at_most_half_a_minute(
    source: Source, file: DataFile
) -> None:
    assert len(file.urls) * files.PATIENCE <= 30


@every_file
def test_a_hash_is_a_sha256_and_no_two_files_share_it(
    source: Source, file: DataFile
) -> None:
    assert re.fullmatch("[0-9a-f]{64}", file.sha256)
    assert [other.sha256 for _, other in FILES].count(file.sha256) == 1


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_a_data_set_states_licence_and_citation_and_where_it_comes_from(
    source: Source,
) -> None:
    assert source.licence
    # A technical report has neither number, but an address.
    assert re.search(r"\(\d{4}\).*(doi:10\.|arXiv:|https://)", source.citation)
    assert bool(source.files) != bool(source.package)
    assert source.size == sum(file.size for file in source.files)
