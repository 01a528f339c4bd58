"""Clips inside a tar or a table: laid down once by content, captions read, everything else named."""

from __future__ import annotations

import io
import json
import random
import tarfile
import unicodedata

import pytest
from PIL import Image

from wan_core.dataset import DatasetConfig, ScanContext, scan_parts
from wan_core.dataset.report import scan_report
from wan_core.errors import DatasetError, Stopped
from wan_core.importers import Columns, open_source
from wan_core.importers import extracted as extracted_module
from wan_core.importers.cells import holds_media
from wan_core.importers.extracted import suffix_of_bytes
from wan_core.importers.source import SourceFile
from wan_core.importers.webdataset import read_member, tar_members


def png(colour) -> bytes:
    data = io.BytesIO()
    Image.new("RGB", (64, 48), colour).save(data, "PNG")
    return data.getvalue()


def pack(path, members, format_=tarfile.PAX_FORMAT):
    with tarfile.open(path, "w", format=format_) as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def read(path, tmp_path, **options):
    (part,) = open_source(SourceFile(path=path, allowed=[path.parent], unpacked=tmp_path / "unpacked", **options))
    return part


@pytest.mark.parametrize("format_", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_our_listing_of_a_tar_equals_that_of_the_standard_library(tmp_path, format_):
    draw = random.Random(7)
    long = "/".join(["folder"] * 12) + "/clip.mp4"  # 92 characters: fits ustar's prefix
    names = ["a.mp4", "b.txt", long, *(f"{n:04}.png" for n in range(50))]
    if format_ != tarfile.USTAR_FORMAT:
        names += ["n" * 180 + ".png", "日本/夜 👋.png"]
    members = [(name, draw.randbytes(draw.choice([0, 1, 511, 512, 513, 5000]))) for name in names]
    path = pack(tmp_path / "x.tar", members, format_)
    with tarfile.open(path) as tar:
        expected = [(m.name, m.offset_data, m.size) for m in tar.getmembers()]
    found = tar_members(path)
    assert [(m.name, m.offset, m.size) for m in found] == expected
    assert all(not m.refused for m in found)
    with open(path, "rb") as file:
        assert [b"".join(read_member(file, m, 700)) for m in found] == [data for _name, data in members]


def test_sizes_beyond_octal_are_read(tmp_path):
    info = tarfile.TarInfo("huge.mp4")
    info.size = 9 << 30
    path = tmp_path / "x.tar"
    path.write_bytes(info.tobuf(tarfile.GNU_FORMAT))
    (member,) = tar_members(path)
    assert (member.size, member.refused[:14]) == (9 << 30, "is cut off: th")


def test_a_sample_is_the_files_of_one_name(tmp_path):
    members = [
        ("0001.png", png("red")),
        ("0001.txt", b"a red\r\n picture"),
        (unicodedata.normalize("NFD", "0001 café.png"), png("red")),
        (unicodedata.normalize("NFC", "0001 café.TXT"), b"a cup"),
        ("0002.json", json.dumps({"caption": "a blue one", "width": 64}).encode()),
        ("0002.png", png("blue")),
        ("deep/0003.jpg", png("green")),
        ("0004.PNG", png("grey")),
        ("0004.control.png", png("black")),
        ("0004.mask.png", png("white")),
        ("0005.txt", b"no picture"),
        ("0006.heic", b"x"),
        ("0007.png", png("red")),
        ("0007.txt", b"stra\xdfe"),
        ("__meta__", b"x"),
    ]
    part = read(pack(tmp_path / "set.tar", members), tmp_path)
    assert [(f.name, f.caption) for f in part.files] == [
        ("0001.png", "a red picture"),
        (unicodedata.normalize("NFD", "0001 café.png"), "a cup"),
        ("0002.png", "a blue one"),
        ("deep/0003.jpg", ""),
        ("0004.PNG", ""),
    ]
    assert part.files[4].control.read_bytes() == png("black")
    assert part.files[4].mask.read_bytes() == png("white")
    assert {r.name: r.reason for r in part.rejected} == {
        "0005": "has no clip and no still, only .txt",
        "0006.heic": ".heic files are not read",
        "0007.png": "its .txt is not saved as UTF-8 (byte 0xdf at offset 4); save it again as UTF-8",
        "__meta__": "has no clip and no still",
    }
    assert part.files[0].path.read_bytes() == png("red")


def test_a_sample_may_name_its_parts(tmp_path):
    members = [
        ("000006.video.png", png("red")),
        ("000006.caption.txt", b"a red one"),
        ("000007.left.png", png("red")),
        ("000007.right.png", png("blue")),
        ("000008.main.png", png("green")),
        ("000008.mask.png", png("white")),
    ]
    part = read(pack(tmp_path / "set.tar", members), tmp_path)
    assert [(f.name, f.caption, f.mask is not None) for f in part.files] == [
        ("000006.video.png", "a red one", False),
        ("000008.main.png", "", True),
    ]
    assert [(r.name, r.reason) for r in part.rejected] == [
        ("000007", "has several clips or stills (.left.png, .right.png); keep one per sample")
    ]


@pytest.mark.parametrize("name", ["set.tar.gz", "set.tgz", "set.tar.zst"])
def test_a_packed_tar_is_refused_with_what_to_do(tmp_path, name):
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(DatasetError, match=r"is a packed tar; only plain \.tar files are read.*Unpack it once"):
        read(tmp_path / name, tmp_path)


def test_members_are_scanned_like_files_and_named_as_in_the_tar(tmp_path, video):
    members = [("one/a.png", png("red")), ("one/a.txt", b"a red one"), ("b.png", b"not a picture"), ("b.txt", b"b")]
    part = read(pack(tmp_path / "set.tar", members), tmp_path)
    (result,) = scan_parts(DatasetConfig(width=64, height=48, num_frames=1), [part], ScanContext(video))
    assert [(s.name, s.caption) for s in result.samples] == [("one/a.png", "a red one")]
    assert [r.name for r in result.rejected] == ["b.png"]
    assert "captions: 1 of 1 from the list" in scan_report(result)


def test_a_second_look_lays_nothing_down_and_the_same_bytes_lie_there_once(tmp_path, monkeypatch):
    members = [("a.png", png("red")), ("b.png", png("red")), ("c.png", png("blue"))]
    path = pack(tmp_path / "set.tar", members)
    first = read(path, tmp_path)
    assert len({f.path for f in first.files}) == 2
    monkeypatch.setattr(extracted_module.ExtractedFiles, "add", lambda *a: pytest.fail("laid down again"))
    assert read(path, tmp_path).files == first.files


def test_a_file_that_is_gone_from_the_cache_is_laid_down_again(tmp_path):
    path = pack(tmp_path / "set.tar", [("a.png", png("red"))])
    (file,) = read(path, tmp_path).files
    file.path.unlink()
    assert read(path, tmp_path).files[0].path.read_bytes() == png("red")


def test_names_in_a_tar_never_become_paths(tmp_path):
    hostile = ["../../escape.png", "/etc/cron.d/x.png", "a/../../b.png", "C:\\x.png", "con.png", "x\n\x1b[31m.png"]
    part = read(pack(tmp_path / "set.tar", [(name, png("red")) for name in hostile]), tmp_path)
    assert len(part.files) == len(hostile)
    assert all(f.path.parent.parent == tmp_path / "unpacked" for f in part.files)
    assert not (tmp_path.parent / "escape.png").exists()
    assert all(f.shown_name.isprintable() for f in part.files)


def test_links_devices_and_sparse_files_are_named_and_not_followed(tmp_path):
    path = tmp_path / "set.tar"
    with tarfile.open(path, "w") as tar:
        for name, kind in (("l.png", b"2"), ("h.png", b"1"), ("d.png", b"3"), ("p.png", b"6"), ("s.png", b"S")):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "/etc/passwd"
            tar.addfile(info)
        info = tarfile.TarInfo("a.png")
        info.size = len(png("red"))
        tar.addfile(info, io.BytesIO(png("red")))
    part = read(path, tmp_path)
    assert [f.name for f in part.files] == ["a.png"]
    assert {r.name: r.reason for r in part.rejected} == {
        "l.png": "is a link inside the tar; pack the file itself",
        "h.png": "is a link inside the tar; pack the file itself",
        "d.png": "is no regular file",
        "p.png": "is no regular file",
        "s.png": "is a sparse file; pack it without --sparse",
    }


def damaged(kind):
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz" if kind == "gzip" else "w") as tar:
        info = tarfile.TarInfo("a.png")
        info.size = 4000
        tar.addfile(info, io.BytesIO(b"x" * 4000))
    raw = bytearray(data.getvalue())
    if kind == "header":
        raw[20] ^= 1
    return bytes(raw[:3000] if kind == "cut" else b"hello" if kind == "text" else b"" if kind == "empty" else raw)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("gzip", "packed with gzip; only plain .tar files are read"),
        ("header", "is no tar file"),
        ("text", "is no tar file"),
        ("empty", "is empty"),
    ],
)
def test_what_is_no_plain_tar_is_refused(tmp_path, kind, message):
    (tmp_path / "x.tar").write_bytes(damaged(kind))
    with pytest.raises(DatasetError, match=message):
        tar_members(tmp_path / "x.tar")


def test_a_tar_that_ends_early_names_the_member(tmp_path):
    (tmp_path / "x.tar").write_bytes(damaged("cut"))
    part = read(tmp_path / "x.tar", tmp_path)
    assert part.files == ()
    assert part.rejected[0].reason.startswith("is cut off: the tar ends before it does")


def header_of(size: bytes, kind: bytes = b"0") -> bytes:
    """A header with a sound checksum, whatever it says of the size."""
    raw = bytearray(tarfile.TarInfo("a.mp4").tobuf(tarfile.GNU_FORMAT))
    raw[124:136], raw[156:157], raw[148:156] = size, kind, b" " * 8
    raw[148:156] = b"%06o\0 " % sum(raw[:512])
    return bytes(raw)


def test_a_damaged_header_in_the_middle_is_told_and_not_taken_for_the_end(tmp_path):
    path = pack(tmp_path / "x.tar", [(f"{n}.png", b"x" * 100) for n in range(6)], tarfile.GNU_FORMAT)
    raw = bytearray(path.read_bytes())
    raw[3 * 1024 + 20] ^= 1
    path.write_bytes(raw)
    with pytest.raises(DatasetError, match=r"x\.tar is damaged at byte 3072"):
        tar_members(path)


@pytest.mark.parametrize("size", [b"-1000\0      ", b"\xff" * 12, b"\x80" + b"\xff" * 11, b"twelve bytes"])
@pytest.mark.parametrize("kind", [b"0", b"x", b"g"])
def test_a_size_that_is_none_is_one_sentence(tmp_path, size, kind):
    path = tmp_path / "x.tar"
    path.write_bytes(header_of(size, kind) + bytes(1024))
    what = r"x\.tar is no tar file" if size.isascii() and b"b" in size else "a size in it is no number"
    with pytest.raises(DatasetError, match=what):
        tar_members(path)


@pytest.mark.parametrize("stated", ["9" * 5000, "\u00b2", "-1", "1e3"])
def test_a_pax_size_that_is_none_is_one_sentence(tmp_path, stated):
    record = f" size={stated}\n".encode()
    record = f"{len(record) + len(str(len(record) + 4))}".encode() + record
    path = tmp_path / "x.tar"
    path.write_bytes(header_of(b"%011o\0" % len(record), b"x") + record.ljust(-(-len(record) // 512) * 512, b"\0"))
    with pytest.raises(DatasetError, match=r"x\.tar is damaged"):
        tar_members(path)


def test_a_pax_header_without_bounds_is_refused_before_it_is_read(tmp_path):
    path = tmp_path / "x.tar"
    path.write_bytes(header_of(b"%011o\0" % (1 << 30), b"x"))
    with pytest.raises(DatasetError, match="the name of a member takes 1073741824 bytes"):
        tar_members(path)


def test_three_hundred_damaged_tars_never_crash_the_reader(tmp_path):
    members = [("a" * 150 + ".png", b"x" * 100), ("b.txt", b"y" * 700), ("日.png", b"")]
    raw = pack(tmp_path / "x.tar", members).read_bytes()
    draw = random.Random(3)
    path = tmp_path / "y.tar"
    for _ in range(300):
        data = bytearray(raw)
        for _ in range(draw.randint(1, 4)):
            data[draw.randrange(len(data))] = draw.randrange(256)
        path.write_bytes(data[: draw.choice([len(data), draw.randrange(1, len(data))])])
        try:
            for member in tar_members(path):
                assert member.refused or 0 <= member.offset <= member.offset + member.size <= path.stat().st_size
        except DatasetError:
            pass


@pytest.mark.parametrize(
    ("head", "suffix"),
    [
        (b"\0\0\0\x20ftypisom\0\0\0\0", ".mp4"),
        (b"\x1aE\xdf\xa3" + b"\0" * 12, ".mkv"),
        (b"RIFF\0\0\0\0AVI LIST", ".avi"),
        (b"RIFF\0\0\0\0WEBPVP8 ", ".webp"),
        (b"GIF89a" + b"\0" * 10, ".gif"),
        (b"\xff\xd8\xff\xe0" + b"\0" * 12, ".jpg"),
        (b"\0\0\0\x1cftypavif\0\0\0\0", ".avif"),
        (b"\0\0\1\xba" + b"\0" * 12, ".mpg"),
        (b"FLV\1" + b"\0" * 12, ".flv"),
        (b"\x30\x26\xb2\x75\x8e\x66\xcf\x11" + b"\0" * 8, ".wmv"),
        (b"II*\0" + b"\0" * 12, ".tif"),
        (b"MM\0*" + b"\0" * 12, ".tif"),
        (b"%PDF-1.7", None),
        (b"", None),
    ],
)
def test_formats_are_known_by_their_first_bytes(head, suffix):
    assert suffix_of_bytes(head) == suffix


def hf_table(pyarrow):
    rows = [
        {"image": {"bytes": png("red"), "path": "r.png"}, "text": "a red one"},
        {"image": {"bytes": png("blue"), "path": None}, "text": "a blue one"},
        {"image": {"bytes": b"%PDF", "path": "x.pdf"}, "text": "a book"},
        {"image": None, "text": "nothing"},
    ]
    return pyarrow.Table.from_pylist(rows)


def check_hf(part):
    assert [(f.caption, f.path.suffix) for f in part.files] == [("a red one", ".png"), ("a blue one", ".png")]
    assert part.files[0].path.read_bytes() == png("red")
    assert [(r.name, r.reason) for r in part.rejected] == [
        ("row 3 (x.pdf)", "contains data that is no clip and no still of a known format"),
        ("row 4", 'has nothing in column "image"'),
    ]


def test_a_dataset_saved_by_hugging_faces_library_is_read_from_its_arrow_files(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    folder = tmp_path / "saved" / "train"
    folder.mkdir(parents=True)
    (tmp_path / "saved" / "dataset_dict.json").write_text('{"splits": ["test", "train"]}')
    (folder / "dataset_info.json").write_text("{}")
    (folder / "state.json").write_text('{"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}')
    table = hf_table(pyarrow)
    place = str(folder / "data-00000-of-00001.arrow")
    with pyarrow.OSFile(place, "wb") as sink, pyarrow.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    check_hf(read(folder, tmp_path))
    whole = read(tmp_path / "saved", tmp_path)
    check_hf(whole)
    assert whole.notes[0] == "saved: split 'train' is used; not used: test"


def test_a_dataset_as_its_repository_holds_it_is_read_from_its_parquet_files(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    folder = tmp_path / "repo" / "data"
    folder.mkdir(parents=True)
    parquet.write_table(hf_table(pyarrow), folder / "train-00000-of-00001.parquet")
    parquet.write_table(hf_table(pyarrow), folder / "test-00000-of-00001.parquet")
    part = read(tmp_path / "repo", tmp_path, columns=Columns(caption="text"))
    check_hf(part)
    assert part.notes[0] == "repo: not used: test-00000-of-00001.parquet"


def test_the_rows_of_a_table_without_the_columns_of_the_first_are_named(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"file": ["a.mp4"]}), tmp_path / "train-0.parquet")
    parquet.write_table(pyarrow.table({"other": [1, 2]}), tmp_path / "train-1.parquet")
    part = read(tmp_path, tmp_path)
    assert [(one.name, one.reason) for one in part.rejected[1:]] == [
        (f"train-1.parquet row {row}", 'has nothing in column "file"') for row in (1, 2)
    ]


def test_cancel_is_heard_while_a_fingerprint_looks_into_a_table(tmp_path, monkeypatch):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"file": ["a.mp4"]}), tmp_path / "x.parquet")
    monkeypatch.setattr("wan_core.parsers.process._POLL_S", 0)
    asked: list[bool] = []
    source = SourceFile(path=tmp_path / "x.parquet", allowed=[tmp_path], should_stop=lambda: asked.append(True) or True)
    with pytest.raises(Stopped):
        holds_media(source.path, source)
    assert asked == [True]


def test_a_table_of_a_dataset_that_leads_nowhere_is_a_sentence(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"file": ["a.mp4"]}), tmp_path / "train-0.parquet")
    (tmp_path / "train-1.parquet").symlink_to("/nonexistent/x")
    with pytest.raises(DatasetError, match=r"^train-1\.parquet cannot be opened: No such file"):
        read(tmp_path, tmp_path)


def test_a_saved_dataset_cannot_name_files_outside_its_folder(tmp_path):
    pytest.importorskip("pyarrow")
    folder = tmp_path / "saved"
    folder.mkdir()
    (folder / "dataset_info.json").write_text("{}")
    (folder / "state.json").write_text('{"_data_files": [{"filename": "../../secret.arrow"}]}')
    with pytest.raises(Exception, match="leads outside its folder"):
        read(folder, tmp_path)
