"""The NCCL library is found in /proc/PID/maps under every path that real installations use."""

import json

import pytest

from producers.kernel.nccl_maps import carrier_files, library_path, nccl_files
from tests.paths import shared


def corpus_lines() -> list[dict[str, str | None]]:
    lines: list[dict[str, str | None]] = json.loads(shared("corpus", "ebpf", "maps_libnccl.json").read_text())
    return lines


def test_every_line_of_the_corpus_gives_the_expected_path() -> None:
    cases = [case for case in corpus_lines() if case["expected_path"] != "unsure"]

    assert len(cases) >= 8
    assert {case["id"]: library_path(str(case["line"])) for case in cases} == {
        case["id"]: case["expected_path"] for case in cases
    }


def test_a_static_nccl_is_a_carrier_and_never_a_library() -> None:
    line = next(str(case["line"]) for case in corpus_lines() if case["id"] == "static in torch")

    assert nccl_files(line) == []
    assert [file.path for file in carrier_files(line)] == [
        "/usr/local/lib/python3.8/dist-packages/torch/lib/libtorch_cuda.so"
    ]


MAPS = """\
7f0000000000-7f0000200000 r--p 00000000 08:01 4242    /opt/nccl/libnccl.so.2
7f0000200000-7f0000400000 r-xp 00200000 08:01 4242    /opt/nccl/libnccl.so.2
7f0000400000-7f0000500000 r-xp 00400000 08:01 4242    /opt/nccl/libnccl.so.2
7f0001000000-7f0001200000 r-xp 00000000 00:9a 77      /usr/lib/a name/libnccl.so.2.21.5 (deleted)
7f0002000000-7f0002200000 r-xp 00000000 00:00 0
7ffd00000000-7ffd00001000 r-xp 00000000 00:00 0       [vdso]
7f0003000000-7f0003200000 rw-p 00000000 08:01 99      /opt/other/libnccl.so.2
"""


def test_each_file_with_code_is_listed_once_with_its_first_code_range() -> None:
    found = nccl_files(MAPS)

    assert [(file.path, file.identity, file.map_file, file.deleted) for file in found] == [
        ("/opt/nccl/libnccl.so.2", ("08:01", 4242), "7f0000200000-7f0000400000", False),
        ("/usr/lib/a name/libnccl.so.2.21.5", ("00:9a", 77), "7f0001000000-7f0001200000", True),
    ]


@pytest.mark.parametrize(
    "line",
    ["", "nonsense", "zz-yy r-xp 0 08:01 x /libnccl.so.2", "1000-2000 r-xp 0 08:01 5 libnccl.so.2"],
)
def test_a_line_that_is_no_mapping_is_ignored(line: str) -> None:
    assert library_path(line) is None
