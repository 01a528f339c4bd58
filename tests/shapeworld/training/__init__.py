"""How the shipped demo models were trained. scripts/generators/train_demo_models.py runs it; nothing else needs it."""
