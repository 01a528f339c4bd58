"""The commands of `python -m wan_core`, one file for each kind of thing they work on."""
