"""MaxDiffusion's training sets: TFRecords of latents and text features, read and written."""
