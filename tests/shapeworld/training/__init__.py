"""How the shipped demo models were trained. scripts/train_demo_models.py runs it; nothing else needs it."""
