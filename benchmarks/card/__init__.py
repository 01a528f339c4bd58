"""What `gpu_check.py` measures: one file per part. METHOD.md says what each figure means."""
