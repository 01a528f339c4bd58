"""The settings of other trainers, read as datasets; what of them has no counterpart here is said."""
