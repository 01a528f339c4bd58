"""MaxDiffusion's training sets: what it reads is what we write, and what it wrote is what we train on."""

from __future__ import annotations

import io
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.support.caching import unsound
from wan_core.cache import LatentCache, SyntheticConfig, synthetic_set
from wan_core.cli.commands import _parser
from wan_core.errors import CacheError, ConfigError, DatasetError, ExitCode, Stopped
from wan_core.importers import PromptKeys, TensorClip, export_records, import_records, store_clips, store_text
from wan_core.importers.maxdiffusion.example import decode_example, decode_tensor, encode_example, encode_tensor
from wan_core.importers.maxdiffusion.records import read_records, record_bytes
from wan_core.model import WAN21_LATENTS, WAN22_LATENTS, condition_named


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


def prompts_of(cache, fingerprint) -> PromptKeys:
    known = cache.read_set(fingerprint)
    return PromptKeys(known.empty_text_key, known.negative_text_key)


def records(folder: Path):
    return [decode_example(data) for file in sorted(folder.glob("*")) for data in read_records(file)]


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


def test_a_set_comes_back_as_it_went(tmp_path):
    cache, fingerprint = filled(tmp_path / "cache")
    export_records(cache, fingerprint, tmp_path / "out", records_per_shard=2)
    same = import_records(tmp_path / "out", cache)
    assert same.fingerprint == fingerprint
    assert (same.encoding.latents_encoded, same.encoding.latents_reused) == (0, 3)

    elsewhere = LatentCache(tmp_path / "elsewhere")
    other = import_records(tmp_path / "out", elsewhere)
    assert other.cache_set == cache.read_set(fingerprint), "names, captions, repeats and prompts too"
    assert (other.files, other.timesteps, other.encoding.latents_encoded) == (2, 0, 3)
    assert unsound(elsewhere, other.cache_set) == []


def test_turns_and_weights_come_back_too(tmp_path):
    cache, fingerprint = filled(tmp_path / "cache")
    plain = cache.read_set(fingerprint)
    items = tuple(replace(item, turn=turn, turns=3, weight=0.3) for turn, item in enumerate(plain.items))
    export_records(cache, cache.write_set(replace(plain, items=items)), tmp_path / "out")
    assert import_records(tmp_path / "out", LatentCache(tmp_path / "elsewhere")).cache_set.items == items


def test_every_size_gets_a_folder_of_its_own(tmp_path):
    """MaxDiffusion stacks what stands in one folder."""
    cache, fingerprint = filled(tmp_path / "cache", [(2, 4, 6), (1, 4, 4), (2, 4, 6)])
    report = export_records(cache, fingerprint, tmp_path / "out")
    assert sorted(report.folders) == ["32x32x1", "48x32x5"]
    assert [len(records(tmp_path / "out" / name)) for name in sorted(report.folders)] == [1, 2]
    back = import_records(tmp_path / "out", LatentCache(tmp_path / "elsewhere"))
    assert back.fingerprint == fingerprint
    alone = import_records(tmp_path / "out" / "32x32x1", cache)
    assert [item.name for item in alone.cache_set.items] == ["clip 1"]


@pytest.mark.soak
def test_evaluation_timesteps_are_dealt_in_equal_shares_and_not_used_here(tmp_path):
    cache, fingerprint = filled(tmp_path / "cache", [(1, 2, 2)] * 4)
    export_records(cache, fingerprint, tmp_path / "out", eval_timesteps=(125, 500))
    assert [example["timesteps"] for example in records(tmp_path / "out")] == [[125], [125], [500], [500]]
    assert import_records(tmp_path / "out", cache).timesteps == 4


def foreign(folder: Path, *features: dict[str, torch.Tensor]) -> Path:
    """A file as MaxDiffusion's scripts write it: two features and no more."""
    folder.mkdir(exist_ok=True)
    examples = [{name: [encode_tensor(tensor)] for name, tensor in tensors.items()} for tensors in features]
    (folder / "file_00-10.tfrec").write_bytes(b"".join(record_bytes(encode_example(one)) for one in examples))
    return folder


def theirs(space=WAN21_LATENTS, batch=False, **changes):
    text = torch.zeros(512, 4096)
    text[:7] = drawn(7, 4096)
    latents = drawn(space.channels, 3, 4, 6)
    return {"latents": latents[None] if batch else latents, "encoder_hidden_states": text, **changes}


@pytest.mark.parametrize(("space", "batch", "fps"), [(WAN21_LATENTS, False, 16.0), (WAN22_LATENTS, True, 24.0)])
def test_their_records_are_imported_with_the_prompts_of_a_set_of_ours(tmp_path, space, batch, fps):
    cache, fingerprint = filled(tmp_path / "cache")
    folder = foreign(tmp_path / "theirs", theirs(space, batch))
    with pytest.raises(DatasetError, match=r"does not carry the empty and the negative prompt.*--prompts-from"):
        import_records(folder, cache)
    report = import_records(folder, cache, prompts=prompts_of(cache, fingerprint))
    (item,) = report.cache_set.items
    assert (report.cache_set.fps, report.cache_set.latent_space) == (fps, space.name)
    assert (item.num_frames, item.name) == (9, "record 0 of file_00-10.tfrec")
    assert torch.equal(cache.read_latent(item.latent_key).float(), theirs(space)["latents"])
    assert tuple(cache.read_text(item.text_key).shape) == (7, 4096)
    assert report.cache_set.empty_text_key == cache.read_set(fingerprint).empty_text_key


def test_raw_latents_are_normalised_when_that_is_said(tmp_path):
    cache, fingerprint = filled(tmp_path / "cache")
    folder = foreign(tmp_path / "theirs", theirs())
    report = import_records(folder, cache, prompts=prompts_of(cache, fingerprint), raw=True, fps=12.0)
    expected = WAN21_LATENTS.normalise(theirs()["latents"]).bfloat16()
    assert torch.equal(cache.read_latent(report.cache_set.items[0].latent_key), expected)
    assert report.cache_set.fps == 12.0


@pytest.mark.parametrize(
    ("second", "said"),
    [
        ({"moments": torch.ones(2)}, "Record 1 of file_00-10.tfrec has no latents; it has moments"),
        (theirs(latents=torch.ones(16, 2, 4)), r"latents of record 1 of file_00-10.tfrec have shape \[16, 2, 4\]"),
        (theirs(WAN22_LATENTS), "record 1 of file_00-10.tfrec has 48 channels, the model needs 16"),
        (theirs(latents=torch.ones(16, 1, 3, 4)), "record 1 of file_00-10.tfrec is 4x3 latents; both must be even"),
        (theirs(encoder_hidden_states=torch.ones(77, 768)), "The text of record 1 of file_00-10.tfrec has shape"),
        (theirs(latents=torch.full((16, 1, 2, 2), torch.nan)), "record 1 of file_00-10.tfrec holds NaN"),
    ],
)
def test_a_record_that_cannot_be_used_is_named_by_file_and_number(tmp_path, second, said):
    cache, fingerprint = filled(tmp_path / "cache")
    with pytest.raises(DatasetError, match=said):
        import_records(foreign(tmp_path / "theirs", theirs(), second), cache, prompts=prompts_of(cache, fingerprint))


def test_damaged_files_are_named_by_file_and_number(tmp_path):
    cache, fingerprint = filled(tmp_path / "cache")
    folder = foreign(tmp_path / "theirs", theirs(), theirs())
    file = folder / "file_00-10.tfrec"
    whole = file.read_bytes()
    file.write_bytes(whole[:-9])
    with pytest.raises(DatasetError, match=r"Record 1 of file_00-10.tfrec is cut off"):
        import_records(folder, cache, prompts=prompts_of(cache, fingerprint))
    file.write_bytes(record_bytes(b"\x0a\x7fno example"))
    with pytest.raises(DatasetError, match=r"Record 0 of file_00-10.tfrec is no tf.train.Example"):
        import_records(folder, cache, prompts=prompts_of(cache, fingerprint))
    file.write_bytes(record_bytes(encode_example({"latents": [b"\x08\x09"]})))
    with pytest.raises(DatasetError, match=r"latents of record 0 of file_00-10.tfrec cannot be used: its data type 9"):
        import_records(folder, cache, prompts=prompts_of(cache, fingerprint))
    file.write_bytes(b"")
    with pytest.raises(DatasetError, match="holds no records"):
        import_records(folder, cache, prompts=prompts_of(cache, fingerprint))
    file.unlink()
    with pytest.raises(DatasetError, match=r"theirs holds no .tfrec or .tfrecord files"):
        import_records(folder, cache, prompts=prompts_of(cache, fingerprint))


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


def test_stopping_leaves_only_whole_files(tmp_path):
    cache, fingerprint = filled(tmp_path / "cache")
    asked = iter([False] * 2 + [True])
    with pytest.raises(Stopped):
        export_records(cache, fingerprint, tmp_path / "out", records_per_shard=2, should_stop=lambda: next(asked))
    assert [file.name for file in (tmp_path / "out").iterdir()] == ["file_00-2.tfrec"]
    assert len(records(tmp_path / "out")) == 2


def command(*arguments: object) -> dict[str, object]:
    """What a `wan_core cache` command prints."""
    options = _parser().parse_args(["cache", *map(str, arguments)])
    out = io.BytesIO()
    assert options.run(options, lambda event: None, out) == ExitCode.DONE
    return json.loads(out.getvalue())


def test_both_commands(tmp_path):
    _, fingerprint = filled(tmp_path / "cache", [(1, 2, 2)] * 3)
    export = ("export-tfrecord", tmp_path / "cache", fingerprint[:12], tmp_path / "out")
    assert command(*export, "--records-per-shard", 2, "--eval-timesteps", "125, 500")["files"] == 2
    back = command("import-tfrecord", tmp_path / "other", tmp_path / "out")
    assert (back["fingerprint"], back["clips"], back["evaluation_timesteps_ignored"]) == (fingerprint, 3, 3)
    assert LatentCache(tmp_path / "other").read_set(fingerprint)
    theirs_too = ("import-tfrecord", tmp_path / "cache", foreign(tmp_path / "theirs", theirs()))
    assert command(*theirs_too, "--prompts-from", fingerprint[:9], "--fps", 12)["latents_stored"] == 1
    with pytest.raises(DatasetError, match="out is there and not empty"):
        command(*export)
    with pytest.raises(ConfigError, match="--eval-timesteps 'soon' is not a list of numbers"):
        command(*export, "--eval-timesteps", "soon")
    with pytest.raises(CacheError, match="The cache holds no set 000000000000"):
        command("export-tfrecord", tmp_path / "cache", "0" * 64, tmp_path / "new")
