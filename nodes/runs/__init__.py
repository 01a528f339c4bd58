"""The outputs of a run: facts, published LoRAs, clips, and its graph without secrets."""
