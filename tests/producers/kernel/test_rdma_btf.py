"""Reading struct offsets and enum values from BTF, on blobs small enough to read here."""

import struct
from pathlib import Path

import pytest

from producers.kernel.rdma import CORE_CONSTANTS, layout_flags
from producers.kernel.rdma_btf import ENUM, INT, STRUCT, Btf, LayoutUnknown, read_btf

FORWARD = 7


class Builder:
    """Builds a BTF blob; the strings of a module go on where those of its kernel end."""

    def __init__(self, strings_before: int = 0) -> None:
        self.strings = b"\0" if strings_before == 0 else b""
        self.before = strings_before
        self.types = b""

    def name(self, text: str) -> int:
        at = self.before + len(self.strings)
        self.strings += text.encode() + b"\0"
        return at

    def add(self, kind: int, name: int, entries: list[bytes], extra: bytes = b"") -> "Builder":
        self.types += struct.pack("<III", name, kind << 24 | len(entries), 4) + b"".join(entries) + extra
        return self

    def struct(self, name: str, members: dict[str, int]) -> "Builder":
        entries = [struct.pack("<III", self.name(member), 1, bits) for member, bits in members.items()]
        return self.add(STRUCT, self.name(name), entries)

    def enum(self, name: str, values: dict[str, int]) -> "Builder":
        entries = [struct.pack("<Ii", self.name(constant), value) for constant, value in values.items()]
        return self.add(ENUM, self.name(name), entries)

    def blob(self) -> bytes:
        sizes = (0, len(self.types), len(self.types), len(self.strings))
        return struct.pack("<HBBIIIII", 0xEB9F, 1, 0, 24, *sizes) + self.types + self.strings


def kernel() -> Builder:
    builder = Builder()
    builder.add(INT, builder.name("u32"), [], struct.pack("<I", 32))
    builder.add(FORWARD, builder.name("ib_qp"), [])
    return builder.struct("sk_buff", {"next": 0, "len": 112 * 8})


def test_a_members_offset_is_in_bytes() -> None:
    assert Btf(kernel().blob()).member_bytes("sk_buff", "len") == 112


def test_a_bitfields_size_is_no_part_of_its_offset() -> None:
    blob = kernel().struct("res", {"valid": 3 << 24 | 64}).blob()
    assert Btf(blob).member_bytes("res", "valid") == 8


def test_an_enums_constants_have_their_values() -> None:
    blob = kernel().enum("kind", {"KIND_PD": 0, "KIND_QP": 2, "KIND_NONE": -1}).blob()
    assert [Btf(blob).enum_value("kind", name) for name in ("KIND_QP", "KIND_NONE")] == [2, -1]


def test_a_modules_type_may_be_named_by_a_string_of_the_kernel() -> None:
    base = kernel()
    next_at = base.strings.index(b"next\0")
    module = Builder(strings_before=len(base.strings))
    module.struct("ib_mr", {"length": 256})
    entries = [struct.pack("<III", next_at, 1, 640)]
    module.add(STRUCT, module.name("ib_cq"), entries)
    btf = Btf(module.blob(), base=Btf(base.blob()))
    assert btf.member_bytes("ib_mr", "length") == 32
    assert btf.member_bytes("ib_cq", "next") == 80


def test_what_a_module_lacks_is_looked_up_in_its_kernel() -> None:
    base = kernel()
    module = Builder(strings_before=len(base.strings)).struct("rxe_qp", {"ibqp": 0})
    assert Btf(module.blob(), base=Btf(base.blob())).member_bytes("sk_buff", "len") == 112


@pytest.mark.parametrize(("place", "says"), [(("sk_buff", "gone"), "sk_buff.gone"), (("ib_qp", "res"), "ib_qp.res")])
def test_what_nobody_knows_is_named(place: tuple[str, str], says: str) -> None:
    with pytest.raises(LayoutUnknown, match=says):
        Btf(kernel().blob()).member_bytes(*place)


@pytest.mark.parametrize("blob", [b"", b"\x9f\xeb\x01", b"\xeb\x9f" + kernel().blob()[2:], kernel().blob()[:-1]])
def test_a_damaged_blob_is_named_and_not_read(blob: bytes) -> None:
    with pytest.raises(LayoutUnknown, match="BTF is"):
        Btf(blob)


def test_a_kernel_without_btf_is_named(tmp_path: Path) -> None:
    with pytest.raises(LayoutUnknown, match="no BTF: No such file or directory"):
        read_btf("ib_core", tmp_path)


def test_a_built_in_module_is_looked_up_in_the_kernel(tmp_path: Path) -> None:
    (tmp_path / "vmlinux").write_bytes(kernel().blob())
    assert read_btf("ib_core", tmp_path).member_bytes("sk_buff", "len") == 112


def test_every_macro_of_the_c_source_gets_its_flag() -> None:
    builder = kernel()
    builder.struct("ib_device", {"name": 64, "ops": 1024}).struct("ib_device_ops", {"driver_id": 32})
    builder.enum("rdma_restrack_type", {c: 1 + i for i, (_, c) in enumerate(CORE_CONSTANTS.values())})
    flags = layout_flags(
        Btf(builder.blob()), {"DEVICE_NAME": ("ib_device", "name")}, {"KIND_CQ": CORE_CONSTANTS["KIND_CQ"]}
    )
    position = 1 + list(CORE_CONSTANTS).index("KIND_CQ")
    assert f"-DKIND_CQ={position}" in flags
    assert "-DDEVICE_DRIVER=132" in flags
