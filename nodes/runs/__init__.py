"""The outputs of a run: its facts, its published LoRAs, its clips, and its graph without secrets."""
