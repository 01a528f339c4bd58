"""Secrets that a link spells with %XX, and logins in base64, go; what only looks like them stays."""

from __future__ import annotations

import json
from collections.abc import Callable
from urllib.parse import quote, unquote

import pytest

from wan_core.export.secrets import without_secrets

GONE = "[secret removed]"


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("https://user:pa%73s@host/x", f"https://{GONE}@host/x"),
        ("https://h/x?token=%68%66_abc%20d&a=1", f"https://h/x?token={GONE}&a=1"),
        ("https://h/?to%6ben=abcdef&x=1", f"https://h/?to%6ben={GONE}&x=1"),
        ("https://h/?next=https%3A%2F%2Fbob%3Apass%40host%2Fp&a=1", f"https://h/?next={GONE}&a=1"),
        ("https://h/?next=%2Fp%3Fa%3D1%26api_key%3Dabcdef&a=1", f"https://h/?next={GONE}&a=1"),
        ("https://h/?next=%252Fp%253Fapi_key%253Dabcdef", f"https://h/?next={GONE}"),
        ("see https://h/?u=hf%5Fabcdefghijklmnopqrstuvwx, then", f"see https://h/?u={GONE} then"),
        ("curl -H 'x: Basic Ym9iOnNlY3JldA=='", f"curl -H 'x: Basic {GONE}'"),
        ("basic Ym9iOnNlY3JldA", f"basic {GONE}"),
    ],
)
def test_an_encoded_secret_goes(text: str, seen: str) -> None:
    assert without_secrets(text) == seen
    assert without_secrets(seen) == seen


@pytest.mark.parametrize(
    "text",
    [
        "https://h/models/wan%202.1/file%20name.safetensors?download=true&x=%2Fa%2Fb",
        "https://h/?next=https%3A%2F%2Fhost%2Fpath%3Fpage%3D2%26size%3D10",
        "a cat, 50%20of it, 100%, %zz and %E5%90%8D%E5%89%8D",
        "basic training of cats",
        "Basic QmFzaWMgbm90aGluZw==",
        "a basic understanding, basic movements",
    ],
)
def test_what_holds_no_secret_stays_as_it_was_written(text: str) -> None:
    assert without_secrets(text) == text


LONG = "AbCdEfGh1jKlMn0pQrStUvWxYz012345abcdefgh"
SECRETS = {
    "telegram": ("https://api.telegram.org/bot123456789:{}/sendMessage", "AAE" + LONG[:32]),
    "telegram doc": ("https://api.telegram.org/bot123456:{}/sendMessage", "ABC-DEF1234ghIkl-zyx57W2v1u123ew11"),
    "telegram file": ("https://api.telegram.org/file/bot110201543:{}/photos/1.jpg", LONG[:35]),
    "telegram bare": ("bot token 110201543:{} ", LONG[:35]),
    "telegram own server": ("http://127.0.0.1:8081/bot110201543:{}/sendVideo", LONG[:35]),
    "discord hook": ("https://discord.com/api/webhooks/123456789012345678/{}", LONG),
    "discord app": ("https://ptb.discordapp.com/api/v10/webhooks/123456789012345678/{}", LONG),
    "discord bot": ("MTk4NjIyNDgzNDcxOTI1MjQ4.Cl2FMQ.{}", "ZnCjm1XVW7vRze4b7Cq4se7kKWsAA"),
    "slack hook": ("https://hooks.slack.com/services/T00000000/B00000000/{}", LONG[:24]),
    "slack bot": ("xoxb-1234567890-{}", LONG),
    "slack xoxe": ("xoxe.xoxp-1-{}", LONG),
    "teams": ("https://contoso.webhook.office.com/webhookb2/{}@1/IncomingWebhook/{}", LONG),
    "power automate": (
        "https://prod-00.logic.azure.com:443/workflows/abc/invoke?sp=%2Ftriggers&sv=1.0&sig={}",
        LONG,
    ),
    "google chat": ("https://chat.googleapis.com/v1/spaces/AAA/messages?key=abc&token={}", LONG),
    "ntfy topic": ("https://ntfy.sh/{}", LONG),
    "ntfy token": ("tk_{}", "AgQdq7mVBoFD37zQVN29RhuMzNIz2"),
    "pushover": (
        "https://api.pushover.net/1/messages.json?user={}",
        "uQiRzpo4DXghDmr9QzzfQu27cmVRsG",
    ),
    "pushover json": (
        '{"pushover": {"user_key": "{}"}}',
        "uQiRzpo4DXghDmr9QzzfQu27cmVRsG",
    ),
    "gotify": ("https://push.example.de/message?token={}", "Apq7rK3F7iXCmOw"),
    "gotify header": ("X-Gotify-Key: {}", "Apq7rK3F7iXCmOw"),
    "matrix": ("syt_Ym9i_{}_1a2b3c", "AbCdEfGhIjKlMnOpQrSt"),
    "matrix url": ("https://m.org/_matrix/client/v3/rooms/x/send?access_token={}", LONG),
    "hf": ("hf_{}", LONG[:34]),
    "civitai": ("https://civitai.com/api/download/models/1?token={}", LONG[:32]),
    "civitai key": ("CIVITAI_API_KEY={}", "0123456789abcdef0123456789abcdef"),
    "openai": ("sk-proj-{}", LONG),
    "anthropic": ("sk-ant-api03-{}", LONG),
    "openrouter": ("sk-or-v1-{}", LONG),
    "google": ("AIzaSy{}", LONG[:33]),
    "google oauth": ("ya29.a0{}", LONG),
    "google secret": ("GOCSPX-{}", LONG[:28]),
    "google refresh": ("1//0g{}", LONG),
    "aws id": ("{}", "AKIAIOSFODNN7EXAMPLE"),
    "aws secret": ("aws_secret_access_key = {}", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"),
    "s3 signed": (
        "https://b.s3.amazonaws.com/k?X-Amz-Signature={}&X-Amz-Security-Token=IQoJ{}",
        LONG,
    ),
    "s3 old": ("https://b.s3.amazonaws.com/k?AWSAccessKeyId=AKIAIOSFODNN7EXAMPLE&Signature={}&Expires=1", LONG),
    "gcs": ("https://storage.googleapis.com/b/k?X-Goog-Signature={}", LONG),
    "azure sas": ("https://a.blob.core.windows.net/c/x?sv=2020&sig={}", LONG),
    "azure conn": ("DefaultEndpointsProtocol=https;AccountName=a;AccountKey={}==;EndpointSuffix=x", LONG),
    "azure bus": ("Endpoint=sb://x/;SharedAccessKeyName=Root;SharedAccessKey={}=", LONG),
    "cloudfront": ("https://d.cloudfront.net/x?Expires=1&Signature={}&Key-Pair-Id=K1", LONG),
    "github": ("ghp_{}", LONG[:36]),
    "github app": ("github_pat_{}", LONG),
    "gitlab": ("glpat-{}", LONG[:20]),
    "gitlab deploy": ("gldt-{}", LONG[:20]),
    "gitlab runner": ("glrt-{}", LONG[:20]),
    "basic auth": ("https://bob:{}@example.com/x", "hunter2"),
    "postgres": ("postgres://bob:{}@db/x", "hunter2"),
    "header basic": ("Authorization: Basic {}", "Ym9iOmh1bnRlcjI="),
    "curl -u": ("curl -u bob:{} https://example.com", "hunter2"),
    "bearer": ("Bearer {}", LONG),
    "twilio": ("SK{}", "0123456789abcdef0123456789abcdef"),
    "mailgun": ("key-{}", "0123456789abcdef0123456789abcdef"),
    "databricks": ("dapi{}", "0123456789abcdef0123456789abcdef"),
    "vault": ("hvs.{}", LONG),
    "doppler": ("dp.st.{}", LONG),
    "shopify": ("shpat_{}", "0123456789abcdef0123456789abcdef"),
    "linear": ("lin_api_{}", LONG),
    "notion": ("ntn_{}", LONG),
    "xai": ("xai-{}", LONG),
    "perplexity": ("pplx-{}", LONG),
    "groq": ("gsk_{}", LONG),
    "together": ("tgp_v1_{}", LONG),
    "fireworks": ("fw_{}", LONG[:24]),
    "replicate": ("r8_{}", LONG[:37]),
    "netlify": ("nfp_{}", LONG),
    "supabase": ("sbp_{}", "0123456789abcdef0123456789abcdef01234567"),
    "digitalocean": ("dop_v1_{}", LONG),
    "age": ("AGE-SECRET-KEY-1{}", "QQPQZ0123456789ABCDEFGHJKLMNPQRSTUVWXYZ"),
    "fly": ("FlyV1 fm2_{}", LONG),
    "docker": ("dckr_pat_{}", LONG),
    "pypi": ("pypi-{}", LONG),
    "home assistant": ("https://ha.local/api/webhook/{}", LONG),
    "mattermost": ("https://mm.example.org/hooks/{}", LONG[:26]),
    "rocket": ("https://rocket.example.org/hooks/AbCdEfGh1jKlMn0pQ/{}", LONG),
    "zapier": ("https://hooks.zapier.com/hooks/catch/1/{}", LONG),
    "ifttt": ("https://maker.ifttt.com/trigger/x/with/key/{}", LONG),
    "feishu": ("https://open.feishu.cn/open-apis/bot/v2/hook/{}", LONG),
    "dingtalk": ("https://oapi.dingtalk.com/robot/send?access_token={}", LONG),
    "wecom": ("https://qyapi.weixin.qq.com/cgi-bin/webhook/send?key={}", LONG),
    "bark": ("https://api.day.app/{}/title", LONG[:22]),
    "serverchan": ("https://sctapi.ftqq.com/SCT1{}.send", LONG),
    "pushbullet": ("o.{}", LONG[:32]),
    "line": ("Authorization: Bearer {}", LONG),
    "healthchecks": ("https://hc-ping.com/0123456789ab-cdef-0123-4567-{}", "89abcdef0123"),
    "make": ("https://hook.eu1.make.com/{}", LONG),
    "n8n": ("https://n8n.example.org/webhook/{}", LONG),
    "pipedream": ("https://{}.m.pipedream.net/x", LONG[:16].lower()),
    "wandb": ("WANDB_API_KEY={}", "0123456789abcdef0123456789abcdef01234567"),
}
"""kind: a text with a hole, and the secret that stands in it; none is one"""
SPELLED: dict[str, Callable[[str], str]] = {
    "as it is": lambda text: text,
    "in capitals": lambda text: text.replace("https://", "HTTPS://").replace("postgres://", "POSTGRES://"),
    "inside of a link": lambda text: f"https://h/?next={quote(text, safe='')}&a=1",
    "in JSON": lambda text: text.replace("/", "\\/").replace("&", "\\u0026"),
    "in JSON in JSON": lambda text: json.dumps(json.dumps(text)),
    "in HTML": lambda text: text.replace("&", "&amp;"),
}


@pytest.mark.parametrize("spelled", SPELLED)
def test_the_secrets_of_ninety_services_go_however_they_are_spelled(spelled: str) -> None:
    told: list[str] = []
    for kind, (text, secret) in SECRETS.items():
        assert text.count("{}") >= 1, kind
        seen = without_secrets(SPELLED[spelled](text.replace("{}", secret)))
        assert without_secrets(seen) == seen, kind
        read = unquote(seen).replace("\\/", "/")
        told += [kind] if secret[:12] in read or secret[-8:] in read else []
    assert told == []
    assert len(SECRETS) >= 85


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize(
    ("before", "secret", "cut", "after"),
    [
        ("the key is ", "sk-proj-" + LONG, 30, " and cats"),
        ("the key is ", "hf_" + LONG[:34], 10, " and cats"),
        ("https://api.telegram.org/bot", f"123456789:AAE{LONG[:32]}", 20, "/sendMessage"),
        ("https://discord.com/api/webhooks/", f"123456789012345678/{LONG}", 30, " and cats"),
        ("https://hooks.slack.com/services/", f"T00000000/B00000000/{LONG[:24]}", 28, " and cats"),
    ],
)
def test_a_secret_that_goes_on_in_the_next_line_goes_whole(
    before: str, secret: str, cut: int, after: str, end: str
) -> None:
    seen = without_secrets(f"{before}{secret[:cut]}{end}{secret[cut:]}{after}")
    assert seen.endswith(GONE + after)
    assert not any(secret[at : at + 6] in seen for at in range(len("sk-proj-"), len(secret) - 6))


@pytest.mark.parametrize(
    "text",
    [
        "ratio 16:9, at 12:30:45, seed 1234567890:12",
        "sk-learn\nis a library, hf_hub too, key-frames, fw_one, tk_ and pplx-small",
        "see https://docs.example.org/guide/robots/botany and https://example.org/bot/help",
        "1700000000:0123456789abcdef0123456789abcdef",
        "https://example.org/a/b?sort=key&page=2#top",
        "https://h/x\n20 clips of a cat",
        "a cat -u 3 --user bob",
        "text_key latent_key monkey: banana",
    ],
)
def test_what_looks_a_little_like_one_stays(text: str) -> None:
    assert without_secrets(text) == text
