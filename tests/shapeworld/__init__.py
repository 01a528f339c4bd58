"""A small world of moving shapes, and judges that say what a clip of it shows. Nothing here needs a network."""
