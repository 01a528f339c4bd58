"""A graph is kept and carried by LoRAs without paths of this machine and without secrets; the rest of it as it was."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from route_server import our_module

from wan_core.export import workflow_metadata
from wan_core.files import atomic_write_json

pytestmark = pytest.mark.comfy

PATHS = {
    "C:\\Users\\Bob Miller\\Videos\\x": "[path removed]",
    "/home/John Smith/data/clips": "[path removed]",
    "\\\\nas\\share dir\\alice": "[path removed]",
    "D:/My Data/alice smith/x": "[path removed]",
    "dir:/home/dave/secret": "dir:[path removed]",
    "file:///home/carol/x": "[path removed]",
    "//nas/share/alice": "[path removed]",
    "smb://nas/alice/our films": "[path removed]",
    "/Users/alice/My Films": "[path removed]",
    "/home/alice": "[path removed]",
    "/root": "[path removed]",
    "~/alice smith/x": "[path removed]",
    "/data/My Films/alice": "[path removed]",
    "see '/data/My Films/alice', then": "see '[path removed]', then",
    "/home/Tim O'Alice/x": "[path removed]",
    ".../home/alice/x": "...[path removed]",
    "https://host.example/view?folder=/home/alice/x": "https://host.example/view?folder=[path removed]",
    "/home/alice/my clips\nand a second line": "[path removed]\nand a second line",
    "C:\\alice smith\\x see https://host.example/a/b": "[path removed]https://host.example/a/b",
    "Folder C:\\alice smith\\x y does not exist. Make it.": "Folder [path removed] does not exist. Make it.",
    "(/media/alice/My Disk).": "([path removed]).",
    '{\\"dir\\": \\"/home/alice/x y\\"}': '{\\"dir\\": \\"[path removed]\\"}',
}
SECRETS = {
    "AIzaSyA-1234567890abcdefghijklmnopqrstu": "[secret removed]",
    "my_hf_" + "aB3" * 12: "my_[secret removed]",
    "token=0123456789abcdef0123456789abcdef": "token=[secret removed]",
    "https://eve:pa55w0rd@host.example/x": "https://[secret removed]@host.example/x",
    "password: hunter2": "password: [secret removed]",
    "AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG/bPxRfi": "AWS_SECRET_ACCESS_KEY=[secret removed]",
    "https://host.example/?a=b&token=0123abcd&x=y": "https://host.example/?a=b&token=[secret removed]&x=y",
    '{"api_key": "two words"}': '{"api_key": [secret removed]}',
    "Authorization: Bearer short": "Authorization: [secret removed]",
    "api-key = abc": "api-key = [secret removed]",
    "https://discord.com/api/webhooks/1234567890/aB3-xyz_Q": "https://discord.com/api/webhooks/[secret removed]",
    "(https://ptb.discordapp.com/api/v10/webhooks/12/tok?wait=1)": (
        "(https://ptb.discordapp.com/api/v10/webhooks/[secret removed]"
    ),
    "https://hooks.slack.com/services/T0/B0/abc see": "https://hooks.slack.com/[secret removed] see",
    "https://contoso.webhook.office.com/webhookb2/a@b/c": "https://contoso.webhook.office.com/[secret removed]",
    "https://hooks.zapier.com/hooks/catch/1/2/": "https://hooks.zapier.com/[secret removed]",
    "https://api.telegram.org/bot123456789:AA" + "h" * 33 + "/x": "https://api.telegram.org/bot[secret removed]/x",
    "wandb_v1_" + "Ab3" * 12: "[secret removed]",
    "wandb login " + "0a1b" * 10: "wandb login [secret removed]",
    "WANDB_API_KEY=" + "0a1b" * 10: "WANDB_API_KEY=[secret removed]",
    "wandb key: " + "0a1b" * 10: "wandb key: [secret removed]",
    "civitai_key: 0123456789abcdef0123456789abcdef": "civitai_key: [secret removed]",
    "https://civitai.com/api/download/models/1?type=Model&token=0123456789abcdef0123456789abcdef": (
        "https://civitai.com/api/download/models/1?type=Model&token=[secret removed]"
    ),
    "github_pat_" + "11AA" * 12: "[secret removed]",
    "https://host.example/b?sv=1&sig=aB%2F3&se=2": "https://host.example/b?sv=1&sig=[secret removed]&se=2",
    "https://s3.example/f?X-Amz-Signature=0abc": "https://s3.example/f?X-Amz-Signature=[secret removed]",
    "https://maps.example/?key=abc&q=x": "https://maps.example/?key=[secret removed]&q=x",
    "SG." + "aB3" * 7 + "." + "xY9" * 12: "[secret removed]",
    "webhook_url: https://nas.example/x": "webhook_url: [secret removed]",
    "discord.com/api/webhooks/12/tok": "discord.com/api/webhooks/[secret removed]",
    "https://open.feishu.cn/open-apis/bot/v2/hook/ab-12": (
        "https://open.feishu.cn/open-apis/bot/v2/hook/[secret removed]"
    ),
    "https://maker.ifttt.com/trigger/e/with/key/ab12": "https://maker.ifttt.com/trigger/e/with/key/[secret removed]",
    "api.wandb.ai " + "0a1b" * 10: "api.wandb.ai [secret removed]",
    "rpa_" + "AB3" * 12: "[secret removed]",
    "passphrase: correct-horse": "passphrase: [secret removed]",
    "key\n-----BEGIN OPENSSH PRIVATE KEY-----\nb3Bl/bn+\nQyNTUx==\n-----END OPENSSH PRIVATE KEY-----\nend": (
        "key\n[secret removed]\nend"
    ),
    "-----BEGIN PRIVATE KEY-----\\nMIIEvQ, cut": "[secret removed], cut",
}
ORDINARY = (
    "and/or, 16/9, w/ hat, 1/2 of a cat/dog; a ~ b, ratio 16:9, (a cat:1.2)/b",
    r"blocks\.\d+\.(self_attn|cross_attn)\.(q|k|v|o)",
    r"blocks\\.\\d+\\.(q|k)",
    r"(?i:\w+)\.to_q|(?:\d\s)",
    "wan_trainer/my_lora.safetensors",
    "Wan\\model.safetensors",
    "%date:yyyy-MM-dd%/wan/clip",
    "diffusion_models:wan/wan2.1.safetensors",
    "## Note\n\n- `vae/wan_2.1_vae.safetensors` and **a/b**, [here](https://host.example/a_(b)/c?d=/e/f#g).",
    "https://civitai.com/api/download/models/123?type=Model&format=SafeTensor",
    "git+https://host.example/some/repo",
    "a secret garden, a token of love: roses; tokens: 512; the password",
    "trigger word: ohwx",
    "commit " + "0a1b" * 10,
    "https://github.com/some/repo/blob/main/hooks/x.py",
    "a fish hook/lure; wandb is not used; a key=frame; captain hook",
    "https://host.example/about-webhooks",
    "discord.com/api/docs; a passphrase for two; -----BEGIN CAPTION-----",
)


def in_files(pack_nodes: dict[str, Any], directory: Path, graph: dict[str, Any]) -> dict[str, Any]:
    """The graph as workflow.json and the header of a LoRA hold it."""
    scrubbed = our_module(pack_nodes, "runs.scrub").scrubbed
    atomic_write_json(directory / "workflow.json", scrubbed(graph))
    kept = json.loads((directory / "workflow.json").read_text(encoding="utf-8"))
    assert json.loads(workflow_metadata(directory)["workflow"]) == kept
    assert scrubbed(kept) == kept  # the routes do it once more
    return kept


def test_a_lora_carries_neither_paths_nor_secrets(pack_nodes: dict[str, Any], tmp_path: Path) -> None:
    table = PATHS | SECRETS
    kept = in_files(pack_nodes, tmp_path, {"nodes": list(table)})
    assert dict(zip(table, kept["nodes"], strict=True)) == table


def test_a_lora_carries_ordinary_texts_as_they_are(pack_nodes: dict[str, Any], tmp_path: Path) -> None:
    assert in_files(pack_nodes, tmp_path, {"nodes": list(ORDINARY)})["nodes"] == list(ORDINARY)


def test_keys_are_texts_too_and_no_value_is_lost(pack_nodes: dict[str, Any], tmp_path: Path) -> None:
    named = {"/home/frank/key": 1, "[path removed]": 2, "/home/grace/key": 3, "is_changed": "4", "plain": 5}
    kept = in_files(pack_nodes, tmp_path, {"nodes": named, "api_key": "hunter2", "hf_token": "", "max_tokens": "7"})
    assert kept["nodes"] == {"[path removed]": 1, "[path removed] (2)": 2, "[path removed] (3)": 3, "plain": 5}
    assert (kept["api_key"], kept["hf_token"], kept["max_tokens"]) == ("[secret removed]", "", "7")


def test_a_graph_nested_deeper_than_python_follows_is_left_out(pack_nodes: dict[str, Any], tmp_path: Path) -> None:
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    assert our_module(pack_nodes, "runs.scrub").scrubbed({"nodes": deep}) == {}


def test_a_text_of_millions_is_left_out_and_one_below_it_is_kept(pack_nodes: dict[str, Any]) -> None:
    scrubbed = our_module(pack_nodes, "runs.scrub").scrubbed
    assert scrubbed(["a" * 1_000_001]) == ["[1,000,001 characters removed]"]
    assert scrubbed(["a" * 1_000_000]) == ["a" * 1_000_000]


def test_the_home_folder_of_this_user_goes_wherever_it_stands(
    pack_nodes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os.path, "expanduser", lambda path: path.replace("~", "/people/Ann Lee"))
    texts = {
        "clips:/people/Ann Lee/my films/a": "clips:[path removed]",
        "\\people\\Ann Lee\\a": "[path removed]",
        "backup/people/ann lee/a": "backup/[path removed]",
        "films/Ann Lee/a.mp4": "films/[name removed]/a.mp4",
        "Ann Lee walks, Ann Lee/Bob": "Ann Lee walks, Ann Lee/Bob",
        "https://host.example/people/Ann Lee/x": "https://host.example/[path removed]",
    }
    kept = in_files(pack_nodes, tmp_path, {"nodes": list(texts)})
    assert dict(zip(texts, kept["nodes"], strict=True)) == texts
