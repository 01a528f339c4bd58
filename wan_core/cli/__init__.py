"""The commands of `python -m wan_core`, one file per subject."""
