"""MaxDiffusion reads what the export writes: the bytes are TensorFlow's, the tensors are those of the cache."""

from __future__ import annotations

import base64
import io
import json
import shutil
import sys
import zlib
from pathlib import Path

import google_crc32c
import numpy as np
import pytest
import torch
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.tensorflow_stub import pywrap_tensorflow
from tensorboard.compat.tensorflow_stub.errors import OutOfRangeError
from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import PyRecordReader_New

from wan_core.cache import LatentCache, SyntheticConfig, synthetic_set
from wan_core.cli.commands import _parser
from wan_core.errors import CacheError, ConfigError, DatasetError, DependencyError, ExitCode
from wan_core.export import export_records
from wan_core.export.tfrecords import encode_example, encode_tensor, record_bytes
from wan_core.importers import PromptKeys, TensorClip, store_clips, store_text
from wan_core.model import WAN21_LATENTS, condition_named

FROM_TENSORFLOW = zlib.decompress(
    base64.b64decode(
        "eNpFjz9Lw1AUxW/SGF+P2pbrH7QohOAkLoJKcfB18SPYtUbzioE0KeZJcRC6FQrugp/C2SVfwm/h4uik1zbigR93uId7z3mhhXZOeoRnB0fY"
        "NNlNHpu7/m0SxybrFzaypuBtbGFDNVixqxyhFvqlppIIF1hOxZLZgs/QwamsW2JwK+PvdMOg+nNONBFKgTRRIHSFK41d1G0yNIU1o4Kb7TWs"
        "PH59V3Kmn28fT9UJ3ZxEmDnYhx/n99ep4TYknTz6y+aE6nKud406lsxwZB+YEMAfJGlqYpYqYLGqKl/twJMcXanoD9I8kiarDKhFxlJj778i"
        "o4WGWmdvXsujDh2PXw97P/CGQUE="
    )
)
"""two examples by TensorFlow 2.21: tf.io.TFRecordWriter, tf.io.serialize_tensor and tf.make_tensor_proto"""


def _example_type():
    """The message of tensorflow/core/example/example.proto; its lists of floats are left out."""
    file = descriptor_pb2.FileDescriptorProto(name="example.proto", syntax="proto3")
    messages = {
        "BytesList": [("value", 1, "BYTES", 3)],
        "Int64List": [("value", 1, "INT64", 3)],
        "Feature": [("bytes_list", 1, "BytesList", 1), ("int64_list", 3, "Int64List", 1)],
        "Entry": [("key", 1, "STRING", 1), ("value", 2, "Feature", 1)],
        "Features": [("feature", 1, "Entry", 3)],
        "Example": [("features", 1, "Features", 1)],
    }
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        for field, number, kind, label in fields:
            made = message.field.add(name=field, number=number, label=label)
            if kind in messages:
                made.type, made.type_name = 11, kind
            else:
                made.type = getattr(descriptor_pb2.FieldDescriptorProto, f"TYPE_{kind}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("Example"))


EXAMPLE = _example_type()


def read_records(file: Path) -> list[bytes]:
    """TensorBoard's reader, which checks lengths and checksums."""
    reader, found = PyRecordReader_New(str(file)), []
    while True:
        try:
            reader.GetNext()
        except OutOfRangeError:
            return found
        found.append(reader.record())


def features(record: bytes) -> dict[str, list[bytes] | list[int]]:
    entries = EXAMPLE.FromString(record).features.feature
    return {one.key: list(one.value.bytes_list.value or one.value.int64_list.value) for one in entries}


def decode_tensor(data: bytes) -> torch.Tensor:
    proto = TensorProto.FromString(data)
    assert proto.dtype == 1
    shape = [dim.size for dim in proto.tensor_shape.dim]
    return torch.from_numpy(np.frombuffer(proto.tensor_content, "<f4").copy()).view(shape)


def records(folder: Path):
    return [features(data) for file in sorted(folder.glob("*")) for data in read_records(file)]


def test_the_same_content_makes_the_bytes_tensorflow_made(tmp_path):
    (tmp_path / "golden.tfrec").write_bytes(FROM_TENSORFLOW)
    first, second = read_records(tmp_path / "golden.tfrec")
    assert record_bytes(first) + record_bytes(second) == FROM_TENSORFLOW
    theirs = features(first)
    assert encode_tensor(torch.arange(8.0).view(2, 1, 2, 2) / 8) == theirs["latents"][0]
    ours = encode_example({"timesteps": 125, "latents": theirs["latents"][0]})
    assert features(ours) == {"latents": theirs["latents"], "timesteps": [125]}
    assert EXAMPLE.FromString(ours).SerializeToString() == ours


def test_without_the_package_of_checksums_the_refusal_names_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "google_crc32c", None)
    with pytest.raises(
        DependencyError, match=r'^TFRecords need the package google-crc32c.* -m pip install "google-crc'
    ):
        record_bytes(b"a")


@pytest.fixture
def soon_checked(monkeypatch):
    """The golden records show that both ways give the same sums; TensorBoard's own takes a second for a text."""
    monkeypatch.setattr(pywrap_tensorflow, "crc32c", google_crc32c.value)


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).bfloat16().float()


def filled(root, sizes=((2, 4, 6),) * 3, space=WAN21_LATENTS, kind="none"):
    """A cache with a set of one clip of each latent size; its fingerprint."""
    cache = LatentCache(root)
    clips = [
        TensorClip(
            latent=drawn(space.channels, *size, seed=number),
            text=drawn(number + 2, 4096, seed=number),
            name=f"clip {number}",
            caption=f"häuser {number}",
            repeats=1 + number % 2,
            condition={"channels": drawn(20, *size)} if kind == "first" else {},
        )
        for number, size in enumerate(sizes)
    ]
    prompts = PromptKeys(*(store_text(cache, drawn(n, 4096, seed=90 + n), "prompt") for n in (1, 9)))
    _, report = store_clips(clips, cache, prompts=prompts, space=space, kind=condition_named(kind), fps=16.0)
    return cache, report.fingerprint


@pytest.mark.usefixtures("soon_checked")
def test_an_export_is_what_maxdiffusion_reads(tmp_path):
    """Feature names, data type and shapes of its wan_trainer.py; file names of its wan_pusav1_to_tfrecords.py."""
    cache, fingerprint = filled(tmp_path / "cache")
    report = export_records(cache, fingerprint, tmp_path / "out", records_per_shard=2)
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == [
        *("file_00-2.tfrec", "file_01-4.tfrec"),
    ]
    assert (report.files, report.records, report.folders) == (2, 3, (".",))
    assert report.size_bytes == sum(file.stat().st_size for file in (tmp_path / "out").iterdir())
    items = cache.read_set(fingerprint).items
    for example, item in zip(records(tmp_path / "out"), items, strict=True):
        latents = decode_tensor(example["latents"][0])
        text = decode_tensor(example["encoder_hidden_states"][0])
        assert (latents.dtype, text.dtype, tuple(text.shape)) == (torch.float32, torch.float32, (512, 4096))
        assert torch.equal(latents, cache.read_latent(item.latent_key).float()), "normalised, as in our cache"
        kept = cache.read_text(item.text_key)
        assert torch.equal(text[: len(kept)], kept.float())
        assert not text[len(kept) :].any()
        assert "timesteps" not in example


@pytest.mark.usefixtures("soon_checked")
def test_every_size_gets_a_folder_of_its_own(tmp_path):
    """MaxDiffusion stacks what stands in one folder."""
    cache, fingerprint = filled(tmp_path / "cache", [(2, 4, 6), (1, 4, 4), (2, 4, 6)])
    report = export_records(cache, fingerprint, tmp_path / "out")
    assert sorted(report.folders) == ["32x32x1", "48x32x5"]
    assert [len(records(tmp_path / "out" / name)) for name in sorted(report.folders)] == [1, 2]


@pytest.mark.usefixtures("soon_checked")
def test_evaluation_timesteps_are_dealt_in_equal_shares(tmp_path):
    cache, fingerprint = filled(tmp_path / "cache", [(1, 2, 2)] * 4)
    export_records(cache, fingerprint, tmp_path / "out", eval_timesteps=(125, 500))
    assert [example["timesteps"] for example in records(tmp_path / "out")] == [[125], [125], [500], [500]]


def test_what_maxdiffusion_cannot_train_is_not_exported(tmp_path, monkeypatch):
    cache, fingerprint = filled(tmp_path / "cache")
    conditioned, first = filled(tmp_path / "i2v", kind="first")
    random = synthetic_set(
        SyntheticConfig(width=64, height=64), space=WAN21_LATENTS, size_multiple=16, kind=condition_named("none")
    )
    refusals = [
        (conditioned, first, {}, "MaxDiffusion trains Wan on latents and texts alone"),
        (cache, cache.write_set(random), {}, "random tensors"),
        (cache, fingerprint, {"records_per_shard": 0}, "records_per_shard is 0"),
    ]
    for where, which, options, said in refusals:
        with pytest.raises(DatasetError, match=said):
            export_records(where, which, tmp_path / "out", **options)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    with pytest.raises(DatasetError, match="full is there and not empty"):
        export_records(cache, fingerprint, tmp_path / "full")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(1, 1, 1 << 20))
    with pytest.raises(CacheError, match=r"The records take 0.0 GiB, of 0.0 GiB free. Free disk space"):
        export_records(cache, fingerprint, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def command(*arguments: object) -> dict[str, object]:
    """What a `wan_core cache` command prints."""
    options = _parser().parse_args(["cache", *map(str, arguments)])
    out = io.BytesIO()
    assert options.run(options, lambda event: None, out) == ExitCode.DONE
    return json.loads(out.getvalue())


def test_the_command(tmp_path):
    _, fingerprint = filled(tmp_path / "cache", [(1, 2, 2)] * 3)
    export = ("export-tfrecord", tmp_path / "cache", fingerprint[:12], tmp_path / "out")
    assert command(*export, "--records-per-shard", 2, "--eval-timesteps", 125, 500)["files"] == 2
    with pytest.raises(DatasetError, match="out is there and not empty"):
        command(*export)
    with pytest.raises(ConfigError, match=r"--eval-timesteps \[2000\] must lie between 0 and 1000"):
        command(*export, "--eval-timesteps", 2000)
    with pytest.raises(CacheError, match="The cache holds no set 000000000000"):
        command("export-tfrecord", tmp_path / "cache", "0" * 64, tmp_path / "new")
