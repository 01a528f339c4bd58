"""The things a run leaves for others: its facts, its published LoRAs, and its graph without secrets."""
