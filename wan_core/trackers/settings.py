"""Settings of trackers, webhook and mirror, from one file of the server.

A workflow or a request cannot enable them, so a foreign graph sends nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from ..config import Config, setting
from ..errors import ConfigError, WanTrainerError
from ..files import read_json

_EVENTS = ("saved", "evaluated", "suggested", "sample", "marked", "finished", "failed")


@dataclass(frozen=True, kw_only=True)
class TensorBoardSettings(Config):
    """`tensorboard`: event files in the folder `tensorboard` of each run. They stay on this machine."""

    enabled: bool = setting(True, "Write event files where the package tensorboard is installed.")
    flush_seconds: int = setting(10, "The longest that a figure waits before it is in the file.", low=1, high=3600)


@dataclass(frozen=True, kw_only=True)
class TrackerSettings(Config):
    """`tracker`: figures go to Weights & Biases or trackio; their own environment variables hold the keys."""

    kind: str = setting("", "Which one.", choices=("wandb", "trackio"), also=("",))
    project: str = setting("wan-trainer", "The project that runs are listed in.")
    offline: bool = setting(False, "wandb writes into the run's folder, for `wandb sync`.")
    entity: str = setting("", "wandb's team; empty: your own.")


@dataclass(frozen=True, kw_only=True)
class WebhookSettings(Config):
    """`webhook`: a request for each event, as JSON."""

    url: str = setting("", "https, with whatever key the service wants in it.")
    shape: str = setting("json", "What the service reads.", choices=("json", "discord", "slack"))
    events: tuple[str, ...] = ("saved", "finished", "failed")
    allow_private: bool = setting(False, "Also http.")

    def __post_init__(self) -> None:
        """Raises ConfigError for an unknown event or an invalid address."""
        super().__post_init__()
        for name in self.events:
            if name not in _EVENTS:
                raise ConfigError(f'webhook.events has "{name}". Known: {", ".join(_EVENTS)}.')
        wanted = ("https://", "http://") if self.allow_private else ("https://",)
        if self.url and not self.url.lower().startswith(wanted):
            raise ConfigError(
                f"webhook.url does not begin with {' or '.join(wanted)}. Give the complete address; http is for your "
                "own network, with allow_private = true."
            )


@dataclass(frozen=True, kw_only=True)
class MirrorSettings(Config):
    """`mirror`: saved steps and previews are copied to a folder elsewhere, by fsspec."""

    url: str = setting("", "s3://bucket/loras, sftp://host/folder, file:///mnt/nas/loras and the like.")
    state: bool = setting(False, "Also what a resume needs (three times the size).")


@dataclass(frozen=True, kw_only=True)
class ServerSettings(Config):
    """The settings file. By default, only TensorBoard is on, which is local."""

    tensorboard: TensorBoardSettings = field(default_factory=TensorBoardSettings)
    tracker: TrackerSettings = field(default_factory=TrackerSettings)
    webhook: WebhookSettings = field(default_factory=WebhookSettings)
    mirror: MirrorSettings = field(default_factory=MirrorSettings)

    @classmethod
    def read(cls, path: Path) -> ServerSettings:
        """Returns the settings of a file. Raises ConfigError with the file's name and the key."""
        try:
            return cls.from_dict(read_json(path))
        except WanTrainerError as error:
            raise ConfigError(f"{path.name}: {error}") from error
