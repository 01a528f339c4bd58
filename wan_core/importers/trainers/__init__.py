"""The settings of other trainers, read as datasets; the account lists keys without a counterpart here."""
