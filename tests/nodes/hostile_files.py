"""Files of strangers by kind: what they are called below input/ or models/, and what makes their bytes."""

from __future__ import annotations

import gzip
import io
import json
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

Made = Callable[[], bytes]


def text(value: str) -> Made:
    return lambda: value.encode("utf-8", "surrogatepass")


TOML_VALUES = (
    *(
        "0x" + "f" * 50_000,
        "9" * 5000,
        "1e999999",
        "inf",
        "-nan",
        "2026-13-45",
        "[" * 5000,
        "{a = " * 5000,
        "'''" + "x\n" * 50_000,
    ),
    *(
        '"\\U00110000"',
        '"' + "\\" * 9999,
        "[" + "1," * 60_000 + "]",
        "true" * 9000,
        "1" + "_1" * 40_000,
        "00",
        "07:61:99",
    ),
)
YAML_VALUES = (
    *("[" * 50_000, "{a: " * 9000, "- " * 50_000, "? " * 20_000, "!!python/name:os.system", "!!binary " + "A" * 50_001),
    *(
        "!!timestamp x",
        "!!float x",
        "0x" + "f" * 50_000,
        "1:" * 20_000 + "1",
        ".inf",
        "*a",
        "&a [*a]",
        "|\n " + "x\n " * 50_000,
    ),
    *("!!set {a, b}", "!!omap [1]", '"' + "\\u0000" * 9000 + '"', "%TAG ! x", "<<: 1", "'" + "''" * 50_000 + "'"),
)
JSON_VALUES = (
    *(
        "[" * 50_000,
        '{"a":' * 50_000,
        "9" * 5000,
        "9" * 4000,
        "1e999999",
        "-Infinity",
        "NaN",
        '"\\ud800"',
        '"' + "x" * 500_000 + '"',
    ),
    *("[" + "0," * 60_000 + "0]", "{" + ",".join(f'"{n}": {n}' for n in range(60_000)) + "}"),
)
SETTINGS: dict[str, Made] = {
    "keys.toml": text(".".join("a" * 100_000) + " = 1"),
    "table.toml": text("[[" + ".".join("a" * 100_000) + "]]"),
    "wide.toml": text("".join(f"k{n} = {n}\n" for n in range(60_000))),
    "tables.toml": text("".join(f"[[datasets]]\nvideo_directory = '{n}'\n" for n in range(9000))),
    "list.yaml": text("- 1\n" * 200_000),
    **{f"value{n}.toml": text(f"dit = 'wan'\nmax_train_steps = {value}\n") for n, value in enumerate(TOML_VALUES)},
    **{f"value{n}.yaml": text(f"config:\n  process:\n    - steps: {v}\n") for n, v in enumerate(YAML_VALUES)},
    **{f"value{n}.json": text(f'{{"model_family": "wan", "lr": {value}}}') for n, value in enumerate(JSON_VALUES)},
    "comment.sh": text("# wan_train_network.py\necho\n"),
    "words.sh": text("python wan_train_network.py --optimizer_args " + "a " * 30_000),
    "quote.sh": text("python wan_train_network.py '" + "a" * 60_000),
    "options.sh": text("python wan_train_network.py " + " ".join(f"--a{n} 1" for n in range(6000))),
}


def tar(name: str, size: int, kind: bytes = b"0", body: bytes = b"") -> Made:
    def made() -> bytes:
        info = tarfile.TarInfo(name)
        info.size, info.type = size, kind
        return info.tobuf(tarfile.GNU_FORMAT) + body

    return made


def parquet(columns: Callable[[Any], dict[str, Any]], **options: Any) -> Made:
    def made() -> bytes:
        import pyarrow
        from pyarrow import parquet as writer

        file = io.BytesIO()
        writer.write_table(pyarrow.table(columns(pyarrow)), file, **options)
        return file.getvalue()

    return made


def arrow(columns: Callable[[Any], dict[str, Any]], opened: str = "new_file") -> Made:
    def made() -> bytes:
        import pyarrow
        from pyarrow import ipc

        file, table = io.BytesIO(), pyarrow.table(columns(pyarrow))
        with getattr(ipc, opened)(file, table.schema) as writer:
            writer.write_table(table)
        return file.getvalue()

    return made


def shared(pyarrow: Any, size: int, rows: int = 1000) -> dict[str, Any]:
    """A text in many rows that the file holds once."""
    one = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * rows, pyarrow.int32()), pyarrow.array(["a" * size]))
    return {"file": [f"{number}.mp4" for number in range(rows)], "caption": one}


def cut(made: Made, end: int) -> Made:
    return lambda: made()[:end]


def turned(made: Made, at: int) -> Made:
    def damaged() -> bytes:
        data = bytearray(made())
        data[at % len(data)] ^= 0xFF
        return bytes(data)

    return damaged


SMALL = parquet(lambda _: {"file": ["a.mp4", "b.mp4"], "caption": ["a walk", "a run"]})
SMALL_ARROW = arrow(lambda _: {"file": ["a.mp4", "b.mp4"], "caption": ["a walk", "a run"]})
TABLES: dict[str, Made] = {
    "bomb.parquet": parquet(lambda pa: shared(pa, 60_000_000), compression="zstd", write_statistics=False),
    "bomb.arrow": arrow(lambda pa: shared(pa, 20_000_000)),
    "lists.parquet": parquet(lambda _: {"file": ["a.mp4"] * 9, "caption": [["a"] * 100_000] * 9}, compression="zstd"),
    "nulls.parquet": parquet(lambda pa: {"file": pa.nulls(2_000_000, pa.string())}),
    "media.parquet": parquet(lambda _: {"image": [{"bytes": bytes(1 << 20), "path": "x"}] * 64}, compression="zstd"),
    **{f"cut{n}.parquet": cut(SMALL, n) for n in (0, 4, 8, 40, -1, -8, -20)},
    **{f"turned{n}.parquet": turned(SMALL, n) for n in (5, 20, 40, 60, -5, -9, -40, -80)},
    **{f"cut{n}.arrow": cut(SMALL_ARROW, n) for n in (0, 4, 8, 100, -1)},
    **{f"turned{n}.arrow": turned(SMALL_ARROW, n) for n in (8, 12, 20, 60, 200, -5, -9, -40)},
    "stream.arrow": arrow(lambda _: {"file": [1, 2]}, "new_stream"),
    "honest.jsonl": text("".join(f'{{"file": "{n}.mp4", "caption": "a walk at night"}}\n' for n in range(300_000))),
    "deep.jsonl": text("[" * 1_000_000 + "\n"),
    "digits.jsonl": text('{"file": "a.mp4", "repeats": ' + "1" * 900_000 + "}\n"),
    "keys.jsonl": text("{" + ",".join(f'"{n}": 1' for n in range(60_000)) + "}\n"),
    "line.jsonl": text('{"file": "' + "a" * (2 << 20)),
    "many.jsonl": text("{}\n" * 1_100_000),
    "repeats.jsonl": text('{"file": "a.mp4", "repeats": 9223372036854775808}\n{"file": "a.mp4", "repeats": 1e999}\n'),
    "caption.jsonl": text('{"file": "a.mp4", "caption": "' + "a" * 900_000 + '"}\n'),
    "captions.jsonl": text('{"file": "a.mp4", "caption": [' + '"a",' * 100_000 + '"b"]}\n'),
    "numbers.json": text("[" + "1," * 3_000_000 + "1]"),
    "deep.json": text("[" * 3_000_000),
    "empty.json": text("[" + "[]," * 3_000_000 + "[]]"),
    "wide.csv": text(",".join(["file", *map(str, range(60_000))]) + "\n" + "a\n" * 60_000),
    "quote.csv": text('file\n"' + "a\n" * 500_000),
    "cell.csv": text("file\n" + "a" * 900_000 + "\n"),
    "zeros.tsv": lambda: bytes(1 << 20),
    "size.tar": tar("a.mp4", 1 << 60),
    "folder.tar": tar("a", 1 << 59, b"5"),
    "name.tar": tar("a", 1 << 40, b"L"),
    "pax.tar": tar("a", 1 << 16, b"x", b"9 " * (1 << 15)),
    "small.tar": lambda: b"".join(tar(f"{n}.txt", 0)() for n in range(100_000)),
    "packed.tar": lambda: gzip.compress(bytes(1 << 24)),
    "link.tar": tar("a.mp4", 0, b"2"),
}


def safetensors(header: bytes | str, data: bytes = b"", length: int | None = None) -> Made:
    raw = header.replace("PLACED", '"data_offsets":[0,4]').encode() if isinstance(header, str) else header
    return lambda: struct.pack("<Q", len(raw) if length is None else length) + raw + data


def gguf(entries: bytes, count: int = 1, tensors: int = 0, ends: bytes = b"", version: int = 3) -> Made:
    return lambda: b"GGUF" + struct.pack("<IQQ", version, tensors, count) + entries + ends


def entry(kind: int, rest: bytes, key: bytes = b"general.name") -> bytes:
    return struct.pack("<Q", len(key)) + key + struct.pack("<I", kind) + rest


def array(kind: int, count: int, body: bytes = b"") -> bytes:
    return entry(9, struct.pack("<IQ", kind, count) + body)


def tensor(name: bytes, sides: list[int], kind: int = 0, offset: int = 0) -> bytes:
    return struct.pack("<Q", len(name)) + name + struct.pack(f"<I{len(sides)}QIQ", len(sides), *sides, kind, offset)


PLACE = '{"dtype":"F32","shape":[1],"data_offsets":[0,4]}'
EMPTY = '{"dtype":"F32","shape":[0],"data_offsets":[0,0]}'
MODELS: dict[str, Made] = {
    "bytes.gguf": gguf(array(0, 1 << 20, bytes(1 << 20))),
    "long.gguf": gguf(array(7, 8 << 20, bytes(8 << 20))),
    "texts.gguf": gguf(array(8, 1 << 20, bytes(8 << 20))),
    "more_texts.gguf": gguf(array(8, 6 << 20, bytes(48 << 20))),
    "claims.gguf": gguf(array(4, 1 << 62)),
    "nested.gguf": gguf(array(9, 1 << 20, bytes(1 << 20))),
    "entries.gguf": gguf(entry(7, b"\0") * 100_000, 100_000),
    "same.gguf": gguf(entry(7, b"\0") * 2, 2),
    "counts.gguf": gguf(b"", 1 << 63, 1 << 63),
    "key.gguf": gguf(struct.pack("<Q", (1 << 64) - 1)),
    "kind.gguf": gguf(entry(99, b"")),
    "version.gguf": gguf(b"", 0, version=9),
    "alignment.gguf": gguf(entry(4, struct.pack("<I", 0), b"general.alignment")),
    "wide.gguf": gguf(b"", 0, 1, tensor(b"a", [1 << 62, 1 << 62])),
    "sides.gguf": gguf(b"", 0, 1, struct.pack("<Q", 1) + b"a" + struct.pack("<I", 1 << 31)),
    "beyond.gguf": gguf(b"", 0, 1, tensor(b"a", [1 << 20])),
    "offset.gguf": gguf(b"", 0, 1, tensor(b"a", [1], 0, (1 << 64) - 1)),
    "unknown.gguf": gguf(b"", 0, 1, tensor(b"a", [1], 4095)),
    "letters.gguf": gguf(b"", 0, 1, tensor(b"\xff\xfe", [1])),
    "tiny.gguf": gguf(b"", 0, 50_000, b"".join(tensor(str(n).encode(), [0]) for n in range(50_000))),
    "cut.gguf": cut(gguf(array(0, 100)), 30),
    "empty.gguf": lambda: b"",
    "million.safetensors": safetensors("{" + ",".join(f'"{n}":{EMPTY}' for n in range(300_000)) + "}"),
    "tensors.safetensors": safetensors("{" + ",".join(f'"{n}":{EMPTY}' for n in range(60_000)) + "}"),
    "lists.safetensors": safetensors('{"a":[' + "[]," * 10_000_000 + "[]]}"),
    "deep.safetensors": safetensors('{"a":' + "[" * 1_000_000),
    "metadata.safetensors": safetensors('{"__metadata__":' + '{"a":' * 100_000 + "1" + "}" * 100_000 + "}"),
    "words.safetensors": safetensors('{"__metadata__":{"a":"' + "x" * 20_000_000 + '"}}'),
    "list.safetensors": safetensors('{"__metadata__":[1]}'),
    "digits.safetensors": safetensors(
        '{"a":{"dtype":"F32","shape":[' + "9" * 5000 + '],"data_offsets":[0,4]}}', b"1234"
    ),
    "float.safetensors": safetensors('{"a":{"dtype":"F32","shape":[1e999],PLACED}}', b"1234"),
    "shape.safetensors": safetensors(
        '{"a":{"dtype":"F32","shape":[' + "1," * 99 + '1],"data_offsets":[0,4]}}', b"1234"
    ),
    "sides.safetensors": safetensors(
        '{"a":{"dtype":"F4","shape":[9223372036854775807],"data_offsets":[0,4]}}', b"1234"
    ),
    "type.safetensors": safetensors('{"a":{"dtype":["F32"],"shape":[1],PLACED}}', b"1234"),
    "twice.safetensors": safetensors("{" + ",".join(f'"a":{PLACE}' for _ in range(2)) + "}", b"1234"),
    "overlap.safetensors": safetensors("{" + ",".join(f'"{n}":{PLACE}' for n in "ab") + "}", b"1234"),
    "name.safetensors": safetensors('{"' + "a" * 100_000 + f'":{PLACE}}}', b"1234"),
    "surrogate.safetensors": safetensors(f'{{"\\ud800":{PLACE}}}', b"1234"),
    "letters.safetensors": safetensors(b'{"\xff":1}'),
    "zero.safetensors": safetensors("{}", length=0),
    "promise.safetensors": safetensors("{", length=99_000_000),
    "all.safetensors": safetensors("{", length=(1 << 64) - 1),
    "cut.safetensors": lambda: b"1234",
    "wan.safetensors": safetensors(
        json.dumps(
            {f"blocks.{n}.ffn.0.weight": {"dtype": "F32", "shape": [0, 1], "data_offsets": [0, 0]} for n in range(9999)}
        )
    ),
    "stated.safetensors": safetensors(
        json.dumps({"__metadata__": {"_quantization_metadata": "[" * 50_000}, "a": json.loads(PLACE)}), b"1234"
    ),
    "lora.safetensors": safetensors(
        "{" + ",".join(f'"blocks.{n}.ffn.0.lora_A.weight":{EMPTY}' for n in range(30_000)) + "}"
    ),
    "alpha.safetensors": safetensors(f'{{"blocks.0.ffn.0.alpha":{EMPTY}}}'),
    "peft.safetensors": safetensors(
        json.dumps(
            {"__metadata__": {"lora_adapter_metadata": '{"r": ' + "9" * 5000}, "a.lora_A.weight": json.loads(PLACE)}
        ),
        b"1234",
    ),
    "software.safetensors": safetensors(
        json.dumps({"__metadata__": {"software": "[" * 50_000}, "blocks.0.ffn.0.alpha": json.loads(PLACE)}), b"1234"
    ),
}


def write(made: Made, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(made())
